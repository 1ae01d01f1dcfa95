"""Simulate cycles until they repeat."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from oracles.predicted_step.events import Process
from oracles.predicted_step.job import Job, Lane, Rules, Step
from oracles.predicted_step.served import async_diloco, decoupled, fragments_of, pushes_every
from oracles.predicted_step.simulation import Simulation
from oracles.predicted_step.split_models import moe, pipeline, tensor
from oracles.predicted_step.strategies import (
    ddp,
    diloco,
    fsdp,
    hierarchical,
    hsdp,
    multi_tier,
    sparse_loco,
    streaming,
    torchft,
)

STEPS: dict[str, Callable[[Simulation, int, int], Process]] = {
    "ddp": ddp,
    "hierarchical": hierarchical,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "local-sgd": diloco,
    "diloco": diloco,
    "sparse-loco": sparse_loco,
    "streaming-diloco": streaming,
    "torchft-diloco": torchft,
    "multi-tier": multi_tier,
    "async-diloco": async_diloco,
    "decoupled": decoupled,
    "pipeline": pipeline,
    "tensor": tensor,
    "moe": moe,
}
MOST_CYCLES, LONGEST_PERIOD = 64, 31


@dataclass
class Cycles:
    """What is known at the end of each cycle of each site; bits and state at those of the fastest site."""

    ends_s: list[list[float]]
    sent_bytes: list[dict[Lane, float]] = field(default_factory=lambda: [{}])
    states: list[list[float]] = field(default_factory=lambda: [[]])

    def are_over(self, count: int) -> bool:
        return all(len(ends_s) > count for ends_s in self.ends_s)

    def repeat(self, count: int, period: int, alike: bool) -> bool:
        """Return whether the last of ``count`` cycles are as those before them, and with ``alike`` at all sites."""
        first, middle = count - 2 * period, count - period
        for before, after in zip(self.states[first : middle + 1], self.states[middle : count + 1], strict=True):
            if len(before) != len(after) or not all(map(equal, before, after)):
                return False
        begun, half, sent = self.sent_bytes[first], self.sent_bytes[middle], self.sent_bytes[count]
        if not all(equal(sent[lane] - half.get(lane, 0), half.get(lane, 0) - begun.get(lane, 0)) for lane in sent):
            return False
        for ends_s in self.ends_s:
            lengths_s = [end_s - begin_s for begin_s, end_s in itertools.pairwise(ends_s[first : count + 1])]
            if not all(map(equal, lengths_s[:period], lengths_s[period:])):
                return False
        taken_s = [ends_s[count] - ends_s[middle] for ends_s in self.ends_s]
        return not alike or equal(min(taken_s), max(taken_s))


def equal(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-9)


def predict(job: Job, rules: Rules | None = None) -> Step:
    """Return a mean step of a job."""
    sim = Simulation(job, rules or Rules())
    cycle = math.lcm(*(job.options.get(name, 1) for name in ("every", "every_regions", "accumulate")))
    fastest = sim.speeds.index(max(sim.speeds))
    cycles = Cycles([[0.0] for _ in sim.sites])
    began_s = [0.0 for _ in sim.sites]

    def state() -> list[float]:
        now_s = sim.clock.now
        values = [max(0.0, free_s - now_s) for _, free_s in sorted(sim.free_at.items())]
        values.append(sim.under_way)
        if job.strategy == "decoupled":
            values += [now_s - time_s for time_s in began_s]
            for fragment, number in itertools.product(fragments_of(sim), sim.sites):
                values.append(fragment.pushed[number] - fragment.adopted[number])
                values.append(fragment.delivered[number] - fragment.merged[number])
        return values

    def site(number: int) -> Process:
        own_cycle = pushes_every(sim, number) if job.strategy == "async-diloco" else cycle
        for step in itertools.count(1):
            began_s[number] = sim.clock.now
            yield from STEPS[job.strategy](sim, number, step)
            if step % own_cycle == 0:
                cycles.ends_s[number].append(sim.clock.now)
                if number == fastest:
                    cycles.states.append(state())
                    cycles.sent_bytes.append(dict(sim.sent_bytes))

    def mean(first: int, last: int, steady: bool) -> Step:
        steps = cycle * (last - first)
        sent, before = cycles.sent_bytes[last], cycles.sent_bytes[first]
        bits = {lane: (size - before.get(lane, 0.0)) * 8 * job.scale / steps for lane, size in sent.items()}
        return Step((cycles.ends_s[fastest][last] - cycles.ends_s[fastest][first]) / steps, bits, steady)

    for number in sim.sites:
        sim.clock.start(site(number))
    for count in range(2, MOST_CYCLES + 1):
        sim.clock.run_until(functools.partial(cycles.are_over, count))
        for period in range(1, min(LONGEST_PERIOD, count // 2) + 1):
            if cycles.repeat(count, period, job.strategy != "decoupled"):
                return mean(count - period, count, steady=True)
    return mean(MOST_CYCLES // 2, MOST_CYCLES, steady=False)
