"""Check that the bytes which the job must have moved crossed the fiber.

The twin of the job's strategy says which operations its steps have. Where it is known how the library carries them
out, each direction is compared with what that moves, both ways (``wire_directions.py``). Otherwise, and over the whole
run, faults included, there is a bound, of every kind of operation (``gloo_bytes.least_into``). An all-reduce of n
bytes, for instance, however it is implemented, needs at least n bytes into each site that holds ranks while other sites
hold ranks too: the contribution of the others must arrive, and a sum of n bytes cannot be sent in fewer. Less than the
minimum means that a collective bypassed the fiber. The bound has no meaning where no exchange of the strategy lies
between two samples; the verdict is then unknown and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire.wire_directions import HEADERS, LEAST_STEPS, RING, TOLERANCE, DirectionBytes, compare
from testbed.core.analysis.wire.wire_loads import Exchanges, WireLoad, attempt_loads
from testbed.core.json_form import Keywords
from testbed.core.records.rank_log import JobRecord, RankLog
from testbed.core.records.samples import FiberSample
from testbed.core.topology.direction import link_of
from testbed.core.topology.model import Topology
from testbed.core.training.twin import Twin

__all__ = ["EXCESS", "WireCut", "WireVerdict", "check"]

EXCESS = "More than the job"
"""Beginning of the sentence about bytes that the job does not account for."""

_SLACK = 0.05
"""How far below the minimum the estimate may fall: acknowledgements and short segments blur payload per wire byte."""


@dataclass(frozen=True)
class WireCut:
    """Payload that entered one site over all of its fibers; ``wire_bytes`` is the value of the counters (L2)."""

    toward: str
    expected_bytes: float
    minimum_bytes: float
    measured_bytes: float
    """Payload."""
    wire_bytes: int
    """L2."""

    @property
    def ok(self) -> bool:
        return self.measured_bytes >= (1.0 - _SLACK) * self.minimum_bytes


@dataclass(frozen=True)
class WireVerdict:
    """``ok`` is None when unknown; the byte counts are sums over ``cuts``, for the ``steps`` compared.

    ``compared_with`` is ``algorithm`` (``directions`` then have the comparison), ``bound``, or empty.
    """

    ok: bool | None
    sentence: str
    steps: int = 0
    cuts: tuple[WireCut, ...] = ()
    expected_bytes: float = 0.0
    """Payload of a ring, over all cuts."""
    minimum_bytes: float = 0.0
    """Payload of any all-reduce, over all cuts."""
    measured_bytes: float = 0.0
    """Payload, over all cuts."""
    algorithm: str = ""
    """Of the all-reduce, as in gloo ring; empty: unknown."""
    compared_with: Annotated[str, Keywords(enum=["algorithm", "bound", ""])] = ""
    directions: tuple[DirectionBytes, ...] = ()
    """Payload of TCP in calm steps, compared with what the algorithm moves."""

    @property
    def lines(self) -> tuple[str, ...]:
        """A line per direction that was compared with the algorithm."""
        return tuple(_line(direction) for direction in self.directions)


def check(
    logs: Sequence[RankLog],
    fibers: Sequence[FiberSample],
    mtu: Mapping[str, int] | None = None,
    topology: Topology | None = None,
    windows: Sequence[FaultWindow] = (),
    twin: Twin | None = None,
    exchanges: Exchanges | None = None,
) -> WireVerdict:
    """Compare the job's steps with the fibers' counters.

    With ``topology`` and a known algorithm, each direction is compared outside the fault ``windows``. For the bound,
    only steps that lie wholly between two samples of the counters count, so that a late first or an early last sample
    cannot make a good job look bad. ``mtu`` is by link, 1500 where a link is missing. ``twin`` is that of
    the logs unless it is given. ``exchanges``: what the ranks recorded of exchanges with a server, which decides how
    often these happened (``Twin.as_recorded``); that all of it was taken up is for the checkers.
    """
    logs = sorted(logs, key=lambda log: log.rank)
    jobs = [log.job for log in logs if log.job]
    twin = twin or twin_of(logs)
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    if (undecided := _incomparable(jobs, twin, tracks)) is not None:
        return undecided
    assert twin is not None
    first_t = max(track[0].t for track in tracks.values())
    last_t = min(track[-1].t for track in tracks.values())
    steps = _steps_between(logs, first_t, last_t)
    if not steps:
        return WireVerdict(
            None, "The bytes were not checked: no step lies between two samples of the fibers' counters."
        )
    whole = [
        load
        for attempt in attempt_loads(twin, logs, windows, exchanges).values()
        for load in attempt.loads
        if first_t <= load.begin_t and load.crossed_t <= last_t
    ]
    cuts = tuple(_cut(toward, tracks, whole, mtu or {}) for toward in dict.fromkeys(job.site for job in jobs))
    directions = compare(topology, logs, fibers, windows, twin, exchanges) if topology else ()
    by_bound = not directions or not all(cut.ok for cut in cuts)
    ok, sentence = (
        _by_bound(cuts, steps, twin, jobs[0].algorithm)
        if by_bound
        else (all(direction.ok for direction in directions), _compared(directions, f"{twin.name} moves with gloo"))
    )
    return WireVerdict(
        ok=ok,
        sentence=sentence,
        steps=steps,
        cuts=cuts,
        expected_bytes=sum(cut.expected_bytes for cut in cuts),
        minimum_bytes=sum(cut.minimum_bytes for cut in cuts),
        measured_bytes=sum(cut.measured_bytes for cut in cuts),
        algorithm=jobs[0].algorithm,
        compared_with="" if ok is None else "bound" if by_bound else "algorithm",
        directions=directions,
    )


def _incomparable(
    jobs: Sequence[JobRecord], twin: Twin | None, tracks: Mapping[str, Sequence[FiberSample]]
) -> WireVerdict | None:
    """Return the verdict on a job whose bytes cannot be compared, or need not be; None if they can."""
    if not jobs:
        return WireVerdict(None, "No rank recorded a job, so there is nothing to compare the fibers' counters with.")
    if len(jobs) < jobs[0].world_size:
        return WireVerdict(
            None, f"The bytes were not checked: only {len(jobs)} of {jobs[0].world_size} ranks recorded a job."
        )
    if twin is None:
        return WireVerdict(
            None, "The bytes were not checked: what this job exchanges, or the size of its model, is unknown."
        )
    sites = {job.site for job in jobs}
    if len(sites) < 2:
        return WireVerdict(True, "All ranks are at one site: nothing had to cross a fiber.")
    missing = sorted(site for site in sites if not any(track[0].toward == site for track in tracks.values()))
    if missing:
        return WireVerdict(
            None, f"The bytes were not checked: the fibers toward {' and '.join(missing)} were never sampled."
        )
    return None


def _cut(
    toward: str, tracks: Mapping[str, Sequence[FiberSample]], loads: Sequence[WireLoad], mtu: Mapping[str, int]
) -> WireCut:
    """Return the bytes that crossed toward a site, and those that had to."""
    wire = 0
    payload = 0.0
    for direction, track in tracks.items():
        if track[0].toward != toward:
            continue
        moved = _increase(track)
        frame = mtu.get(link_of(direction), 1500) + 14
        wire += moved
        payload += moved * (frame - HEADERS) / frame
    expected = sum(count for load in loads for (_, there), count in load.moved.items() if there == toward)
    minimum = sum(load.least.get(toward, 0.0) for load in loads)
    return WireCut(toward, expected, minimum, payload, wire)


def _by_bound(cuts: Sequence[WireCut], steps: int, twin: Twin, algorithm: str) -> tuple[bool | None, str]:
    """Judge by the least bytes that any algorithm must move: (whether they crossed, sentence)."""
    ok = all(cut.ok for cut in cuts)
    if ok and not any(cut.minimum_bytes for cut in cuts):
        return None, (
            f"The bytes were not checked: no exchange of {twin.name} between sites lies between two samples of the"
            " fibers' counters."
        )
    why = (
        "the algorithm of the exchanges is unknown"
        if algorithm != RING
        else f"fewer than {LEAST_STEPS} calm steps, or no calm exchange, were sampled, or the routes are unknown"
    )
    return ok, _sentence(cuts, steps, why)


def _steps_between(logs: Sequence[RankLog], first_t: float, last_t: float) -> int:
    """Return the number of steps that all ranks did wholly between two times, lost ones included: they crossed too."""
    counts = [
        Counter(record.attempt for record in log.steps if record.t_begin >= first_t and record.t_end <= last_t)
        for log in logs
        if log.job
    ]
    return sum(min(count[attempt] for count in counts) for attempt in counts[0])


def _increase(track: Sequence[FiberSample]) -> int:
    """Return the bytes between the first sample and the last; a restarted emulator counts from zero."""
    total = 0
    for before, after in pairwise(track):
        total += after.byte_count - before.byte_count if after.byte_count >= before.byte_count else after.byte_count
    return total


def _compared(directions: Sequence[DirectionBytes], moves: str) -> str:
    """Return the sentence about the directions, with the one that is worst if any is outside the tolerance.

    ``moves``: who moves the bytes, as in ``ddp moves with gloo``.
    """
    steps = round(max(direction.steps for direction in directions))
    if few := [direction for direction in directions if direction.too_few]:
        worst = min(few, key=lambda direction: direction.ratio or 0.0)
        return (
            f"A collective bypassed the fiber: {_bytes(worst.measured_bytes)} crossed {worst.direction} in {steps} calm"
            f" steps, {worst.ratio or 0:.3f} of the {_bytes(worst.expected_bytes)} that {moves}."
        )
    if many := [direction for direction in directions if direction.too_many]:
        worst = max(many, key=lambda direction: direction.measured_bytes - direction.expected_bytes)
        return (
            f"{EXCESS} crossed the fiber: {_bytes(worst.measured_bytes)} on {worst.direction} in {steps} calm steps,"
            f" of which the job accounts for {_bytes(worst.expected_bytes)}: what {moves}."
        )
    used = [direction for direction in directions if direction.ratio is not None]
    ratios = ", ".join(f"{direction.ratio:.3f} on {direction.direction}" for direction in used[:_MOST_NAMED])
    unnamed = f" and {len(used) - _MOST_NAMED} more" if len(used) > _MOST_NAMED else ""
    carried = f"The fibers carried what {moves}: in {steps} calm steps {ratios}{unnamed} of its payload"
    far = max(used, key=lambda direction: abs((direction.ratio or 0.0) - 1.0), default=None)
    if far is None or far.ratio is None or abs(far.ratio - 1.0) <= TOLERANCE:
        return f"{carried}, each within {TOLERANCE:.0%}."
    least, most = far.accepted
    return (
        f"{carried}. On {far.direction} {least:.3f} to {most:.3f} is accepted: exchanges that the samples cut in two,"
        " that a fault held back, or that depend on the sites' paces may have crossed or not, and acknowledgements of"
        " packets out of order count."
    )


def _line(compared: DirectionBytes) -> str:
    resent = f", {_bytes(compared.retransmitted_bytes)} retransmitted" if compared.retransmitted_bytes else ""
    ratio = f", ratio {compared.ratio:.3f}" if compared.ratio is not None else ""
    word = "too few" if compared.too_few else "too many" if compared.too_many else "ok"
    measured, expected = _bytes(compared.measured_bytes), _bytes(compared.expected_bytes)
    return (
        f"{compared.direction}: {measured} of payload, expected {expected}"
        f" in {compared.steps:.1f} calm steps{ratio}{resent}: {word}"
    )


_MOST_NAMED = 4


def _sentence(cuts: Sequence[WireCut], steps: int, why: str) -> str:
    bad = [cut for cut in cuts if not cut.ok]
    if bad:
        worst = min(bad, key=lambda cut: cut.measured_bytes / cut.minimum_bytes)
        return (
            f"A collective bypassed the fiber: {_bytes(worst.measured_bytes)} crossed toward {worst.toward} in"
            f" {steps} steps, expected at least {_bytes(worst.minimum_bytes)} from any correct implementation."
        )
    parts = ", ".join(
        f"{_bytes(cut.measured_bytes)} toward {cut.toward} (minimum {_bytes(cut.minimum_bytes)}, gloo"
        f" {_bytes(cut.expected_bytes)})"
        for cut in cuts
    )
    counted = f"{steps} step{'' if steps == 1 else 's'}"
    return f"At least the bound crossed the fiber: in {counted} {parts}. It is only a bound, because {why}."


def _bytes(count: float) -> str:
    if count < 0:
        return f"-{_bytes(-count)}"
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 1000 * factor else f"{count / factor:.0f} {unit}"
    return f"{count:.0f} B"
