"""Files of JSON, and of a JSON document per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_lines(path: Path, kind: str = "") -> list[Any]:
    """Return the documents in a file, or the records of a kind."""
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    return [document for document in documents if not kind or document.get("kind") == kind]


def write_lines(path: Path, documents: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")


def recorded_events(run: Path, kind: str) -> list[Any]:
    """Return the events of a kind in a run directory."""
    return [event for event in read_lines(run / "events.jsonl") if event["event"] == kind]
