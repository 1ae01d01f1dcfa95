"""What was in force on each direction of the fibers, and who made it: a line for each stretch between two faults.

The keeper's events tell it: each beginning, phase and end of a fault, and each protection switch, has the directions
that it acts on with their values afterwards (``in_force``). The phases of one stretch (a ramp, a flap) share a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.core.fields import Fields, mapping, sequence, text, texts
from testbed.core.physics import full_scale
from testbed.core.records.event import Event
from testbed.core.report import formats
from testbed.core.report.blocks import Section, Table
from testbed.core.report.sections.faults_section import FaultLine

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["InForceLine", "InForceValue", "lines", "section", "table"]

_LEAD = (
    "Values that faults and protection gave each direction, for each period between two of their beginnings or ends."
    " The link's own values are with the topology."
)

_EVENTS = ("fault-began", "fault-phase", "fault-ended", "protection-switched")
_HEAD = ("direction", "from", "to", "in force: made by", "masked")


@dataclass(frozen=True)
class InForceValue:
    """A value with its makers: ids of faults, ``link``, ``protection``. ``last`` differs where it changed meanwhile."""

    key: str
    first: str
    last: str
    """Differs from first where the value changed meanwhile."""
    by: tuple[str, ...]
    """Ids of faults, link, protection."""

    def __str__(self) -> str:
        change = self.first if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.key} {change}".strip()


@dataclass(frozen=True)
class InForceLine:
    """A stretch of one direction; ``ended_s`` is None if the record does not hold its end.

    ``outages``: how often the direction went dark; ``dark_by``: who darkened it. ``masked``: what faults stated and did
    not get, as ``jitter of f1``.
    """

    direction: str
    began_s: float
    """Since the job began."""
    ended_s: float | None
    """Since the job began; null: its end is not in the record."""
    outages: int
    """How often the direction went dark."""
    dark_by: tuple[str, ...]
    values: tuple[InForceValue, ...]
    masked: tuple[str, ...]


@dataclass(frozen=True)
class _State:
    t: float
    phase: bool
    dark_by: tuple[str, ...]
    values: tuple[tuple[str, str, tuple[str, ...]], ...]
    masked: tuple[str, ...]


def lines(events: Iterable[Event], origin: float) -> tuple[InForceLine, ...]:
    """Return the stretches of all directions with anything in force, ordered by beginning."""
    states: dict[str, list[_State]] = {}
    for event in sorted((event for event in events if event.event in _EVENTS), key=lambda stretch: stretch.t):
        in_force = mapping(event.fields, "in_force")
        for direction in in_force:
            states.setdefault(direction, []).append(_state(event, mapping(in_force, direction)))
    stretches = [stretch for direction, track in states.items() for stretch in _stretches(direction, track, origin)]
    return tuple(sorted(stretches, key=lambda stretch: (stretch.began_s, stretch.direction)))


def _state(event: Event, fields: Fields) -> _State:
    values = [in_effect for in_effect in sequence(fields, "values") if isinstance(in_effect, dict)]
    masked = [masked_value for masked_value in sequence(fields, "masked") if isinstance(masked_value, dict)]
    return _State(
        event.t,
        event.event == "fault-phase",
        texts(fields, "dark_by"),
        tuple((text(in_effect, "key"), text(in_effect, "text"), texts(in_effect, "by")) for in_effect in values),
        tuple(f"{text(masked_value, 'key')} of {text(masked_value, 'fault')}" for masked_value in masked),
    )


def _stretches(direction: str, track: Sequence[_State], origin: float) -> Iterator[InForceLine]:
    stretch: list[_State] = []
    for state in track:
        if not state.phase and stretch:
            yield from _line(direction, stretch, state.t - origin, origin)
            stretch = []
        stretch.append(state)
    yield from _line(direction, stretch, None, origin)


def _line(direction: str, stretch: Sequence[_State], ended_s: float | None, origin: float) -> Iterator[InForceLine]:
    """Yield the line of a stretch; none where nothing was in force."""
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    last: dict[tuple[str, tuple[str, ...]], str] = {}
    for state in stretch:
        for key, shown, by in state.values:
            first.setdefault((key, by), shown)
            last[key, by] = shown
    dark = [bool(state.dark_by) for state in stretch]
    dark_by = tuple(dict.fromkeys(maker for state in stretch for maker in state.dark_by))
    outages = sum(now and not before for before, now in zip([False, *dark], dark, strict=False))
    if first or dark_by:
        yield InForceLine(
            direction,
            stretch[0].t - origin,
            ended_s,
            outages,
            dark_by,
            tuple(InForceValue(key, first[key, by], last[key, by], by) for key, by in first),
            tuple(dict.fromkeys(masked_text for state in stretch for masked_text in state.masked)),
        )


def table(stretches: Iterable[InForceLine], faults: Iterable[FaultLine], scale: float = 1.0) -> Table | None:
    """The stretches; each fault is named by its id and by what it was. ``scale`` is the topology's."""
    names = {fault.fault: f"{fault.fault} ({fault.label})" for fault in faults}
    return Table.of(_HEAD, (_row(stretch, names, scale) for stretch in stretches), "Values in force", (1, 2))


def _row(stretch: InForceLine, names: Mapping[str, str], scale: float) -> tuple[str, ...]:
    made = (
        [(stretch.dark_by, "dark" if stretch.outages == 1 else f"dark {stretch.outages} times")]
        if stretch.dark_by
        else []
    )
    made += [(value.by, full_scale.in_text(str(value), scale)) for value in stretch.values]
    return (
        stretch.direction,
        formats.duration(stretch.began_s),
        "the end" if stretch.ended_s is None else formats.duration(stretch.ended_s),
        "; ".join(f"{change}: {' + '.join(names.get(maker, maker) for maker in by)}" for by, change in made),
        "; ".join(stretch.masked) or "–",
    )


def section(report: Report) -> Section | None:
    return Section.of("Values in force", table(report.in_force, report.faults, report.scale), lead=_LEAD)
