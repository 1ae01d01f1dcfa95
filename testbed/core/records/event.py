"""``events.jsonl`` as typed, frozen records (their contract: docs/design.md, "Run directory")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from testbed.core.fields import Fields, need_number, need_text, parse

__all__ = ["Event", "read_events"]


@dataclass(frozen=True)
class Event:
    """A line of ``events.jsonl``; ``fields`` is the whole line, for fields that only one kind of event carries."""

    t: float
    event: str
    fields: Fields = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Fields) -> Event:
        return cls(need_number(fields, "t"), need_text(fields, "event"), fields)


def read_events(lines: Iterable[object]) -> tuple[tuple[Event, ...], int]:
    """Read ``events.jsonl``, in the order of time: several writers append to it."""
    found, malformed = parse(lines, {"": Event.from_dict}, None)
    return tuple(sorted(found, key=lambda event: event.t)), malformed
