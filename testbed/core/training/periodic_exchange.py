"""Base twins of strategies whose replicas train alone, and exchange the model or its fragments every H steps.

With ``pace: time`` the slowest site takes one inner step in a step of the job, and each other one as many as fit into
the same time by the declared speeds: after s steps, floor(s v / v of the slowest). Exchanges are counted in steps of
the job, so all sites make them together, and equality, commits and bytes between sites are those of equal sites.

With ``weigh: tokens`` a replica's share in a mean is its share in the tokens that all trained on since the last one.

Fragment p of P is due after each step s with s mod H = round(H p / P) mod H, halves up. Layer i is in fragment i mod P;
what is in no layer (embedding, positions, last norm) is in the last fragment. A fragment that is due after step s lands
after s + tau. At the end, what is on its way lands, and every fragment that was not due after the last step is
exchanged again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

from testbed.core.training.layout import FLOAT32_BYTES, Layout
from testbed.core.training.site_exchange import (
    gather_in_sites,
    mean_in_sites,
    slice_groups,
    sum_over_replicas,
    unknown_aggregator,
)
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Mistake, Twin

__all__ = ["Fragment", "PeriodicExchange", "ReplicaTraining", "cut", "too_many_fragments"]

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Fragment:
    """A part of the model, due after each step s with s mod ``every`` = ``offset``. ``number``: None for all of it."""

    number: int | None
    elements: int
    every: int
    offset: int = 0

    @property
    def outer(self) -> str:
        """The name of its outer parameters in fingerprints and records."""
        return "outer" if self.number is None else f"outer.{self.number}"

    def due(self, step: int) -> bool:
        return step >= 1 and step % self.every == self.offset

    def last_due(self, step: int) -> int:
        """Return the last step, not after ``step``, after which it was due; 0 or less for none."""
        return step - (step - self.offset) % self.every

    def count(self, step: int) -> int:
        """Return after how many steps, 1 to ``step``, it was due."""
        first = self.offset or self.every
        return 0 if step < first else 1 + (step - first) // self.every


def cut(layout: Layout, count: int, every: int) -> tuple[Fragment, ...]:
    """Return ``count`` fragments of the model, each due once in ``every`` steps."""
    sizes = [0] * count
    for tensor in layout.tensors:
        sizes[-1 if tensor.layer is None else tensor.layer % count] += tensor.elements
    # round(H p / P) in whole numbers, halves up.
    offsets = [(2 * every * number + count) // (2 * count) % every for number in range(count)]
    return tuple(Fragment(number, sizes[number], every, offsets[number]) for number in range(count))


def too_many_fragments(layout: Layout, count: int) -> list[Mistake]:
    """Return a mistake if there are more fragments than layers."""
    layers = len({tensor.layer for tensor in layout.tensors} - {None})
    if count <= max(1, layers):
        return []
    message = f"expected at most one fragment a layer, of which there are {layers}, got {count}"
    return [Mistake("fragments", message, f"write at most {max(1, layers)}")]


class ReplicaTraining(Twin):
    """Gradients are averaged inside each replica, a site or a rank. Options: ``pace``, ``weigh``, maybe ``replica``."""

    def mistakes(self) -> Sequence[Mistake]:
        if self.values.get("pace") != "time" or self.layout.speeds:
            return []
        message = "time needs the declared speeds of sites, and none is declared"
        return [Mistake("pace", message, "write compute: {at_least: 80ms, speeds: {SITE: 0.5}}, or pace: steps")]

    @property
    def replica(self) -> str:
        return str(self.values.get("replica", "site"))

    @property
    def replicas(self) -> Sequence[Ranks]:
        """Ranks of each site where sites are replicas; none where each rank is one."""
        return list(self.layout.members.values()) if self.replica == "site" else []

    def inner_steps(self, step: int, rank: int = 0) -> int:
        return int(step * self._inner_steps_by_site[self.layout.sites[rank]])

    def pace(self, site: str) -> float:
        return float(self._inner_steps_by_site[site])

    def mean_gradients(self, step: int) -> list[Operation]:
        """Return the operations inside the sites of all inner steps in ``step``."""
        return [
            mean
            for mean in (mean_in_sites(self.layout) if self.replica == "site" else ())
            for _ in range(self._trained(mean.ranks[:1], step - 1, step))
        ]

    def token_shares(
        self, groups: Iterable[Ranks], replicas: Sequence[Ranks], since: int, step: int
    ) -> Mapping[int, float]:
        """Return, by rank, the share of its replica in the tokens of the steps after ``since``, until ``step``.

        Each of ``groups`` has one member of each of ``replicas``, in their order. Empty for equal shares.
        """
        if self.values.get("weigh") != "tokens":
            return {}
        counts = [self._trained(ranks, since, step) for ranks in replicas]
        return {rank: count / sum(counts) for ranks in groups for rank, count in zip(ranks, counts, strict=True)}

    def _trained(self, ranks: Iterable[int], since: int, step: int) -> int:
        return sum(self.inner_steps(step, rank) - self.inner_steps(since, rank) for rank in ranks)

    @cached_property
    def _inner_steps_by_site(self) -> Mapping[str, Fraction]:
        """How many inner steps a site takes in a step."""
        if self.values.get("pace") != "time":
            return dict.fromkeys(self.layout.site_names, Fraction(1))
        # As they are written in decimals: 0.6 is three times 0.2, which as floating-point numbers it is not.
        speeds = {name: Fraction(str(self.layout.speeds.get(name, 1.0))) for name in self.layout.site_names}
        slowest = min(speeds.values())
        return {name: speed / slowest for name, speed in speeds.items()}


class PeriodicExchange(ReplicaTraining):
    """Replicas exchange slices of the model every H steps, or of one fragment after the other beside further steps.

    Options: ``every``; ``fragments`` P (without it the whole model is one), ``overlap`` tau, ``alpha``: the share of
    its own parameters that a replica keeps; ``aggregate_at``. Subclasses define what a value costs on the fiber.
    """

    payload: ClassVar[str] = "pseudo-gradients"
    """What is exchanged."""

    @property
    def gathers_codes(self) -> bool:
        """Whether all replicas gather the codes of all others, rather than add values."""
        return False

    def slice_bytes(self, fragment: Fragment, slices: int) -> Sequence[float]:
        """Return what each slice of a fragment costs on the fiber."""
        return [FLOAT32_BYTES * fragment.elements / slices] * slices

    @cached_property
    def fragments(self) -> tuple[Fragment, ...]:
        every = int(self.values["every"])
        if "fragments" in self.values:
            return cut(self.layout, int(self.values["fragments"]), every)
        return (Fragment(None, self.layout.elements, every),)

    @property
    def overlap(self) -> int:
        return int(self.values.get("overlap", 0))

    @property
    def aggregate_at(self) -> str:
        """The site that adds what all send to it; empty: they exchange with each other."""
        return str(self.values.get("aggregate_at", ""))

    def mistakes(self) -> Sequence[Mistake]:
        return [*super().mistakes(), *unknown_aggregator(self.layout, self.aggregate_at)]

    def operations(self, step: int) -> Sequence[Operation]:
        last = self.layout.steps
        if not 1 <= step <= last:
            return ()
        begun = [fragment for fragment in self.fragments if fragment.due(step)]
        landed = [fragment for fragment in self.fragments if fragment.due(step - self.overlap)]
        operations = [*self.mean_gradients(step), *self._across(begun, self.overlap), *self._gathered(landed)]
        if step == last:
            remaining = [fragment for fragment in self.fragments if fragment not in begun]
            # Those that landed after the last step were merged, and are adopted as a whole only now.
            merged = begun if self.values.get("alpha") and not self.overlap else []
            operations += self._gathered(self._in_flight(last))
            operations += self._across(remaining, 0)
            operations += self._gathered([*remaining, *merged])
        return operations

    def busy_steps(self) -> Sequence[int]:
        steps = {(fragment.offset + late) % fragment.every for fragment in self.fragments for late in (0, self.overlap)}
        return sorted(step or self.cycle for step in steps)

    def resumed(self, step: int) -> Sequence[Operation]:
        """Return what an attempt that resumes after ``step`` sends again: the fragments that were on their way."""
        return self._across(self._in_flight(step), self.overlap)

    def exchanges(self, step: int) -> bool:
        """Whether an exchange of the whole model follows ``step``; one follows the last step in any case."""
        return 1 <= step <= self.layout.steps and (step % self.cycle == 0 or step == self.layout.steps)

    def agrees(self, step: int) -> bool:
        """Whether all replicas have the same parameters after ``step``."""
        return step == 0 or self.exchanges(step)

    def equal(self, step: int) -> Sequence[Equal]:
        groups = slice_groups(self.layout, self.replica)
        outer = [Equal(fragment.outer, ranks) for fragment in self.fragments for _, ranks in groups]
        agreeing = [self.layout.everyone] if self.agrees(step) else self.replicas
        return [*(Equal("parameters", ranks) for ranks in agreeing), *outer]

    def shares(self, step: int, name: str) -> Mapping[int, float]:
        fragment = next((fragment for fragment in self.fragments if fragment.outer == name), self.fragments[0])
        groups = [ranks for _, ranks in slice_groups(self.layout, self.replica)]
        replicas = self.replicas or [(rank,) for rank in self.layout.everyone]
        return self.token_shares(groups, replicas, max(0, fragment.last_due(step - 1)), step)

    def committed(self, step: int) -> float:
        if step >= self.layout.steps:
            return float(step)
        landed = [fragment.elements * max(0, fragment.last_due(step - self.overlap)) for fragment in self.fragments]
        return sum(landed) / max(1, self.layout.elements)

    def outer_updates(self, step: int) -> int:
        if step < self.layout.steps:
            return sum(fragment.count(step - self.overlap) for fragment in self.fragments)
        return sum(fragment.count(step) + (fragment.last_due(step) < step) for fragment in self.fragments)

    @property
    def cycle(self) -> int:
        return int(self.values["every"])

    @property
    def longest_gap(self) -> int:
        """One site may be as many steps ahead of another as lie between two exchanges; the first one waits longest."""
        due = sorted({fragment.offset or self.cycle for fragment in self.fragments})
        return max(after - before for before, after in zip([0, *due], [*due, due[0] + self.cycle], strict=True))

    def _in_flight(self, step: int) -> list[Fragment]:
        """Return the fragments on their way after ``step``, in the order in which they were sent."""
        flying = [part for part in self.fragments if part.last_due(step) > max(0, step - self.overlap)]
        return sorted(flying, key=lambda fragment: fragment.last_due(step))

    def _across(self, fragments: Iterable[Fragment], lands: int) -> list[Operation]:
        """Return the operations between replicas that exchange ``fragments``."""
        sums: list[Operation] = []
        for fragment in fragments:
            groups = slice_groups(
                self.layout, self.replica, f"/fragment-{fragment.number}" if self._overlapping else ""
            )
            for (name, ranks), size in zip(groups, self.slice_bytes(fragment, len(groups)), strict=True):
                sums.append(Operation("all_reduce", ranks, size, self.payload, name, fragment.number, lands))
        if not self.gathers_codes:
            return sum_over_replicas(sums, self.layout, self.aggregate_at)
        return [
            replace(operation, kind="all_gather", byte_count=operation.byte_count * len(operation.ranks))
            for operation in sums
            if len(operation.ranks) > 1
        ]

    def _gathered(self, fragments: Iterable[Fragment]) -> list[Operation]:
        """Return the operations that bring all slices of ``fragments`` to all ranks of each site."""
        return [
            replace(gather, fragment=fragment.number)
            for fragment in (fragments if self.replica == "site" else ())
            for gather in gather_in_sites(self.layout, FLOAT32_BYTES * fragment.elements)
        ]

    @cached_property
    def _overlapping(self) -> bool:
        """Whether a fragment is exchanged while another one is on its way."""
        due = sorted(fragment.offset for fragment in self.fragments)
        gaps = [after - before for before, after in zip(due, [*due[1:], due[0] + self.cycle], strict=True)]
        return len(due) > 1 and min(gaps) <= self.overlap
