"""Steps of the strategies whose sites exchange gradients or parameters as equals."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque

from oracles.predicted_step.events import Process, Signal
from oracles.predicted_step.operations import Operation, beside
from oracles.predicted_step.simulation import Simulation, in_order

BUCKET_BYTES = 25 << 20
BLOCK_VALUES = 4096


# ---- the model of the lab ------------------------------------------------------------------------------------------


def parts(total: int, count: int) -> list[int]:
    return [total // count + (number < total % count) for number in range(count)]


def tensors(sim: Simulation) -> list[list[int]]:
    """Return the values of the four tensors of each layer."""
    return [parts(layer, 4) for layer in parts(round(sim.job.parameters / sim.job.scale), sim.job.layers)]


def fragment_values(sim: Simulation) -> list[int]:
    """Return the values of each fragment: layer i is in fragment i mod P."""
    count = sim.job.options.get("fragments", 1)
    layers = [sum(layer) for layer in tensors(sim)]
    return [sum(layers[fragment::count]) for fragment in range(count)]


def due_offset(sim: Simulation, fragment: int) -> int:
    every: int = sim.job.options["every"]
    return math.floor(every * fragment / sim.job.options.get("fragments", 1) + 0.5) % every


def due(sim: Simulation, step: int) -> list[int]:
    """Return the fragments that are due after a step."""
    fragments = range(sim.job.options.get("fragments", 1))
    return [fragment for fragment in fragments if step % sim.job.options["every"] == due_offset(sim, fragment)]


def coded_bytes(sim: Simulation, values: int) -> int:
    """Return the bytes of values of ``bits``, with their scales."""
    bits = sim.job.options.get("bits", 32)
    scales = math.ceil(values / 256) if bits in (4, 8) else 0
    return math.ceil(values * bits / 8) + sim.rules.scale_bytes * scales


# ---- gradients in each step ----------------------------------------------------------------------------------------


def buckets(sim: Simulation) -> int:
    at_full_scale = math.ceil(4 * sim.job.parameters / BUCKET_BYTES)
    return sim.job.options.get("buckets") or max(1, min(4 * sim.job.layers, at_full_scale))


def accumulates(sim: Simulation, step: int) -> bool:
    return bool(step % sim.job.options.get("accumulate", 1))


def ddp(sim: Simulation, site: int, step: int) -> Process:
    if accumulates(sim, step):
        yield sim.compute_s(site)
        return
    size = sim.model_bytes * sim.job.options.get("bits", 32) / 32 / buckets(sim)
    operation = sim.network.operation("all_reduce", sim.all_ranks, size)
    yield from sim.passes(site, buckets(sim), [lambda: sim.begin(site, "all", sim.sites, operation)])


def hierarchical(sim: Simulation, site: int, step: int) -> Process:
    if accumulates(sim, step):
        yield sim.compute_s(site)
        return
    size = sim.model_bytes / buckets(sim)
    gathered = size * sim.job.ranks[site] / sim.slices
    first = "reduce_scatter" if len(set(sim.job.ranks)) == 1 else "all_reduce"
    slots = sim.rules.site_slots
    stages = [
        lambda: sim.in_site(site, first, size, name="first", slots=slots),
        *sim.across(site, size / sim.slices),
        lambda: sim.in_site(site, "all_gather", gathered, name="last", slots=slots),
    ]
    yield from sim.passes(site, buckets(sim), stages)


def padded_layers(sim: Simulation, ranks: int) -> Counter[int]:
    """Return how many layers have so many bytes, if each rank has an equal part of each tensor."""
    return Counter(sum(4 * ranks * math.ceil(values / ranks) for values in layer) for layer in tensors(sim))


def sharded(sim: Simulation, group: list[int]) -> list[Operation]:
    return [
        sim.network.operation(kind, group, size).repeated(times * layers)
        for kind, times in (("all_gather", 2), ("reduce_scatter", 1))
        for size, layers in padded_layers(sim, len(group)).items()
    ]


def fsdp(sim: Simulation, site: int, step: int) -> Process:
    yield sim.compute_s(site)
    for operation in sharded(sim, sim.all_ranks):
        yield sim.begin(site, "all", sim.sites, operation)


def hsdp(sim: Simulation, site: int, step: int) -> Process:
    yield sim.compute_s(site)
    ranks = sim.job.ranks[site]
    if ranks > 1:
        for operation in sharded(sim, [site] * ranks):
            yield sim.begin(site, ("site", site), [site], operation)
    for size, layers in padded_layers(sim, ranks).items():
        shards = beside([sim.network.operation("all_reduce", sim.sites, size / ranks)] * ranks)
        yield sim.begin(site, "across", sim.sites, shards.repeated(layers))


# ---- sites that train alone for H steps ----------------------------------------------------------------------------


def diloco(sim: Simulation, site: int, step: int) -> Process:
    """Of local-sgd, too."""
    is_exchange = step % sim.job.options["every"] == 0
    if sim.job.options.get("replica", "site") == "rank":
        yield sim.compute_s(site)
        if is_exchange:
            total = sim.network.sum(sim.all_ranks, 1, sim.model_bytes)
            yield from waited_for(sim, sim.begin(site, "all", sim.sites, total))
        return
    yield from sim.local_step(site)
    if is_exchange:
        yield from waited_for(sim, sim.clock.start(in_order(sim.across(site, sim.model_bytes / sim.slices))))
        yield sim.gather(site, sim.model_bytes)


def waited_for(sim: Simulation, signal: Signal) -> Process:
    if sim.rules.blocks:
        yield signal


def torchft(sim: Simulation, site: int, step: int) -> Process:
    yield from sim.local_step(site)
    if step % sim.job.options["every"] == 0:
        operation = beside([sim.network.operation("all_reduce", sim.sites, sim.model_bytes)] * sim.slices)
        yield from waited_for(sim, sim.begin(site, "across", sim.sites, operation))


def sparse_bytes(sim: Simulation, slices: int) -> list[int]:
    """Return the bytes of the codes of each slice.

    Tensors are cut into blocks, and blocks where a slice ends. A smaller block keeps its share of ``top``, rounded up.
    """
    top, bits = sim.job.options.get("top", 64), sim.job.options.get("bits", 2)
    total = round(sim.job.parameters / sim.job.scale)
    width = math.ceil(total / slices)
    cuts = {width * number for number in range(slices)} | {total}
    begin = 0
    for values in itertools.chain.from_iterable(tensors(sim)):
        cuts |= {begin + value for value in range(0, values, BLOCK_VALUES)}
        begin += values
    kept, blocks = [0] * slices, [0] * slices
    for begin, end in itertools.pairwise(sorted(cuts)):
        kept[begin // width] += math.ceil(top * (end - begin) / BLOCK_VALUES)
        blocks[begin // width] += 1
    return [
        math.ceil(12 * count / 8) + math.ceil(bits * count / 8) + (sim.rules.scale_bytes * number if bits == 2 else 0)
        for count, number in zip(kept, blocks, strict=True)
    ]


def sparse_loco(sim: Simulation, site: int, step: int) -> Process:
    is_exchange = step % sim.job.options["every"] == 0
    by_rank = sim.job.options.get("replica", "site") == "rank"
    if by_rank:
        yield sim.compute_s(site)
    else:
        yield from sim.local_step(site)
    if not is_exchange:
        return
    group = sim.all_ranks if by_rank else list(sim.sites)
    operation = sim.kept.get("codes")
    if operation is None:
        sizes = sparse_bytes(sim, 1 if by_rank else sim.slices)
        operation = beside([sim.network.operation("all_gather", group, size * len(group)) for size in sizes])
        sim.kept["codes"] = operation
    yield from waited_for(sim, sim.begin(site, "across", sim.sites, operation))
    if not by_rank:
        yield sim.gather(site, sim.model_bytes)


def streaming(sim: Simulation, site: int, step: int) -> Process:
    options, values = sim.job.options, fragment_values(sim)
    every, overlap = options["every"], options.get("overlap", 0)
    offsets = sorted(due_offset(sim, fragment) for fragment in range(len(values)))
    gaps = [after - before for before, after in itertools.pairwise([*offsets, offsets[0] + every])]
    own_groups = len(values) > 1 and overlap >= min(gaps)

    def begin(fragment: int) -> Signal:
        name = ("across", fragment if own_groups else 0)
        slice_values = math.ceil(values[fragment] / sim.slices)
        if options.get("bits", 32) == 32:
            return sim.clock.start(in_order(sim.across(site, 4 * slice_values, name)))
        size = coded_bytes(sim, slice_values) * len(sim.sites)
        codes = beside([sim.network.operation("all_gather", sim.sites, size)] * sim.slices)
        return sim.begin(site, name, sim.sites, codes)

    yield from sim.local_step(site)
    landing: deque[tuple[int, int, Signal]] = sim.kept.setdefault(("landing", site), deque())
    if step == 1:
        # The job is endless: what was begun before has arrived.
        landing.extend(
            (past + overlap, fragment, Signal(fired=True))
            for past in range(1 - overlap, 1)
            for fragment in due(sim, past)
        )
    for fragment in due(sim, step):
        if overlap:
            landing.append((step + overlap + sim.rules.landing_delay, fragment, begin(fragment)))
        else:
            yield from waited_for(sim, begin(fragment))
            yield sim.gather(site, 4 * values[fragment])
    landed = []
    while landing and landing[0][0] <= step:
        landed.append(landing.popleft())
    yield from [arrived for _, _, arrived in landed]
    for _, fragment, _ in landed:
        yield sim.gather(site, 4 * values[fragment])


def multi_tier(sim: Simulation, site: int, step: int) -> Process:
    options, half = sim.job.options, math.ceil(len(sim.sites) / 2)
    regions = options.get("regions") or [[*sim.sites[:half]], [*sim.sites[half:]]]
    region = next(region for region in regions if site in region)
    heads = [region[0] for region in regions]
    size = sim.model_bytes / sim.slices
    yield from sim.local_step(site)
    if step % options["every"]:
        return
    if len(region) > 1:
        yield sim.begin(site, ("region", region[0]), region, sim.network.sum(region, sim.slices, size))
    if step % options["every_regions"] == 0:
        if site in heads:
            yield from waited_for(sim, sim.begin(site, "heads", heads, sim.network.sum(heads, sim.slices, size)))
        if len(region) > 1:
            broadcast = beside([sim.network.operation("broadcast", region, size)] * sim.slices)
            yield sim.begin(site, ("region", region[0]), region, broadcast)
    yield sim.gather(site, sim.model_bytes)
