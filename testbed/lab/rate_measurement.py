"""Measure the rates of all directions by packet trains, side by side, again where the prober was starved.

A train is *starved* if its queue ran empty before it was through: its prober had no CPU to fill it, so it is too slow.
The emulator's counters prove it, and how much other traffic crossed the fiber meanwhile; they decide nothing else: the
rate is bytes over the time between the kernel's receive stamps at the far gateway. Both explain a rate that is too low,
and nothing is held against one that is right.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.certification.dispersion import rate_bps, slopes_bps
from testbed.core.certification.link_certificate import RATE_TOLERANCE
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment
from testbed.core.topology.model import Link, Topology
from testbed.core.units import format_rate
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.scheduling import realtime_priority
from testbed.host.measure.packet_trains import CAPACITY_BPS
from testbed.host.measure.probing import Probe
from testbed.host.measure.rate_trains import SHORTEST, Passage, Train, send_trains
from testbed.lab import emulator_counters
from testbed.lab.emulator_counters import Counters
from testbed.lab.starvation import tries

__all__ = ["RateSample", "longest_s", "measure_rates", "starved_why"]

MOST_TRAIN_S: Final = 0.02
"""Duration of one train on the wire; shorter where the queue holds less, as its packets must all fit."""
LEAST_S: Final = 0.008
MOST_S: Final = 0.03
"""Duration of all trains of a direction together."""
ALL_S: Final = 1.2
"""Duration of the trains of all directions, of which CAPACITY_BPS are measured at a time."""
MOST_TRAINS: Final = 20
SHARE_OF_QUEUE: Final = 0.8
MOST_TRAIN_BYTES: Final = 20_000_000
"""Enough to expose a rate that no computer forwards; 20 ms at 800 Gb/s are 2 GB, which would take a second."""
JITTERS_OF_TRAIN: Final = 40
"""Duration of a train in units of its path's jitter."""
SETTLING_JITTERS: Final = 4.0
"""The latest a jittered packet is, in units of the jitter."""

MOST_LOSS: Final = 0.75
"""Loss above which what is left of a train may not fill the queue, however fast it is sent."""

LEAST_FED_SHARE: Final = 0.25
"""Share of a train that must still be queued when its last packet was handed over: so much left without a gap."""
LATE_S: Final = 200e-6
LATE_SHARE: Final = 0.2
"""An emulator that sends a larger share of the packets later than this was short of CPU itself."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RateSample:
    """The rate of one direction in bit/s, as :class:`~testbed.core.certification.judge.DirectionSample` has it.

    ``why`` says why no train was sent; ``starved`` what proves that the latest of ``tries`` was starved. ``beside`` is
    the other traffic that crossed meanwhile, in bytes over those of the trains.
    """

    bps: float | None = None
    slack: float = 0.0
    tries: int = 1
    starved: str = ""
    why: str = ""
    beside: float = 0.0


@dataclass(frozen=True)
class _Plan:
    """How the rate of one direction is measured: ``count`` times this train."""

    name: str
    train: Train
    count: int
    slack: float
    target: Impairment

    @property
    def edge_s(self) -> float:
        """How long the jitter takes to settle at either end of a train."""
        below = DISTRIBUTIONS.get(self.target.jitter_distribution, SETTLING_JITTERS)
        return (below + SETTLING_JITTERS) * self.target.jitter_s

    @property
    def seen(self) -> float:
        """Share of the packets that are counted: those whose checksum a flipped bit fails only take time."""
        return 1.0 - self.target.corrupt if self.target.corrupt_survives else 1.0


def measure_rates(
    lab: LabFolder,
    topology: Topology,
    probes: Mapping[str, Probe],
    reached: Collection[str],
    longest_train_s: float,
    tell: Tell,
) -> dict[str, RateSample]:
    """Return a sample for each direction with a limited rate; ``reached`` are those over which any packet came.

    ``longest_train_s`` bounds a single train. A starved direction is measured again; the judge holds that
    against no rate that is right.
    """
    found: dict[str, RateSample] = {}
    plans: list[_Plan] = []
    limited = [(link, name) for link in topology.links for name in link.directions if link.impairment(name).rate_bps]
    load = sum(min(CAPACITY_BPS, link.impairment(name).rate_bps) for link, name in limited)
    for link, name in limited:
        if name not in reached:
            found[name] = RateSample(why="rate: no probe came through, so no packet train was sent")
            continue
        share_s = min(MOST_S, max(LEAST_S, ALL_S * CAPACITY_BPS / load))
        plan = _plan(link, name, probes[name], share_s, longest_train_s)
        if isinstance(plan, str):
            found[name] = RateSample(why=plan)
        else:
            plans.append(plan)
    if not plans:
        return found
    for attempt in tries(tell):
        together_s = sum(plan.count * plan.train.lasts_s * plan.train.load_bps for plan in plans) / CAPACITY_BPS
        what = f"rate of {len(plans)} directions" + (", starved before" if attempt > 1 else "")
        tell(f"{what}, about {together_s:.1f} s")
        samples = _measure(lab, plans, attempt)
        found |= samples
        plans = [plan for plan in plans if samples[plan.name].starved]
        if not plans:
            break
    return found


def _plan(link: Link, name: str, probe: Probe, share_s: float, longest_train_s: float) -> _Plan | str:
    """Return how to measure a direction, or why that would take too long."""
    target = link.impairment(name)
    if target.mean_loss > MOST_LOSS:
        return f"rate: with {target.mean_loss:.0%} of its packets lost, no train fills the queue"
    frame_bits = 8 * (link.mtu + 14 + target.overhead_bytes)
    shortest_s = SHORTEST * frame_bits / target.rate_bps
    if shortest_s > longest_train_s:
        return (
            f"rate: {SHORTEST} packets take {shortest_s:.3g} s, longer than this certificate allows;"
            " --thorough allows more"
        )
    wanted_s = max(MOST_TRAIN_S, JITTERS_OF_TRAIN * target.jitter_s)
    share_s = max(share_s, JITTERS_OF_TRAIN * target.jitter_s)
    queue_s = SHARE_OF_QUEUE * 8 * target.queue_bytes / target.rate_bps or math.inf
    train_s = max(shortest_s, min(wanted_s, share_s, longest_train_s, queue_s))
    wire_bytes = min(MOST_TRAIN_BYTES, target.rate_bps * train_s / 8)
    count = max(1, min(MOST_TRAINS, math.ceil(share_s / train_s - 0.5)))
    train = Train(
        probe,
        link.mtu,
        max(SHORTEST, int(8 * wire_bytes / frame_bits)),
        target.rate_bps,
        longest_s(target),
        target.overhead_bytes,
        alone=bool(target.jitter_s),
    )
    return _Plan(name, train, count, SETTLING_JITTERS * target.jitter_s / train_s / math.sqrt(count), target)


def _measure(lab: LabFolder, plans: Sequence[_Plan], attempt: int) -> dict[str, RateSample]:
    """Send the trains of all plans, interleaved, and judge by the counters which of them were starved."""
    order = [plan for turn in range(max(it.count for it in plans)) for plan in plans if turn < plan.count]
    before = emulator_counters.read(lab)
    counts = all(it.emptied is not None for it in before.values())

    def queued(number: int) -> float:
        """Return what is queued in bytes; where the emulator delays packets before it queues them, when they are."""
        plan = order[number]
        time.sleep(plan.train.longest_s)
        return emulator_counters.read(lab)[plan.name].queued_bytes

    with realtime_priority(wanted=counts):
        passages = send_trains([plan.train for plan in order], None if counts else queued)
    after = emulator_counters.read(lab)
    return {
        plan.name: _sample(
            plan,
            [passage for each, passage in zip(order, passages, strict=True) if each is plan],
            before[plan.name],
            after[plan.name],
            attempt,
        )
        for plan in plans
    }


def _sample(plan: _Plan, passages: Sequence[Passage], before: Counters, after: Counters, attempt: int) -> RateSample:
    slopes: list[float] = []
    packets, beside = _others(plan, before, after)
    why = starved_why(plan.count + packets, before, after)
    for passage in passages:
        last_bits = None
        if passage.queued_bytes is not None:
            last_bits = passage.queued_bytes / (plan.train.mtu + 14) * plan.train.frame_bits
            if last_bits < LEAST_FED_SHARE * plan.train.count * plan.train.frame_bits:
                why = why or "the queue ran empty before the train was through"
                last_bits = None
        slopes += slopes_bps(passage.arrivals, plan.edge_s, last_bits)
    if why and passages:
        slowest = min(passage.handed_bps for passage in passages)
        why += f", packets were handed over at {format_rate(slowest, 3)} and more"
    measured = rate_bps(slopes)
    if before.emptied is None and measured is not None:
        # netem proves no gap, only that there may be one: a train that is not too slow had none that matters.
        off = abs(measured / plan.seen / plan.target.rate_bps - 1.0)
        why = "" if off <= RATE_TOLERANCE else why
    return RateSample(
        bps=None if measured is None else measured / plan.seen,
        slack=plan.slack,
        tries=attempt,
        starved=why if measured is not None else "",
        beside=beside,
    )


def _others(plan: _Plan, before: Counters, after: Counters) -> tuple[int, float]:
    """Return the packets of others that entered the fiber between these counters, and their bytes over the trains'."""
    sent, frame = plan.count * plan.train.count, plan.train.mtu + 14
    dropped = after.dropped - before.dropped
    if before.duplicated is None or after.duplicated is None:
        twice = plan.target.duplicate * sent
    else:
        twice = after.duplicated - before.duplicated
    packets = after.segments - before.segments + dropped - twice - sent
    more_bytes = after.bytes - before.bytes + (dropped - twice - sent) * frame
    return max(0, round(packets)), max(0.0, more_bytes / (sent * frame))


def starved_why(may_find_empty: int, before: Counters, after: Counters) -> str:
    """Return why trains between these counters were starved; empty if nothing proves it.

    The first packet of a train finds the queue empty, and so may each packet of other traffic: ``may_find_empty``
    together. Any other packet that does has a gap before it.
    """
    if before.emptied is not None and after.emptied is not None and after.emptied - before.emptied > may_find_empty:
        gaps = after.emptied - before.emptied - may_find_empty
        return f"the queue ran empty {gaps} times before the train was through"
    if emulator_counters.late_share(before, after, LATE_S) > LATE_SHARE:
        return f"the emulator sent more than {LATE_SHARE:.0%} of the packets {LATE_S * 1e6:.0f} us late"
    return ""


def longest_s(impairment: Impairment) -> float:
    """Return the longest delay of a packet in seconds, without queueing."""
    late = DISTRIBUTIONS.get(impairment.jitter_distribution, 4.0) if impairment.jitter_s else 0.0
    return impairment.delay_s + max(4.0, late) * impairment.jitter_s + impairment.reorder_by_s
