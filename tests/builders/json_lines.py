"""Files of JSON lines: records, checks, and what programs print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path, kind: str = "") -> list[dict[str, Any]]:
    """Return the records in a file, or those of one kind."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if kind in ("", record.get("kind"))]
