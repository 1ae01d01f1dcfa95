"""Measure the rates of all directions by packet trains, side by side; repeat if the host delayed too many packets.

The rate is bytes over the time between the kernel's receive stamps, at the far gateway, of two packets that were on
time (``core/certification/dispersion.py``). The emulator's counters give the other traffic on the fiber, which explains
a rate that is too low.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from testbed.core.certification.dispersion import FEWEST_PAIRS, TrainArrival, pair_rates_bps, rate_bps
from testbed.core.certification.host_log import HostLog
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment
from testbed.core.topology.model import Link, Topology
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.scheduling import realtime_priority
from testbed.host.measure.packet_trains import CAPACITY_BPS
from testbed.host.measure.probing import Probe
from testbed.host.measure.rate_trains import SHORTEST, Passage, Train, send_trains
from testbed.lab.packet_log import Counters, PacketLog, monotonic_offset_s, read_counters, tries

__all__ = ["RateSample", "TrainPlan", "bytes_beside", "longest_s", "measure_rates", "rates_on_time", "sample_of"]

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

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RateSample:
    """The rate of one direction in bit/s, as :class:`~testbed.core.certification.judge.DirectionSample` has it.

    ``why`` is the reason that no train was sent, ``unmeasured`` the reason that the trains of all ``tries`` gave no
    rate. ``beside`` is the other traffic that crossed meanwhile, in bytes over those of the trains.
    """

    bps: float | None = None
    slack: float = 0.0
    tries: int = 1
    unmeasured: str = ""
    why: str = ""
    beside: float = 0.0


@dataclass(frozen=True)
class TrainPlan:
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

    ``longest_train_s`` bounds a single train. A direction without enough pairs of packets is measured again, and the
    pairs of all tries count.
    """
    samples: dict[str, RateSample] = {}
    plans: list[TrainPlan] = []
    limited = [(link, name) for link in topology.links for name in link.directions if link.impairment(name).rate_bps]
    load = sum(min(CAPACITY_BPS, link.impairment(name).rate_bps) for link, name in limited)
    for link, name in limited:
        if name not in reached:
            samples[name] = RateSample(why="rate: no probe arrived, so no packet train was sent")
            continue
        share_s = min(MOST_S, max(LEAST_S, ALL_S * CAPACITY_BPS / load))
        plan = _plan(link, name, probes[name], share_s, longest_train_s)
        if isinstance(plan, str):
            samples[name] = RateSample(why=plan)
        else:
            plans.append(plan)
    if not plans:
        return samples
    pairs: dict[str, list[float]] = {plan.name: [] for plan in plans}
    for attempt in tries(tell):
        together_s = sum(plan.count * plan.train.lasts_s * plan.train.load_bps for plan in plans) / CAPACITY_BPS
        tell(f"rate of {len(plans)} directions{', again' if attempt > 1 else ''}, about {together_s:.1f} s")
        rates, beside = _measure(lab, plans)
        for plan in plans:
            pairs[plan.name] += rates[plan.name]
            samples[plan.name] = sample_of(plan, pairs[plan.name], beside[plan.name], attempt)
        plans = [plan for plan in plans if samples[plan.name].bps is None]
        if not plans:
            break
    return samples


def sample_of(plan: TrainPlan, pairs: Sequence[float], beside: float, attempt: int) -> RateSample:
    measured = rate_bps(pairs)
    unmeasured = f"rate: {len(pairs)} pairs of packets were on time, expected {FEWEST_PAIRS} or more"
    return RateSample(
        bps=measured,
        slack=plan.slack,
        tries=attempt,
        unmeasured="" if measured is not None else unmeasured,
        beside=beside,
    )


def _plan(link: Link, name: str, probe: Probe, share_s: float, longest_train_s: float) -> TrainPlan | str:
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
    return TrainPlan(name, train, count, SETTLING_JITTERS * target.jitter_s / train_s / math.sqrt(count), target)


def _measure(lab: LabFolder, plans: Sequence[TrainPlan]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Send the trains of all plans, interleaved. Return the rates of their pairs of packets by direction, and the other
    traffic that crossed meanwhile, in bytes over those of the trains."""
    order = [plan for turn in range(max(plan.count for plan in plans)) for plan in plans if turn < plan.count]
    numbered: dict[str, int] = {}
    trains = []
    for plan in order:
        trains.append(replace(plan.train, first=plan.train.first + numbered.get(plan.name, 0)))
        numbered[plan.name] = numbered.get(plan.name, 0) + plan.train.count
    before = read_counters(lab)
    counts = all(counters.emptied is not None for counters in before.values())

    def queued(number: int) -> float:
        """Return what is queued in bytes; where the emulator delays packets before it queues them, when they are."""
        plan = order[number]
        time.sleep(plan.train.longest_s)
        return read_counters(lab)[plan.name].queued_bytes

    with PacketLog(lab) as packet_log:
        with realtime_priority(wanted=counts):
            passages = send_trains(trains, None if counts else queued)
        log = packet_log.read()
    after = read_counters(lab)
    rates: dict[str, list[float]] = {plan.name: [] for plan in plans}
    for plan, passage in zip(order, passages, strict=True):
        rates[plan.name] += rates_on_time(plan, [passage], log)
    return rates, {plan.name: bytes_beside(plan, before[plan.name], after[plan.name]) for plan in plans}


def rates_on_time(plan: TrainPlan, passages: Sequence[Passage], log: HostLog) -> Iterator[float]:
    """Yield the rates of all pairs of packets, in bit/s."""
    for passage in passages:
        last_bits = None
        if passage.queued_bytes is not None:
            # netem reports only the length of its queue at the end: that many bits passed without a gap.
            last_bits = passage.queued_bytes / (plan.train.mtu + 14) * plan.train.frame_bits
        began_t = passage.epoch_ns * 1e-9 + monotonic_offset_s()
        arrivals = (
            TrainArrival(at_s, bits, *log.is_on_time(plan.name, mark, began_t + at_s))
            for at_s, bits, mark in passage.arrivals
        )
        rates = pair_rates_bps(list(arrivals), plan.target.rate_bps, plan.edge_s, last_bits)
        yield from (rate / plan.seen for rate in rates)


def bytes_beside(plan: TrainPlan, before: Counters, after: Counters) -> float:
    """Return the bytes of others that entered the fiber between these counters, over the trains'."""
    sent, frame = plan.count * plan.train.count, plan.train.mtu + 14
    dropped = after.dropped - before.dropped
    if before.duplicated is None or after.duplicated is None:
        twice = plan.target.duplicate * sent
    else:
        twice = after.duplicated - before.duplicated
    more_bytes = after.bytes - before.bytes + (dropped - twice - sent) * frame
    return max(0.0, more_bytes / (sent * frame))


def longest_s(impairment: Impairment) -> float:
    """Return the longest delay of a packet in seconds, without queueing."""
    late = DISTRIBUTIONS.get(impairment.jitter_distribution, 4.0) if impairment.jitter_s else 0.0
    return impairment.delay_s + max(4.0, late) * impairment.jitter_s + impairment.reorder_by_s
