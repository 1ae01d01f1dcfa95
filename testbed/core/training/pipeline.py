"""Twin of ``pipeline``: activations to the next site and gradients back, per micro-batch; stages are data-parallel."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from testbed.core.training.hsdp import unequal_sites
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.site_exchange import slice_groups
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
    composed = False

    def mistakes(self) -> Sequence[Mistake]:
        layout, stages, found = self.layout, self.values["stages"], list[Mistake]()
        sites = len(layout.site_names)
        if stages != sites:
            message = f"expected as many stages as sites, got {stages} stages at {sites} site{'s' * (sites != 1)}"
            fix = f"write stages: {sites}" if sites > 1 else "place ranks at two sites"
            found.append(Mistake("stages", message, fix))
        if layout.layers % stages:
            fix = f"write a model of {stages * -(-layout.layers // stages)} layers"
            message = f"{stages} stages do not divide the {layout.layers} layers of the model"
            found.append(Mistake("stages", message, fix))
        found += unequal_sites(layout, "stages", "because each forms a pipeline with its like")
        windows, count = self._windows, self.values["micro_batches"]
        if windows % count:
            fitting = max(it for it in range(1, min(count, windows) + 1) if windows % it == 0)
            message = f"{count} micro-batches do not divide the {windows} windows of a pipeline and step"
            found.append(Mistake("micro_batches", message, f"write micro_batches: {fitting}"))
        return found

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
        stages, each = self.values["stages"], self.layout.layers // self.values["stages"]
        total = 0
        for it in self.layout.tensors:
            if it.layer is not None:
                total += it.elements * (it.layer // each == stage)
            else:
                first, last = stage == 0, stage == stages - 1
                norm, embedding = it.name.startswith("last_norm"), it.name.startswith("embedding")
                total += it.elements * ((first and not norm) or (last and (norm or embedding)))
        return FLOAT32_BYTES * total

    def operations(self, step: int) -> Sequence[Operation]:
        if step == (0 if self.values["schedule"] == "1f1b" and not self.values["in_flight"] else -1):
            return [
                it for size in PROBE_BYTES for _ in range(PROBES) for it in self._there_and_back(size, "activations")
            ]
        if not 1 <= step <= self.layout.steps:
            return ()
        found, layout = list[Operation](), self.layout
        for name, ranks in slice_groups(layout):
            for end in (ranks[0], ranks[-1]):  # inputs to the first stage, targets to the last one
                others = [it for it in ranks if it != end]
                found += [Operation("send", (it, end), TOKEN_BYTES * layout.tokens, "tokens", name) for it in others]
        for _ in range(self.values["micro_batches"]):
            found += self._there_and_back(self.activation_bytes, "gradients")
        for stage, (name, ranks) in enumerate(layout.members.items()):
            if len(ranks) > 1:
                size = self._stage_bytes(stage)
                found.append(Operation("all_reduce", ranks, size, "gradients", f"site:{name}"))
        return found

    def _there_and_back(self, size: float, back_what: str) -> list[Operation]:
        found = []
        for name, ranks in slice_groups(self.layout):
            hops = list(itertools.pairwise(ranks))
            found += [Operation("send", hop, size, "activations", name) for hop in hops]
            back = [(there, here) for here, there in reversed(hops)]
            found += [Operation("send", hop, size, back_what, name) for hop in back]
        return found

    def predicted_by(self, rate_bps: float, delay_s: float) -> Mapping[str, Any]:
        """The pipelines of all ranks of a site share the fiber."""
        return {
            "stages": self.values["stages"],
            "micro_batches": self.values["micro_batches"],
            "activation_bits": 8 * self.activation_bytes * self.layout.slices,
            "wire_factor": 1.0,
            "delays": 1.0,
        }

    def equal(self, step: int) -> Sequence[Equal]:
        return [Equal("stage", ranks) for ranks in self.layout.members.values()]

    @property
    def delays(self) -> float:
        return 2.0 * (len(self.layout.site_names) - 1)
