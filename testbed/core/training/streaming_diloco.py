"""Twin of ``streaming-diloco``: fragments of the model are exchanged one after the other, beside the steps."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.training.codec_bytes import dense_bytes
from testbed.core.training.diloco import inner_operations, slice_groups, spread_operations
from testbed.core.training.operation import Operation
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, REPLICA, choice, share, whole
from testbed.core.training.twin import Equal, Mistake, Option, Twin

__all__ = ["StreamingDiloco"]


class StreamingDiloco(Twin):
    """Fragment p of P is due after each step s with s mod H = round(H p / P) mod H, halves up; it lands after s + tau.

    Layer i is in fragment i mod P; what is in no layer (embedding, positions, last norm) is in the last fragment. At
    the end, what is on its way lands, and every fragment that was not due after the last step is exchanged once more.
    """

    name = "streaming-diloco"
    summary = "as diloco, one fragment of the layers at a time, beside tau further steps; optionally with few bits"
    source = "Douillard et al. 2025, Streaming DiLoCo, arXiv:2501.18512"
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
    )

    def mistakes(self) -> Sequence[Mistake]:
        found = []
        every, fragments, overlap = (int(self.values[it]) for it in ("every", "fragments", "overlap"))
        layers = len(self._layers)
        if fragments > max(1, layers):
            found.append(
                Mistake(
                    "fragments",
                    f"{fragments} fragments of a model with {layers} layers: a fragment has at least one",
                    f"write at most {max(1, layers)}",
                )
            )
        if overlap >= every:
            fix = f"write an overlap of at most {every - 1}, or a larger every"
            found.append(Mistake("overlap", f"overlap {overlap} must be less than every {every}", fix))
        if self.values["rounding"] == "stochastic" and self.values["bits"] > 8:
            message = f"stochastic rounding of {self.values['bits']} bits is not built"
            found.append(Mistake("rounding", message, "write bits: 8 or 4, or rounding: nearest"))
        return found

    def operations(self, step: int) -> Sequence[Operation]:
        last = self.layout.steps
        if not 1 <= step <= last + 1:
            return ()
        if step > last:
            flying = [it for it in self._all if self._begun(it, last) > last - self._overlap]
            begun = [it for it in self._all if self._begun(it, last) < last]
            return (*self._spread(flying), *self._across(begun, 0), *self._spread(begun))
        begun = [it for it in self._all if self._due(it, step)]
        landed = [it for it in self._all if self._due(it, step - self._overlap)]
        inner = inner_operations(self.layout, self.values["replica"])
        return (*inner, *self._across(begun, self._overlap), *self._spread(landed))

    def equal(self, step: int) -> Sequence[Equal]:
        if step >= self.layout.steps:
            everyone = (Equal("parameters", tuple(range(self.layout.world_size))),)
            return (*everyone, *self._equal_outer(self._all))
        inside = () if self.values["replica"] == "rank" else self.layout.members.values()
        landed = [it for it in self._all if self._due(it, step - self._overlap)]
        return (*(Equal("parameters", ranks) for ranks in inside), *self._equal_outer(landed))

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
    def delays(self) -> float:
        """A ring of all-reduce goes round twice, one of all-gather once."""
        replicas = self.layout.world_size if self.values["replica"] == "rank" else len(self.layout.site_names)
        return (2.0 if self.values["bits"] == 32 else 1.0) * (replicas - 1)

    @property
    def longest_gap(self) -> int:
        """One site may be as many steps ahead of another as lie between two exchanges; the first one waits longest."""
        offsets = sorted(it or self._every for it in {self._offset(p) for p in self._all})
        return max(after - before for before, after in zip([0, *offsets], [*offsets, offsets[0] + self._every], strict=True))

    def fragment_elements(self, fragment: int) -> int:
        """Return how many parameters a fragment has."""
        fragments = int(self.values["fragments"])
        return sum(
            it.elements
            for it in self.layout.tensors
            if (fragments - 1 if it.layer is None else it.layer % fragments) == fragment
        )

    @property
    def _every(self) -> int:
        return int(self.values["every"])

    @property
    def _overlap(self) -> int:
        return int(self.values["overlap"])

    @property
    def _all(self) -> range:
        return range(int(self.values["fragments"]))

    @property
    def _layers(self) -> set[int]:
        return {it.layer for it in self.layout.tensors if it.layer is not None}

    def _offset(self, fragment: int) -> int:
        # round(H p / P) in whole numbers, halves up.
        return (2 * self._every * fragment + len(self._all)) // (2 * len(self._all)) % self._every

    def _due(self, fragment: int, step: int) -> bool:
        return 1 <= step <= self.layout.steps and step % self._every == self._offset(fragment)

    def _begun(self, fragment: int, until: int) -> int:
        """Return the last step, not after ``until``, after which the fragment was due; 0 or less for none."""
        return until - (until - self._offset(fragment)) % self._every

    def _count(self, fragment: int, until: int) -> int:
        """Return after how many steps, 1 to ``until``, the fragment was due."""
        first = self._offset(fragment) or self._every
        return 0 if until < first else 1 + (until - first) // self._every

    def _own_groups(self) -> bool:
        """Whether a fragment is exchanged while another one is on its way."""
        offsets = sorted({self._offset(it) for it in self._all})
        gaps = [after - before for before, after in zip(offsets, [*offsets[1:], offsets[0] + self._every], strict=True)]
        return len(self._all) > 1 and (len(offsets) < len(self._all) or min(gaps) <= self._overlap)

    def _across(self, fragments: Sequence[int], lands: int) -> list[Operation]:
        replica, bits = self.values["replica"], int(self.values["bits"])
        found = []
        for fragment in fragments:
            elements = self.fragment_elements(fragment)
            suffix = f":fragment-{fragment}" if self._own_groups() else ""
            for name, ranks in slice_groups(self.layout, replica):
                each = -(-elements // (1 if replica == "rank" else self.layout.slices))
                coded = dense_bytes(each, bits)
                kind, size = ("all_reduce", coded) if bits == 32 else ("all_gather", coded * len(ranks))
                found.append(Operation(kind, ranks, size, "pseudo-gradients", name + suffix, fragment, lands))
        return found

    def _spread(self, fragments: Sequence[int]) -> list[Operation]:
        return [
            it
            for fragment in fragments
            for it in spread_operations(
                self.layout, self.values["replica"], 4 * self.fragment_elements(fragment), fragment
            )
        ]

    def _equal_outer(self, fragments: Sequence[int]) -> list[Equal]:
        groups = slice_groups(self.layout, self.values["replica"])
        return [Equal(f"outer.{fragment}", ranks) for fragment in fragments for _, ranks in groups]
