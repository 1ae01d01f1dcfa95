"""Files of JSON, and of a JSON document per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded_events(run: Path, kind: str) -> list[Any]:
    """Return the events of a kind in a run directory."""
    return [event for event in read_lines(run / "events.jsonl") if event["event"] == kind]
