"""Twin of ``decoupled``: learners never wait for each other; a syncer merges what a quorum has delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.core.training.codec_bytes import dense_bytes
from testbed.core.training.fragments import Fragmented
from testbed.core.training.served import HOME, Served, faults_of_versions
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, choice, whole
from testbed.core.training.twin import Mistake, Option
from testbed.core.units import parse_duration_s

__all__ = ["Decoupled"]


class Decoupled(Fragmented, Served):
    """A fragment is pushed when it is due, and after the last step.

    How often a fragment is merged depends on who is late. The operations are those of sites at the same pace: all
    deliver within the grace time, and each fragment is merged once in H steps. What is committed is what has had a
    whole H steps to be merged; exactly known only at the end.
    """

    name = "decoupled"
    summary = "never wait: a syncer merges fragments once K of M sites delivered, latecomers count in the next round"
    source = "after Douillard et al. 2025, arXiv:2501.18512, and Liu et al. 2024, arXiv:2401.09135"
    options = (
        EVERY,
        Option("fragments", 1, whole(1, 10_000), "P: parts of the model, each with every P-th layer"),
        Option("quorum", 0, whole(0, 1000), "K: sites that must have delivered; 0: more than half"),
        Option("grace", 0.05, parse_duration_s, "time for the other sites once the quorum has delivered"),
        Option("bits", 32, choice(32, 16, 8, 4), "of each value on the fiber: float32, bfloat16, int8 or E3M0"),
        OUTER_RATE,
        OUTER_MOMENTUM,
        HOME,
    )
    agreed_bytes = 8

    def mistakes(self) -> Sequence[Mistake]:
        found = [*super().mistakes()]
        sites, layers = len(self.layout.site_names), len({it.layer for it in self.layout.tensors} - {None})
        quorum, fragments = int(self.values["quorum"]), int(self.values["fragments"])
        if quorum > sites:
            message = f"a quorum of {quorum} among {sites} sites is never there"
            found.append(Mistake("quorum", message, f"write at most {sites}"))
        if fragments > max(1, layers):
            message = f"{fragments} fragments of a model with {layers} layers: a fragment has at least one"
            found.append(Mistake("fragments", message, f"write at most {max(1, layers)}"))
        return found

    def pushes(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        return [
            (it, self.fragment_elements(it)) for it in self._all if self._due(it, step) or step == self.layout.steps
        ]

    def elements(self, fragment: int | None) -> int:
        return self.fragment_elements(fragment or 0)

    def slice_bytes(self, elements: int) -> float:
        return float(dense_bytes(-(-elements // self.layout.slices), int(self.values["bits"])))

    @property
    def most_answers(self) -> float:
        """A merge takes K pushes, of which the sites make M in a round: what comes late is in another merge."""
        sites = len(self.layout.site_names)
        return sites / (int(self.values["quorum"]) or sites // 2 + 1)

    def committed(self, step: int) -> float:
        if step >= self.layout.steps:
            return float(self.layout.steps)
        sizes = [self.fragment_elements(it) for it in self._all]
        taken = [max(0, self._begun(it, step - self._every)) for it in self._all]
        return sum(size * at for size, at in zip(sizes, taken, strict=True)) / max(1, sum(sizes))

    def versions(self, step: int) -> int:
        """Return how many versions there are after ``step``: certain at the end, and the least before."""
        last = self.layout.steps
        merged = sum(self._count(it, min(step - self._every, last - 1)) for it in self._all)
        return merged if step < last else sum(self._count(it, last - 1) + 1 for it in self._all)

    @property
    def longest_gap(self) -> int:
        """Only at a checkpoint and at the end one site waits for another, however far behind that is."""
        return self.layout.steps

    def wrong_exchanges(self, records: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        return faults_of_versions(records)
