"""Twin of ``pipeline``: activations to the next site and gradients back, per micro-batch; stages are data-parallel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from testbed.core.training.exchange import Exchange, exchanges
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.site_exchange import slice_groups, unequal_sites
from testbed.core.training.site_process import FORWARD_SHARE, Await, Begin, Compute, Process, StepDone, in_order
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import choice, whole
from testbed.core.training.twin import Equal, Mistake, Option, Twin

__all__ = ["Pipeline"]

TOKEN_BYTES = 8
PROBES, PROBE_BYTES = 3, (4, 65_536)
"""How often a message of each size goes to the last stage and back before the first step, for ``in_flight`` 0."""


class Pipeline(Twin):
    name = "pipeline"
    summary = "split the blocks into stages, one a site; activations cross the fiber in micro-batches"
    source = "Huang et al. 2019, GPipe, arXiv:1811.06965; Narayanan et al. 2021, 1F1B, arXiv:2104.04473"
    options = (
        Option("stages", 2, whole(2, 1000), "parts of the model, one a site"),
        Option("schedule", "1f1b", choice("1f1b", "gpipe"), "order of forward and backward passes"),
        Option("micro_batches", 4, whole(1, 10_000), "parts of the windows of a pipeline"),
        Option("in_flight", 0, whole(0, 10_000), "micro-batches of the first stage before one comes back; 0: computed"),
    )
    replicated = False
    sliced = False
    alike = False
    composed = False

    def mistakes(self) -> Sequence[Mistake]:
        layout, stages, mistakes = self.layout, self.values["stages"], list[Mistake]()
        sites = len(layout.site_names)
        if stages != sites:
            message = f"expected as many stages as sites, got {stages} stages at {sites} site{'s' * (sites != 1)}"
            fix = f"write stages: {sites}" if sites > 1 else "place ranks at two sites"
            mistakes.append(Mistake("stages", message, fix))
        if layout.layers % stages:
            fix = f"write a model of {stages * -(-layout.layers // stages)} layers"
            message = f"{stages} stages do not divide the {layout.layers} layers of the model"
            mistakes.append(Mistake("stages", message, fix))
        mistakes += unequal_sites(layout, "stages", "because each forms a pipeline with its like")
        windows, count = self._windows, self.values["micro_batches"]
        if windows % count:
            fitting = max(parts for parts in range(1, min(count, windows) + 1) if windows % parts == 0)
            message = f"{count} micro-batches do not divide the {windows} windows of a pipeline and step"
            mistakes.append(Mistake("micro_batches", message, f"write micro_batches: {fitting}"))
        return mistakes

    @property
    def _windows(self) -> int:
        """Windows of one pipeline in a step: those of its rank at each site."""
        return self.layout.tokens // self.layout.context * int(self.values["stages"])

    @property
    def activation_bytes(self) -> float:
        """A: bytes of the activations of one micro-batch."""
        tokens: float = self.layout.tokens * self.values["stages"] / self.values["micro_batches"]
        return FLOAT32_BYTES * tokens * self.layout.width

    def _stage_bytes(self, stage: int) -> int:
        """Return the bytes of a stage's parameters. The output layer is the last one's, not tied to the embedding."""
        stages, layers = self.values["stages"], self.layout.layers // self.values["stages"]
        first, last, elements = stage == 0, stage == stages - 1, 0
        for tensor in self.layout.tensors:
            norm, embedding = tensor.name.startswith("last_norm"), tensor.name.startswith("embedding")
            if tensor.layer is not None:
                elements += tensor.elements * (tensor.layer // layers == stage)
            else:
                elements += tensor.elements * ((first and not norm) or (last and (norm or embedding)))
        return FLOAT32_BYTES * elements

    def operations(self, step: int) -> Sequence[Operation]:
        if step == (0 if self.values["schedule"] == "1f1b" and not self.values["in_flight"] else -1):
            return [probe for size in PROBE_BYTES for probe in self._there_and_back(size, "activations") * PROBES]
        if not 1 <= step <= self.layout.steps:
            return ()
        token_bytes = TOKEN_BYTES * self.layout.tokens
        tokens = [
            Operation("send", (rank, end), token_bytes, "tokens", name)
            for name, ranks in slice_groups(self.layout)
            for end in (ranks[0], ranks[-1])  # inputs to the first stage, targets to the last one
            for rank in ranks
            if rank != end
        ]
        micro_batches = self._there_and_back(self.activation_bytes, "gradients") * int(self.values["micro_batches"])
        return [*tokens, *micro_batches, *self._means()]

    def _means(self) -> list[Operation]:
        """Return the means of the gradients of each stage, over the ranks of its site."""
        return [
            Operation("all_reduce", ranks, self._stage_bytes(stage), "gradients", f"site:{name}")
            for stage, (name, ranks) in enumerate(self.layout.members.items())
            if len(ranks) > 1
        ]

    def _there_and_back(self, size: float, back_what: str) -> list[Operation]:
        operations = []
        for name, ranks in slice_groups(self.layout):
            there, back = itertools.pairwise(ranks), itertools.pairwise(reversed(ranks))
            operations += [Operation("send", hop, size, "activations", name) for hop in there]
            operations += [Operation("send", hop, size, back_what, name) for hop in back]
        return operations

    def processes(self) -> Mapping[str, Process]:
        return {site: self._process(stage, site) for stage, site in enumerate(self.layout.site_names)}

    def _process(self, stage: int, site: str) -> Process:
        """Run the micro-batches of a stage; activations go on to the next one, gradients come back."""
        last, count = len(self.layout.site_names) - 1, int(self.values["micro_batches"])
        in_flight = self._in_flight(stage)
        on, back = (self._messages(stage, stage + by) for by in (1, -1))
        means = [mean for mean in exchanges(self._means(), self.layout.sites) if site in mean.sites]
        for step in itertools.count(1):
            forward = backward = 0
            while backward < count:
                if forward < count and forward - backward < in_flight:
                    if stage > 0:
                        yield Await((("activations", step, stage - 1, forward),))
                    yield Compute(FORWARD_SHARE / count)
                    if stage < last:
                        yield Begin(("activations", step, stage, forward), on)
                    forward += 1
                else:
                    if stage < last:
                        yield Await((("gradients", step, stage + 1, backward),))
                    yield Compute((1 - FORWARD_SHARE) / count)
                    if stage > 0:
                        yield Begin(("gradients", step, stage, backward), back)
                    backward += 1
            yield from in_order(means, (site, step))
            yield StepDone()

    def _in_flight(self, stage: int) -> int:
        """Return how many micro-batches a stage runs forward before the first comes back.

        Where the agents compute it from what they measure, they keep the stage busy, as all of them do.
        """
        behind, count = int(self.values["stages"]) - 1 - stage, int(self.values["micro_batches"])
        wanted = int(self.values["in_flight"])
        if self.values["schedule"] == "gpipe" or not wanted:
            return count
        share = behind / max(1, int(self.values["stages"]) - 1)
        return min(count, 1 + math.ceil((wanted - 1) * share))

    def _messages(self, stage: int, to: int) -> Exchange:
        """Return the messages of one micro-batch of all pipelines; none beyond the ends."""
        names = self.layout.site_names
        pairs = [(ranks[stage], ranks[to]) for _, ranks in slice_groups(self.layout) if 0 <= to < len(names)]
        size = self.activation_bytes
        return Exchange(tuple(Operation("send", pair, size, "activations") for pair in pairs), (names[stage],))

    def equal(self, step: int) -> Sequence[Equal]:
        return [Equal("stage", ranks) for ranks in self.layout.members.values()]
