"""Faults as intervals of time, built from the run's events."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.core.fields import mapping, number, sequence, text, texts
from testbed.core.records.event import Event

__all__ = ["FaultWindow", "Stretches", "fault_windows"]


@dataclass(frozen=True)
class FaultWindow:
    """One fault, from the command that began it to the command that ended it; ``ended_t`` is None if it never ended.

    ``began_t`` is when the testbed issued the command and ``ack_t`` when the host confirmed it: the effect began in
    between. ``carrier_s`` is from the command until the last gateway port of ``links`` had lost carrier; None if none
    did. ``parameters`` are those of the fault as the user wrote them; of a run whose events lack them, the values that
    it gave its directions.
    """

    fault: str
    type: str
    target: str
    links: tuple[str, ...]
    began_t: float
    ended_t: float | None
    planned_t: float | None = None
    ack_t: float | None = None
    carrier_s: float | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.type} {self.target}".strip() or self.fault


class Stretches:
    """A set of time intervals with fast overlap queries. A job of an hour has a thousand faults and tens of thousands
    of steps, and checking each pair would take half an hour."""

    def __init__(self, stretches: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(stretches)
        self._begins = [begin for begin, _ in ordered]
        self._each_end = sorted(end for _, end in ordered)
        self._ends = list(itertools.accumulate((end for _, end in ordered), max))

    def touch(self, begin_t: float, end_t: float) -> bool:
        """Whether one of the intervals begins before ``end_t`` and ends after ``begin_t``."""
        before = bisect.bisect_left(self._begins, end_t)
        return before > 0 and self._ends[before - 1] > begin_t

    def next_begin(self, t: float) -> float:
        """Return when the next interval begins after ``t``; infinity if none does."""
        at = bisect.bisect_right(self._begins, t)
        return self._begins[at] if at < len(self._begins) else math.inf

    def next_end(self, t: float) -> float:
        """Return when the next interval ends after ``t``; infinity if none does."""
        at = bisect.bisect_right(self._each_end, t)
        return self._each_end[at] if at < len(self._each_end) else math.inf


def fault_windows(events: Iterable[Event]) -> tuple[FaultWindow, ...]:
    """Pair each ``fault-began`` with the ``fault-ended`` of its id; ordered by beginning."""
    listed = list(events)
    ends = {text(event.fields, "fault"): event for event in listed if event.event == "fault-ended"}
    phases = {
        text(event.fields, "fault"): event for event in listed if event.event == "fault-phase"
    }  # the last of each
    windows = []
    for event in listed:
        if event.event != "fault-began":
            continue
        name = text(event.fields, "fault")
        end = ends.get(name)
        began_t = _commanded(event)
        ended_t = None if end is None else max(began_t, _commanded(end))
        links = texts(event.fields, "links")
        windows.append(
            FaultWindow(
                fault=name,
                type=text(event.fields, "type"),
                target=text(event.fields, "target"),
                links=links,
                began_t=began_t,
                ended_t=ended_t,
                planned_t=number(event.fields, "planned_t"),
                ack_t=number(event.fields, "ack_t"),
                carrier_s=_carrier_loss(listed, links, began_t, ended_t),
                parameters=_parameters(event, phases.get(name, event)),
            )
        )
    return tuple(sorted(windows, key=lambda window: window.began_t))


def _parameters(began: Event, last: Event) -> Mapping[str, str]:
    """Return the parameters of a fault that began with ``began``, and whose ``last`` phase is known."""
    if "parameters" in began.fields:
        written = mapping(began.fields, "parameters")
        return {str(key): value for key, value in written.items() if isinstance(value, str)}
    name = text(began.fields, "fault")
    in_force = mapping(last.fields, "in_force")
    return {
        text(value, "key"): text(value, "text")
        for direction in in_force
        for value in sequence(mapping(in_force, direction), "values")
        if isinstance(value, Mapping) and name in texts(value, "by")
    }


def _commanded(event: Event) -> float:
    commanded = number(event.fields, "command_t")
    return event.t if commanded is None else commanded


def _carrier_loss(
    events: Iterable[Event], links: tuple[str, ...], began_t: float, ended_t: float | None
) -> float | None:
    """Return the seconds until every gateway port that reported a carrier event had lost carrier; None if none did."""
    first: dict[tuple[str, str], float] = {}
    for event in events:
        link = text(event.fields, "link")
        inside = event.t >= began_t and (ended_t is None or event.t <= ended_t)
        if event.event == "carrier" and event.fields.get("up") is False and link in links and inside:
            first.setdefault((link, text(event.fields, "site")), event.t)
    return max(first.values()) - began_t if first else None
