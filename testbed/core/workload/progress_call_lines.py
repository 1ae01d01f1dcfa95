"""Read what ``testbed_agents.step`` of a user's program has written: one JSON object a line, with its own time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from testbed.core.fields import number

__all__ = ["CallReader"]

_LONGEST_LINE: Final = 1 << 14


class CallReader:
    """Reads the bytes of one file from its begin, as they come. Lines that no call has written are skipped."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Iterator[tuple[float | None, Mapping[str, float]]]:
        """Yield (seconds of CLOCK_MONOTONIC or None, numbers by name) for each whole line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = self._rest[:_LONGEST_LINE]  # it stays longer than a call's, and is refused at its end
        for line in lines:
            try:
                call = json.loads(line) if len(line) < _LONGEST_LINE else None
            except (ValueError, RecursionError):
                continue
            if isinstance(call, dict) and number(call, "step") is not None:
                figures = {name: value for name in call if name != "t" and (value := number(call, name)) is not None}
                yield number(call, "t"), figures
