"""What was in force on each direction of the fibers, and who made it: a line for each stretch between two faults.

The keeper's events tell it: each beginning, phase and end of a fault, and each protection switch, has the directions
that it acts on with their values afterwards (``in_force``). The phases of one stretch (a ramp, a flap) share a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.fields import Fields, mapping, sequence, text, texts
from testbed.core.physics import full_scale
from testbed.core.records.event import Event
from testbed.core.report import formats
from testbed.core.report.report_table import Table
from testbed.core.report.sections.faults_section import Fault

__all__ = ["InForce", "ValueInForce", "lines", "table"]

_EVENTS = ("fault-began", "fault-phase", "fault-ended", "protection-switched")
_HEAD = ("direction", "from", "to", "in force: made by", "masked")


@dataclass(frozen=True)
class ValueInForce:
    """A value with its makers: ids of faults, ``link``, ``protection``. ``last`` differs where it changed meanwhile."""

    key: str
    first: str
    last: str
    by: tuple[str, ...]

    def __str__(self) -> str:
        said = self.first if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.key} {said}".strip()


@dataclass(frozen=True)
class InForce:
    """A stretch of one direction; ``ended_s`` is None if the record does not hold its end.

    ``outages``: how often the direction went dark; ``dark_by``: who darkened it. ``masked``: what faults stated and did
    not get, as ``jitter of f1``.
    """

    direction: str
    began_s: float
    ended_s: float | None
    outages: int
    dark_by: tuple[str, ...]
    values: tuple[ValueInForce, ...]
    masked: tuple[str, ...]


@dataclass(frozen=True)
class _State:
    t: float
    phase: bool
    dark_by: tuple[str, ...]
    values: tuple[tuple[str, str, tuple[str, ...]], ...]
    masked: tuple[str, ...]


def lines(events: Iterable[Event], origin: float) -> tuple[InForce, ...]:
    """Return the stretches of all directions with anything in force, ordered by beginning."""
    states: dict[str, list[_State]] = {}
    for event in sorted((it for it in events if it.event in _EVENTS), key=lambda it: it.t):
        told = mapping(event.fields, "in_force")
        for direction in told:
            states.setdefault(direction, []).append(_state(event, mapping(told, direction)))
    found = [it for direction, track in states.items() for it in _stretches(direction, track, origin)]
    return tuple(sorted(found, key=lambda it: (it.began_s, it.direction)))


def _state(event: Event, fields: Fields) -> _State:
    values = [it for it in sequence(fields, "values") if isinstance(it, dict)]
    masked = [it for it in sequence(fields, "masked") if isinstance(it, dict)]
    return _State(
        event.t,
        event.event == "fault-phase",
        texts(fields, "dark_by"),
        tuple((text(it, "key"), text(it, "text"), texts(it, "by")) for it in values),
        tuple(f"{text(it, 'key')} of {text(it, 'fault')}" for it in masked),
    )


def _stretches(direction: str, track: Sequence[_State], origin: float) -> Iterator[InForce]:
    stretch: list[_State] = []
    for state in track:
        if not state.phase and stretch:
            yield from _line(direction, stretch, state.t - origin, origin)
            stretch = []
        stretch.append(state)
    yield from _line(direction, stretch, None, origin)


def _line(direction: str, stretch: Sequence[_State], ended_s: float | None, origin: float) -> Iterator[InForce]:
    """Yield the line of a stretch; none where nothing was in force."""
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    last: dict[tuple[str, tuple[str, ...]], str] = {}
    for state in stretch:
        for key, shown, by in state.values:
            first.setdefault((key, by), shown)
            last[key, by] = shown
    dark = [bool(it.dark_by) for it in stretch]
    dark_by = tuple(dict.fromkeys(maker for it in stretch for maker in it.dark_by))
    outages = sum(now and not before for before, now in zip([False, *dark], dark, strict=False))
    if first or dark_by:
        yield InForce(
            direction,
            stretch[0].t - origin,
            ended_s,
            outages,
            dark_by,
            tuple(ValueInForce(key, first[key, by], last[key, by], by) for key, by in first),
            tuple(dict.fromkeys(it for state in stretch for it in state.masked)),
        )


def table(found: Iterable[InForce], faults: Iterable[Fault], scale: float = 1.0) -> Table | None:
    """The stretches; each fault is named by its id and by what it was. ``scale`` is the topology's."""
    names = {it.fault: f"{it.fault} ({it.label})" for it in faults}
    return Table.of(_HEAD, (_row(it, names, scale) for it in found), "Values in force", (1, 2))


def _row(it: InForce, names: Mapping[str, str], scale: float) -> tuple[str, ...]:
    made = [(it.dark_by, "dark" if it.outages == 1 else f"dark {it.outages} times")] if it.dark_by else []
    made += [(value.by, full_scale.in_text(str(value), scale)) for value in it.values]
    return (
        it.direction,
        formats.duration(it.began_s),
        "the end" if it.ended_s is None else formats.duration(it.ended_s),
        "; ".join(f"{said}: {' + '.join(names.get(maker, maker) for maker in by)}" for by, said in made),
        "; ".join(it.masked) or "–",
    )
