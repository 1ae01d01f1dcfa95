"""Steps of async-diloco and decoupled, whose sites exchange with a home site at their own paces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from oracles.predicted_step.events import Process, Signal
from oracles.predicted_step.operations import Operation
from oracles.predicted_step.simulation import Simulation
from oracles.predicted_step.strategies import coded_bytes, due, fragment_values


def home_of(sim: Simulation) -> int:
    home: int = sim.job.options.get("home", 0)
    return home


def sent_by(sim: Simulation, site: int, size: float) -> list[Operation]:
    """Return what sends slices of ``size`` bytes from a site to its home: nothing for the home site."""
    return [sim.messages([(site, home_of(sim))], size)] if site != home_of(sim) else []


def returned_to(sim: Simulation, site: int, size: float) -> list[Operation]:
    lane = (home_of(sim), site) if sim.rules.merges_return else (site, home_of(sim))
    return [sim.messages([lane], size)] if site != home_of(sim) else []


def moved(sim: Simulation, operations: Sequence[Operation]) -> Process:
    for operation in operations:
        yield sim.exchange("messages", operation)


# ---- async-diloco --------------------------------------------------------------------------------------------------


def pushes_every(sim: Simulation, site: int) -> int:
    """Return H of a site."""
    every: int = sim.job.options["every"]
    if sim.job.options.get("pace") != "time":
        return every
    return max(1, round(every * sim.speeds[site] / max(sim.speeds)))


def async_diloco(sim: Simulation, site: int, step: int) -> Process:
    count, every = len(sim.sites), pushes_every(sim, site)
    yield from sim.local_step(site)
    yield sim.in_site(site, "all_reduce", 16)
    if step % every:
        return
    push = step // every
    slice_bytes = 4 * math.ceil(sim.model_bytes / 4 / sim.slices)
    trip = moved(sim, [*sent_by(sim, site, slice_bytes), *returned_to(sim, site, slice_bytes)])
    sim.clock.start(trip).then(answer(sim, site, push).fire)
    staleness = sim.job.options.get("staleness") or 4 * count
    unanswered = (staleness + 1) // count - 1 + sim.rules.unanswered_more
    if push > unanswered:
        for other in sim.sites if sim.rules.waits_for_all_answers else [site]:
            yield answer(sim, other, push - unanswered)
    yield sim.gather(site, slice_bytes * sim.slices)


def answer(sim: Simulation, site: int, push: int) -> Signal:
    signal: Signal = sim.kept.setdefault(("answer", site, push), Signal())
    return signal


# ---- decoupled -----------------------------------------------------------------------------------------------------


@dataclass
class Fragment:
    """Pushes of each site: made, delivered, merged, and in what the site has adopted."""

    pushed: Counter[int] = field(default_factory=Counter)
    delivered: Counter[int] = field(default_factory=Counter)
    merged: Counter[int] = field(default_factory=Counter)
    adopted: Counter[int] = field(default_factory=Counter)
    arrived: dict[int, list[int]] = field(default_factory=dict)
    """Merges that a site has not adopted: how many of its pushes each contains."""
    grace: Signal | None = None
    """Of the merge that has begun; fires at its end."""


def fragments_of(sim: Simulation) -> list[Fragment]:
    count = sim.job.options.get("fragments", 1)
    fragments: list[Fragment] = sim.kept.setdefault("fragments", [Fragment() for _ in range(count)])
    return fragments


def decoupled(sim: Simulation, site: int, step: int) -> Process:
    fragments, pushes, every = fragments_of(sim), due(sim, step), sim.job.options["every"]
    slices = [math.ceil(values / sim.slices) for values in fragment_values(sim)]
    yield from sim.local_step(site)
    yield sim.in_site(site, "all_reduce", 8)
    for number in pushes:
        fragment = fragments[number]
        if fragment.pushed[site] - fragment.adopted[site] < sim.rules.unmerged_pushes:
            fragment.pushed[site] += 1
            sim.clock.start(delivered(sim, fragment, site, coded_bytes(sim, slices[number])))
    if not pushes and step % every % max(1, every // 50):
        return
    for number, fragment in enumerate(fragments):
        arrived = fragment.arrived.setdefault(site, [])
        while arrived:
            fragment.adopted[site] = arrived.pop(0)
            yield sim.gather(site, 4 * slices[number] * sim.slices)


def delivered(sim: Simulation, fragment: Fragment, site: int, size: float) -> Process:
    """Send a push; begin or end a merge when it has arrived."""
    yield from moved(sim, sent_by(sim, site, size))
    fragment.delivered[site] += 1
    count = len(sim.sites)
    ready = sum(fragment.delivered[other] > fragment.merged[other] for other in sim.sites)
    quorum = (sim.job.options.get("quorum") or count // 2 + 1) if sim.rules.merges_at_quorum else count
    if ready < quorum:
        return
    if not fragment.grace:
        fragment.grace = Signal()
        fragment.grace.then(lambda: merge(sim, fragment, size))
        sim.clock.at(sim.clock.now + sim.job.options.get("grace", 0.05), fragment.grace.fire)
    if ready == count:
        fragment.grace.fire()


def merge(sim: Simulation, fragment: Fragment, size: float) -> None:
    """Take every push that has arrived, and send the merge to all sites."""
    fragment.grace = None
    fragment.merged = Counter(fragment.delivered)
    for site in sim.sites:
        sim.clock.start(returned(sim, fragment, site, size, fragment.merged[site]))


def returned(sim: Simulation, fragment: Fragment, site: int, size: float, pushes: int) -> Process:
    yield from moved(sim, returned_to(sim, site, size))
    fragment.arrived.setdefault(site, []).append(pushes)
