"""Captures of packets while a run was recorded: capturing costs CPU, so the run is marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from testbed.core.fields import mapping
from testbed.core.json_record import JsonRecord, Or

__all__ = ["BEGAN", "ENDED", "CaptureRecord", "of_events"]

BEGAN: Final = "capture-began"
ENDED: Final = "capture-ended"
"""Kinds of events."""


@dataclass(frozen=True)
class CaptureRecord(JsonRecord):
    """A capture of the packets of ``directions``, before the fiber or behind it; times are CLOCK_MONOTONIC.

    ``ended_t`` is None where the capture outlasted the run; the counts are None also where its process was killed.
    """

    capture: Annotated[str, Or("")]
    directions: Annotated[tuple[str, ...], Or(())]
    before: Annotated[bool, Or(False)]
    began_t: float | None
    ended_t: float | None = None
    packets: int | None = None
    super_packets: int | None = None
    dropped: int | None = None


def of_events(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the captures that a run's events tell of, in the format of run.json."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["event"] == BEGAN:
            found[event["capture"]] = {
                "capture": event["capture"],
                "directions": list(event["directions"]),
                "before": event["before"],
                "began_t": event["t"],
                "ended_t": None,
            }
        elif event["event"] == ENDED and event["capture"] in found:
            found[event["capture"]] |= {"ended_t": event["t"], **mapping(event, "counted")}
    return list(found.values())
