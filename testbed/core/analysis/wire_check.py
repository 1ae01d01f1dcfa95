"""Check that the bytes which the job must have moved crossed the fiber.

Every all-reduce of n bytes, however it is implemented, needs at least n bytes into each site that holds ranks while
other sites hold ranks too: the contribution of the others must arrive, and a sum of n bytes cannot be sent in fewer. A
ring over the rank order carries 2 (W - 1) / W x n over each of its hops (Patarasuk and Yuan 2009, "Bandwidth optimal
all-reduce algorithms"), which is the expected value. Less than the minimum means that a collective bypassed the fiber.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.core.records.rank_log import RankLog
from testbed.core.records.samples import FiberSample

__all__ = ["WireCut", "WireVerdict", "check", "ring_bytes_per_step"]

_HEADERS = 14 + 20 + 32
"""Bytes around the payload of a full TCP segment: Ethernet, IPv4, TCP with timestamps."""

_SLACK = 0.05
"""How far below the minimum the estimate may fall: acknowledgements and short segments blur payload per wire byte."""


@dataclass(frozen=True)
class WireCut:
    """Payload that entered one site over all of its fibers; ``wire_bytes`` is the value of the counters (L2)."""

    toward: str
    expected_bytes: float
    minimum_bytes: float
    measured_bytes: float
    wire_bytes: int

    @property
    def ok(self) -> bool:
        return self.measured_bytes >= (1.0 - _SLACK) * self.minimum_bytes


@dataclass(frozen=True)
class WireVerdict:
    """``ok`` is None when unknown; the byte counts are sums over ``cuts``, for the ``steps`` compared."""

    ok: bool | None
    sentence: str
    steps: int = 0
    cuts: tuple[WireCut, ...] = ()
    expected_bytes: float = 0.0
    minimum_bytes: float = 0.0
    measured_bytes: float = 0.0


def ring_bytes_per_step(site_of_rank: Sequence[str], toward: str, gradient_bytes: float) -> float:
    """Return the payload that a ring all-reduce over the rank order carries into ``toward`` in one step, in bytes."""
    world = len(site_of_rank)
    hops = sum(
        1 for rank, site in enumerate(site_of_rank) if site != toward and site_of_rank[(rank + 1) % world] == toward
    )
    return hops * 2.0 * (world - 1) / world * gradient_bytes


def check(logs: Sequence[RankLog], fibers: Sequence[FiberSample], mtu: Mapping[str, int] | None = None) -> WireVerdict:
    """Compare the job's steps with the fibers' counters.

    Only steps that lie wholly between two samples of the counters count, so that a late first or an early last sample
    cannot make a good job look bad. ``mtu`` is by link, 1500 where a link is missing.
    """
    jobs = [log.job for log in sorted(logs, key=lambda log: log.rank) if log.job]
    if not jobs:
        return WireVerdict(None, "No rank recorded a job, so there is nothing to compare the fibers' counters with.")
    gradient = jobs[0].gradient_bytes
    if gradient is None or jobs[0].scheme != "ddp":
        return WireVerdict(None, "The bytes were not checked: the gradient size of this job is unknown.")
    if len(jobs) < jobs[0].world_size:
        return WireVerdict(
            None, f"The bytes were not checked: only {len(jobs)} of {jobs[0].world_size} ranks recorded a job."
        )
    sites = [job.site for job in jobs]
    if len(set(sites)) < 2:
        return WireVerdict(True, "All ranks are at one site: nothing had to cross a fiber.")
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    missing = sorted(site for site in set(sites) if not any(track[0].toward == site for track in tracks.values()))
    if missing:
        return WireVerdict(
            None, f"The bytes were not checked: the fibers toward {' and '.join(missing)} were never sampled."
        )
    first_t = max(track[0].t for track in tracks.values())
    last_t = min(track[-1].t for track in tracks.values())
    steps = _steps_between(logs, first_t, last_t)
    if not steps:
        return WireVerdict(
            None, "The bytes were not checked: no step lies between two samples of the fibers' counters."
        )
    cuts = []
    for toward in dict.fromkeys(sites):
        wire = 0
        payload = 0.0
        for direction, track in tracks.items():
            if track[0].toward != toward:
                continue
            moved = _increase(track)
            frame = (mtu or {}).get(direction.partition(":")[0], 1500) + 14
            wire += moved
            payload += moved * (frame - _HEADERS) / frame
        expected = steps * ring_bytes_per_step(sites, toward, gradient)
        cuts.append(WireCut(toward, expected, steps * float(gradient), payload, wire))
    return WireVerdict(
        ok=all(cut.ok for cut in cuts),
        sentence=_sentence(cuts, steps),
        steps=steps,
        cuts=tuple(cuts),
        expected_bytes=sum(cut.expected_bytes for cut in cuts),
        minimum_bytes=sum(cut.minimum_bytes for cut in cuts),
        measured_bytes=sum(cut.measured_bytes for cut in cuts),
    )


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


def _sentence(cuts: Sequence[WireCut], steps: int) -> str:
    bad = [cut for cut in cuts if not cut.ok]
    if bad:
        worst = min(bad, key=lambda cut: cut.measured_bytes / cut.minimum_bytes)
        return (
            f"A collective bypassed the fiber: {_bytes(worst.measured_bytes)} crossed toward {worst.toward} in"
            f" {steps} steps, expected at least {_bytes(worst.minimum_bytes)} from any correct all-reduce."
        )
    parts = ", ".join(
        f"{_bytes(cut.measured_bytes)} toward {cut.toward} (minimum {_bytes(cut.minimum_bytes)}, a ring"
        f" {_bytes(cut.expected_bytes)})"
        for cut in cuts
    )
    return f"The gradients crossed the fiber: in {steps} steps {parts}."


def _bytes(count: float) -> str:
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 1000 * factor else f"{count / factor:.0f} {unit}"
    return f"{count:.0f} B"
