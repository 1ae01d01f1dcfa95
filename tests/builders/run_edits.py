"""Edits of the files of a run directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def edit_lines(file: Path, change: Callable[[Line], Line | None]) -> None:
    """Write each line of a JSONL file as ``change`` returns it; leave out those for which it returns None."""
    lines = (change(json.loads(line)) for line in file.read_text().splitlines())
    file.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


def edit_metrics(run: Path, change: Callable[[Line], Line | None]) -> None:
    edit_lines(run / "metrics.jsonl", change)


def append_event(run: Path, event: str, **fields: Any) -> None:
    with (run / "events.jsonl").open("a") as stream:
        print(json.dumps({"event": event, **fields}), file=stream)


def edit_info(run: Path, **fields: Any) -> None:
    """Change fields of run.json."""
    file = run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
