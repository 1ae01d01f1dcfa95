"""Twin of ``streaming-diloco``: fragments of the model are exchanged one after the other, beside the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.core.training.codec_bytes import dense_bytes
from testbed.core.training.fragments import Fragmented
from testbed.core.training.inner_steps import PACE, InnerSteps
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.site_exchange import (
    gather_in_sites,
    slice_groups,
    sum_across,
    unknown_aggregator,
)
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.strategy_options import (
    AGGREGATE_AT,
    EVERY,
    OUTER_MOMENTUM,
    OUTER_RATE,
    REPLICA,
    WEIGH,
    choice,
    share,
    whole,
)
from testbed.core.training.twin import Equal, Mistake, Option

__all__ = ["StreamingDiloco"]


class StreamingDiloco(Fragmented, InnerSteps):
    """A fragment that is due after step s lands after s + tau.

    At the end, what is on its way lands, and every fragment that was not due after the last step is exchanged again.
    """

    name = "streaming-diloco"
    summary = "as diloco, one fragment of the layers at a time, beside tau further steps; optionally with few bits"
    source = "Douillard et al. 2025, Streaming DiLoCo, arXiv:2501.18512"
    published = True
    options = (
        EVERY,
        Option("fragments", 4, whole(1, 10_000), "P: parts of the model, each with every P-th layer"),
        Option("overlap", 1, whole(0), "tau: steps beside which a fragment is exchanged; 0: the step waits for it"),
        Option("alpha", 0.5, share(0.0, 1.0), "share of the site's own parameters in the merge with the outer ones"),
        Option("bits", 32, choice(32, 16, 8, 4), "of each value on the fiber: float32, bfloat16, int8 or E3M0"),
        Option("rounding", "nearest", choice("nearest", "stochastic"), "of 8 and 4 bits"),
        OUTER_RATE,
        OUTER_MOMENTUM,
        REPLICA,
        AGGREGATE_AT,
        PACE,
        WEIGH,
    )

    def mistakes(self) -> Sequence[Mistake]:
        found = [*self.wrong_pace(), *unknown_aggregator(self.layout, self._aggregate_at)]
        every, fragments, overlap = (int(self.values[it]) for it in ("every", "fragments", "overlap"))
        layers = len(self._layers)
        if fragments > max(1, layers):
            message = f"expected at most one fragment a layer, of which there are {layers}, got {fragments}"
            found.append(Mistake("fragments", message, f"write at most {max(1, layers)}"))
        if overlap >= every:
            fix = f"write at most {every - 1}, or a larger every"
            found.append(Mistake("overlap", f"expected fewer steps than every, {every}, got {overlap}", fix))
        if self._aggregate_at and self.values["bits"] != 32:
            message = f"a site adds float32 values, and codes of {self.values['bits']} bits are gathered"
            found.append(Mistake("aggregate_at", message, "remove it, or write bits: 32"))
        if self.values["rounding"] == "stochastic" and self.values["bits"] > 8:
            message = f"expected nearest for {self.values['bits']} bits, got stochastic"
            found.append(Mistake("rounding", message, "write bits: 8 or 4, or rounding: nearest"))
        return found

    def operations(self, step: int) -> Sequence[Operation]:
        last = self.layout.steps
        if not 1 <= step <= last:
            return ()
        begun = [it for it in self._all if self._due(it, step)]
        landed = [it for it in self._all if self._due(it, step - self._overlap)]
        found = [*self._across(begun, self._overlap), *self._gathered(landed)]
        if self._site:
            found[:0] = self.mean_inside(step)
        return (*found, *(self._end() if step == last else ()))

    def busy_steps(self) -> Sequence[int]:
        begun = {self._offset(it) for it in self._all}
        landed = {(it + self._overlap) % self._every for it in begun}
        return sorted(it or self._every for it in begun | landed)

    def resumed(self, step: int) -> Sequence[Operation]:
        """Return what an attempt that resumes after ``step`` sends again: the fragments that were on their way."""
        flying = [it for it in self._all if self._begun(it, step) > max(0, step - self._overlap)]
        return self._across(sorted(flying, key=lambda it: (self._begun(it, step), it)), self._overlap)

    def _end(self) -> Sequence[Operation]:
        """Return the operations after those of the last step."""
        last = self.layout.steps
        flying = [it for it in self._all if self._begun(it, last) > max(0, last - self._overlap)]
        flying.sort(key=lambda it: (self._begun(it, last), it))
        rest = [it for it in self._all if self._begun(it, last) < last]
        # Those that landed after the last step were merged, and are now adopted.
        merged = [] if self._overlap or not self.values["alpha"] else [it for it in self._all if it not in rest]
        return (*self._gathered(flying), *self._across(rest, 0), *self._gathered(rest + merged))

    def equal(self, step: int) -> Sequence[Equal]:
        groups = slice_groups(self.layout, self.values["replica"])
        outer = [Equal(f"outer.{fragment}", ranks) for fragment in self._all for _, ranks in groups]
        if step == 0 or step >= self.layout.steps:
            return (Equal("parameters", tuple(range(self.layout.world_size))), *outer)
        inside = self.layout.members.values() if self._site else ()
        return (*(Equal("parameters", ranks) for ranks in inside), *outer)

    def shares(self, step: int, name: str) -> Mapping[int, float]:
        if not self.by_tokens:
            return {}
        since = max(0, self._begun(int(name.partition(".")[2]), step - 1))
        groups = [ranks for _, ranks in slice_groups(self.layout, self.values["replica"])]
        return self.of_members(groups, self.shares_of(self.replicas, since, step))

    def committed(self, step: int) -> float:
        if step >= self.layout.steps:
            return float(self.layout.steps)
        sizes = [self.fragment_elements(it) for it in self._all]
        taken = [max(0, self._begun(it, step - self._overlap)) for it in self._all]
        return sum(size * at for size, at in zip(sizes, taken, strict=True)) / max(1, sum(sizes))

    def outer_updates(self, step: int) -> int:
        last = self.layout.steps
        if step < last:
            return sum(self._count(it, step - self._overlap) for it in self._all)
        return sum(self._count(it, last) + (self._begun(it, last) < last) for it in self._all)

    @property
    def longest_gap(self) -> int:
        """One site may be as many steps ahead of another as lie between two exchanges; the first one waits longest."""
        offsets = sorted(it or self._every for it in {self._offset(p) for p in self._all})
        return max(
            after - before for before, after in zip([0, *offsets], [*offsets, offsets[0] + self._every], strict=True)
        )

    @property
    def _aggregate_at(self) -> str:
        return str(self.values["aggregate_at"])

    @property
    def _overlap(self) -> int:
        return int(self.values["overlap"])

    @property
    def _layers(self) -> set[int]:
        return {it.layer for it in self.layout.tensors if it.layer is not None}

    def _own_groups(self) -> bool:
        """Whether a fragment is exchanged while another one is on its way."""
        offsets = sorted({self._offset(it) for it in self._all})
        gaps = [after - before for before, after in zip(offsets, [*offsets[1:], offsets[0] + self._every], strict=True)]
        return len(self._all) > 1 and (len(offsets) < len(self._all) or min(gaps) <= self._overlap)

    @property
    def _site(self) -> bool:
        return bool(self.values["replica"] == "site")

    def _across(self, fragments: Sequence[int], lands: int) -> list[Operation]:
        found: list[Operation] = []
        bits = int(self.values["bits"])
        for fragment in fragments:
            suffix = f"/fragment-{fragment}" if self._own_groups() else ""
            groups = slice_groups(self.layout, self.values["replica"], suffix)
            # Slices are padded to the same size.
            coded = dense_bytes(-(-self.fragment_elements(fragment) // len(groups)), bits)
            for name, ranks in groups:
                if bits == 32:
                    at, what = self._aggregate_at, "pseudo-gradients"
                    found += sum_across(self.layout, at, ranks, coded, what, name, fragment, lands)
                elif len(ranks) > 1:
                    size = coded * len(ranks)
                    found.append(Operation("all_gather", ranks, size, "pseudo-gradients", name, fragment, lands))
        return found

    def _gathered(self, fragments: Sequence[int]) -> list[Operation]:
        if not self._site:
            return []
        return [
            replace(it, fragment=fragment)
            for fragment in fragments
            for it in gather_in_sites(self.layout, FLOAT32_BYTES * self.fragment_elements(fragment))
        ]
