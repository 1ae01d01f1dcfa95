"""``events.jsonl`` as typed, frozen records (their contract: docs/design.md, "Run directory")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from testbed.core.fields import Fields, parse
from testbed.core.json_record import Derived, JsonRecord

__all__ = ["Event", "read_events"]


@dataclass(frozen=True)
class Event(JsonRecord):
    """A line of ``events.jsonl``; ``fields`` is the whole line, for fields that only one kind of event carries."""

    t: float
    event: str
    fields: Annotated[Fields, Derived(lambda fields, _: fields)] = field(default_factory=dict)


def read_events(lines: Iterable[object]) -> tuple[tuple[Event, ...], int]:
    """Read ``events.jsonl``, in the order of time: several writers append to it."""
    events, malformed = parse(lines, {"": Event.from_dict}, None)
    return tuple(sorted(events, key=lambda event: event.t)), malformed
