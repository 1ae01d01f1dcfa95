"""The events of a run in its report: one sentence per event, instead of the fields of its record.

The page and Markdown show the first :data:`SHOWN` and fold the others away, the phases of faults before all else: a
ramp has dozens of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.fields import Fields, integer, mapping, number, text, texts
from testbed.core.physics import full_scale
from testbed.core.records import capture_record
from testbed.core.records.event import Event
from testbed.core.report import fault_words, formats
from testbed.core.report.report_table import Table
from testbed.core.units import format_number

__all__ = ["SHOWN", "EventLine", "folded", "lines", "table"]

SHOWN: Final = 20
_AT_ONCE: Final = frozenset({"impaired", "jitter", "squeezed", "corrupt", "black hole", "killed", "stopped", "slowed"})
"""Phases of faults whose words say as much already."""


@dataclass(frozen=True)
class EventLine:
    t_s: float
    event: str
    text: str


def lines(
    events: Iterable[Event],
    origin: float,
    parameters: Mapping[str, Mapping[str, str]] | None = None,
    scale: float = 1.0,
) -> tuple[EventLine, ...]:
    """Return the events in words. ``parameters``: those of each fault by its id, for events that lack them.

    ``scale`` is the topology's, for what a rate stands for.
    """
    known = parameters or {}
    return tuple(
        EventLine(event.t - origin, event.event, full_scale.in_text(_text(_whole(event, known)), scale))
        for event in events
    )


def _whole(event: Event, parameters: Mapping[str, Mapping[str, str]]) -> Event:
    of_fault = parameters.get(text(event.fields, "fault"))
    if not of_fault or "parameters" in event.fields:
        return event
    return Event(event.t, event.event, {**event.fields, "parameters": of_fault})


def table(events: Sequence[EventLine]) -> Table | None:
    """The first :data:`SHOWN` events; None if there are none."""
    shown = _shown(events)
    return _table((each for index, each in enumerate(events) if index in shown), "Events")


def folded(events: Sequence[EventLine]) -> Table | None:
    """The other events; None if there are none. Its label says how many there are."""
    shown = _shown(events)
    rest = [each for index, each in enumerate(events) if index not in shown]
    return _table(rest, formats.plural(len(rest), "more event")) if rest else None


def _shown(events: Sequence[EventLine]) -> frozenset[int]:
    """Return the indices of the events to show: of phases of faults as many as the other events leave room for."""
    order = sorted(range(len(events)), key=lambda index: (events[index].event == "fault-phase", index))
    return frozenset(order[:SHOWN])


def _table(events: Iterable[EventLine], label: str) -> Table | None:
    rows = ((f"{round(each.t_s, 3) + 0.0:.3f}", each.event.replace("-", " "), each.text) for each in events)
    return Table.of(("time s", "event", "what"), rows, label, (0,))


def _text(event: Event) -> str:
    said = SENTENCES.get(event.event, _any)(event.fields)
    return said or _any(event.fields)


def _fault(fields: Fields, lasts: str = "") -> str:
    written = {str(key): value for key, value in mapping(fields, "parameters").items() if isinstance(value, str)}
    named = fault_words.in_full(text(fields, "type"), text(fields, "target"), written)
    number_of = text(fields, "fault")
    return f"{named}{lasts} ({number_of})" if named and number_of else (named or number_of) + lasts


def _fault_began(fields: Fields) -> str:
    """Its phase is left out where it repeats the fault's own words."""
    phase = text(fields, "phase")
    return _with_links({**fields, "phase": "" if phase in _AT_ONCE else phase}, number(fields, "lasts_s"))


def _fault_phase(fields: Fields) -> str:
    return _with_links(fields, None)


def _with_links(fields: Fields, lasts_s: float | None) -> str:
    links = texts(fields, "links")
    # A fault of one link names it, or one of its directions, as its target.
    named = text(fields, "target").partition(":")[0]
    shown = f"; links: {', '.join(links)}" if links and list(links) != [named] else ""
    phase = text(fields, "phase")
    lasts = f", {formats.duration(lasts_s)}" if lasts_s else ""
    return f"{_fault(fields, lasts)}{f': {phase}' if phase else ''}{shown}"


def _fault_ended(fields: Fields) -> str:
    return _fault(fields)


def _fault_failed(fields: Fields) -> str:
    return f"{_fault(fields)} did not happen as planned: {text(fields, 'why')}"


def _carrier(fields: Fields) -> str:
    state = "carrier" if fields.get("up") is True else "no carrier"
    return f"{text(fields, 'site')} gateway, {text(fields, 'link')}: {state}"


def _carrier_missed(fields: Fields) -> str:
    missed = integer(fields, "count")
    many = "some changes" if missed is None else formats.plural(missed, "change")
    return f"{text(fields, 'site')} gateway, {text(fields, 'link')}: {many} of carrier not seen"


def _rank(fields: Fields) -> str:
    rank = integer(fields, "rank")
    return "a rank" if rank is None else f"rank {rank}"


def _job_began(fields: Fields) -> str:
    job = text(fields, "job")
    return f"{_rank(fields)} joined{f' job {job}' if job else ''}"


def _job_ended(fields: Fields) -> str:
    status, reason = text(fields, "status"), text(fields, "reason")
    how = {"ok": "completed its steps", "saved": "saved its state and left"}.get(status, status or "ended")
    return f"{_rank(fields)} {how}{f': {reason}' if reason else ''}"


def _rank_died(fields: Fields) -> str:
    signal, code = integer(fields, "signal"), integer(fields, "code")
    how = f" of signal {signal}" if signal is not None else f" with exit status {code}" if code is not None else ""
    return f"{_rank(fields)} died{how}{_sender(fields)}"


def _sender(fields: Fields) -> str:
    if fields.get("out_of_memory") is True:
        return ", out of memory"
    return ", sent by the testbed" if fields.get("by_testbed") is True and "signal" in fields else ""


def _attempt(fields: Fields) -> str:
    attempt = integer(fields, "attempt")
    return "an attempt" if attempt is None else f"attempt {attempt}"


def _attempt_began(fields: Fields) -> str:
    step = integer(fields, "resumed_from")
    return f"{_attempt(fields)}, {f'resumed from step {step}' if step else 'from the beginning'}"


def _attempt_ended(fields: Fields) -> str:
    step, why = integer(fields, "step"), text(fields, "why")
    after = "" if step is None else f" after step {step}"
    return f"{_attempt(fields)}{after}{f': {why}' if why else ''}"


def _restart_waits(fields: Fields) -> str:
    return f"{_attempt(fields)} waits: {text(fields, 'for')}"


def _protection(fields: Fields) -> str:
    return f"{text(fields, 'link')}: {text(fields, 'was')} → {text(fields, 'to')}"


def _emulator_died(fields: Fields) -> str:
    status = integer(fields, "status")
    return f"the emulator ended{'' if status is None else f' with status {status}'}; every fiber is dark"


def _container_died(fields: Fields) -> str:
    return f"the container of {text(fields, 'node')} died"


def _agents_gone(fields: Fields) -> str:
    how = text(fields, "how")
    return f"the fork server of the ranks ended{f': {how}' if how else ''}"


def _check(fields: Fields) -> str:
    state = "holds again" if fields.get("holds") is True else "does not hold"
    value = number(fields, "measured")
    measured = "" if value is None else f" (measured {format_number(value, 4)})"
    return f"{text(fields, 'when')}: {text(fields, 'text')} {state}{measured}"


def _rerouted(fields: Fields) -> str:
    return f"routes changed in {formats.duration(number(fields, 'took_s'))}"


def _any(fields: Fields) -> str:
    """What an unknown event carries; the value alone if it is the only one."""
    rest = {key: value for key, value in fields.items() if key not in ("t", "event")}
    if len(rest) == 1:
        return str(next(iter(rest.values())))
    said_of = {key: value for key, value in rest.items() if isinstance(value, str | int | float) and value != ""}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in said_of.items())


def _capture(fields: Fields) -> str:
    """Return whose packets were captured, and at the end what was captured."""
    where = "before" if fields.get("before") is True else "behind"
    counted = mapping(fields, "counted")
    found, lost = integer(counted, "packets"), integer(counted, "dropped")
    many = "" if found is None else f": {formats.plural(found, 'packet')}"
    missing = f", {formats.plural(lost, 'more packet')} dropped by the kernel" if lost else ""
    return f"packets of {', '.join(texts(fields, 'directions'))}, {where} the fiber{many}{missing}"


SENTENCES: dict[str, Callable[[Fields], str]] = {
    "agents-gone": _agents_gone,
    "attempt-began": _attempt_began,
    "attempt-ended": _attempt_ended,
    capture_record.BEGAN: _capture,
    capture_record.ENDED: _capture,
    "carrier": _carrier,
    "carrier-missed": _carrier_missed,
    "check": _check,
    "container-died": _container_died,
    "emulator-died": _emulator_died,
    "fault-began": _fault_began,
    "fault-ended": _fault_ended,
    "fault-failed": _fault_failed,
    "fault-phase": _fault_phase,
    "job-began": _job_began,
    "job-ended": _job_ended,
    "protection-switched": _protection,
    "rank-died": _rank_died,
    "rerouted": _rerouted,
    "restart-waits": _restart_waits,
}
