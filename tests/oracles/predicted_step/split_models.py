"""Steps of pipeline, tensor and moe, whose ranks hold parts of a GPT."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oracles.predicted_step.events import Process, Signal
from oracles.predicted_step.job import Job
from oracles.predicted_step.operations import beside
from oracles.predicted_step.simulation import Simulation
from oracles.predicted_step.strategies import tensors

TOKENS = 256
"""Of a rank and step, in windows of 64."""
AGENTS_WIDTH = 96
"""Of the model that the agents train."""


def pipeline(sim: Simulation, site: int, step: int) -> Process:
    options, stages = sim.job.options, len(sim.sites)
    batches, in_flight = options.get("micro_batches", 4), options.get("in_flight", 0)
    behind = stages - 1 - site
    limit = batches
    if options.get("schedule", "1f1b") == "1f1b" and in_flight:
        limit = 1 + math.ceil((in_flight - 1) * behind / (stages - 1)) + sim.rules.in_flight_more
    size = 4 * TOKENS * stages / batches * AGENTS_WIDTH * sim.rules.token_values
    forward = backward = 0
    while backward < batches:
        if forward < batches and forward - backward < limit:
            if site > 0:
                yield message(sim, step, site - 1, site, forward)
            yield sim.compute_s(site) / 3 / batches
            if behind:
                send(sim, size, site, site + 1).then(message(sim, step, site, site + 1, forward).fire)
            forward += 1
        else:
            if behind:
                yield message(sim, step, site + 1, site, backward)
            yield 2 * sim.compute_s(site) / 3 / batches
            if site > 0:
                arrived = message(sim, step, site, site - 1, backward)
                if sim.rules.backward_turn < 0:
                    send(sim, size, site, site - 1).then(arrived.fire)
                else:
                    send(sim, size, site - 1, site).then(arrived.fire)
            backward += 1
    layers = sim.job.layers // stages
    values = sum(sum(layer) for layer in tensors(sim)[site * layers : (site + 1) * layers])
    yield sim.in_site(site, "all_reduce", 4 * values)


def message(sim: Simulation, step: int, sender: int, receiver: int, batch: int) -> Signal:
    signal: Signal = sim.kept.setdefault((step, sender, receiver, batch), Signal())
    return signal


def send(sim: Simulation, size: float, sender: int, receiver: int) -> Signal:
    return sim.exchange("messages", sim.messages([(sender, receiver)], size))


@dataclass(frozen=True)
class Gpt:
    """Values of a GPT whose heads have 128 values, with 256 tokens of vocabulary and 64 positions."""

    width: int
    layers: int

    @classmethod
    def of(cls, job: Job) -> Gpt:
        heads = math.sqrt(job.parameters / 12 / job.layers) / 128
        return cls(128 * (16 * round(heads / 16) if heads > 16 else max(1, round(heads))), job.layers)

    @property
    def values(self) -> int:
        return 12 * self.layers * self.width**2 + (13 * self.layers + 322) * self.width

    @property
    def unsplit(self) -> int:
        """Embedding, positions, norms, and the biases behind a sum over ranks."""
        return (6 * self.layers + 322) * self.width

    @property
    def perceptrons(self) -> int:
        return self.layers * (8 * self.width**2 + 5 * self.width)


def tensor(sim: Simulation, site: int, step: int) -> Process:
    gpt, scale, is_across = Gpt.of(sim.job), sim.job.scale, sim.job.options.get("across", False)
    ranks = len(sim.sites) if is_across else sim.slices
    shard = 4 * (gpt.values - gpt.unsplit) / ranks / scale
    unsplit = 4 * gpt.unsplit / scale
    activations = 4 * TOKENS * ranks * gpt.width * sim.rules.token_values / scale
    yield sim.compute_s(site)
    for kind, size, times in (
        ("all_gather", 8 * TOKENS * ranks / scale, 1),
        ("all_reduce", activations, 4 * gpt.layers),
    ):
        if is_across:
            operation = beside([sim.network.operation(kind, sim.sites, size)] * sim.slices)
            yield sim.begin(site, "across", sim.sites, operation.repeated(times))
        elif ranks > 1:
            operation = sim.network.operation(kind, [site] * ranks, size)
            yield sim.begin(site, ("site", site), [site], operation.repeated(times))
    if is_across:
        yield sim.in_site(site, "all_reduce", shard + unsplit)
    else:
        total = sim.network.sum(sim.sites, sim.slices, shard + unsplit / ranks)
        yield sim.begin(site, "across", sim.sites, total)
        yield sim.in_site(site, "all_gather", unsplit)


def moe(sim: Simulation, site: int, step: int) -> Process:
    options, gpt, scale = sim.job.options, Gpt.of(sim.job), sim.job.scale
    inside = options.get("experts", "all") == "site"
    group = [site] * sim.slices if inside else sim.all_ranks
    experts = len(group)
    taken = math.ceil(options.get("capacity", 1.0) * options.get("top_k", 1) * TOKENS / experts)
    tokens = 4 * taken * experts * gpt.width * sim.rules.token_values / scale
    others = 4 * (gpt.values - gpt.perceptrons + gpt.layers * experts * gpt.width) / scale
    yield sim.compute_s(site)
    if experts > 1:
        operation = sim.network.operation("all_to_all", group, tokens).repeated(4 * gpt.layers)
        name, sites = (("tokens", site), [site]) if inside else ("tokens", sim.sites)
        yield sim.begin(site, name, sites, operation)
    yield sim.in_site(site, "reduce_scatter", others)
    yield sim.begin(site, "across", sim.sites, sim.network.sum(sim.sites, sim.slices, others / sim.slices))
    yield sim.in_site(site, "all_gather", others)
    if inside:
        total = sim.network.sum(sim.sites, sim.slices, 4 * gpt.perceptrons / scale)
        yield sim.begin(site, "across", sim.sites, total)
