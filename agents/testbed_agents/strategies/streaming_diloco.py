"""streaming-diloco: diloco by fragments of the model, each exchanged beside further steps, with few bits if asked.

After step s, fragment p that is due (``testbed_agents.fragments``) takes its pseudo-gradient Δ = Θ - θ and sends it.
After step s + tau, before the next forward pass, it lands: the outer optimizer applies the mean Δ to Θ, and the site's
parameters become a share α of themselves and 1 - α of Θ (Douillard et al. 2025, arXiv:2501.18512). Coded values are
decoded and added as float32 in the order of replicas, by their sender too.

At the end, what is on its way lands, all other fragments are exchanged once more, and θ ← Θ.

A checkpoint may be taken while fragments are on their way: Δ is among the state, and is sent again after loading. Codes
are the same again, because the seed of stochastic rounding is made of rank, fragment and step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from testbed_agents.aggregation import rank_at
from testbed_agents.codec import Codec, of_bits
from testbed_agents.coded_exchange import CodedExchange, added
from testbed_agents.exchange import Exchange
from testbed_agents.fragments import Schedule, cut
from testbed_agents.outer import Nesterov, Slice
from testbed_agents.strategies.diloco import ReplicaTraining
from testbed_agents.strategies.strategy import Context, unflatten

__all__ = ["StreamingDiloco"]


class StreamingDiloco(ReplicaTraining):
    """Options as of diloco, and: ``fragments`` P, ``overlap`` tau in steps, ``alpha``, ``bits``
    (32, 16, 8 or 4), and ``rounding`` of 8 and 4 bits: ``nearest`` or ``stochastic``. ``aggregate_at`` needs 32 bits.

    Raises ValueError for options that do not fit.
    """

    def __init__(
        self,
        every: int = 50,
        fragments: int = 4,
        overlap: int = 1,
        alpha: float = 0.5,
        bits: int = 32,
        rounding: str = "nearest",
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        replica: str = "site",
        aggregate_at: str = "",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(replica, pace, weigh)
        self._aggregate_at = aggregate_at
        self._schedule = Schedule(every, fragments, overlap)
        if aggregate_at and bits != 32:
            raise ValueError(f"expected bits: 32 with aggregate_at, got {bits}")
        self._alpha, self._codec = alpha, of_bits(bits, rounding == "stochastic")
        self._rate, self._momentum = outer_rate, outer_momentum

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        trained = super().prepare(model, context)
        parts = cut(model.named_parameters(), self._schedule.count, context.failpoint("tied-twice"))
        self._fragments = []
        for number, parameters in enumerate(parts):
            replicas = self.replicas
            if self._schedule.overlapping:
                replicas = context.groups.replicas(self._replica, f"/fragment-{number}", apart=True)
            at = rank_at(self._aggregate_at, context.groups.sites, replicas.across_ranks)
            part = Slice(parameters, replicas, at)
            outer = Nesterov(part.of_parameters(), self._rate, self._momentum, replicas.hooks, f"outer.{number}")
            self._fragments.append(_Fragment(number, parameters, part, outer, self._codec, context, self._shares_of))
        return trained

    def _shares_of(self, number: int, taken: int) -> tuple[float, ...]:
        """Return the shares of the replicas in the exchange of a fragment that was taken after step ``taken``."""
        return self.shares(self._schedule.before(number, taken), taken)

    def loaded(self) -> None:
        for fragment in self._in_flight():
            fragment.send()

    def after_step(self, step: int) -> None:
        for number in self._schedule.due(step):
            self._fragments[number].begin(step)
        for fragment in self._in_flight():
            if step >= fragment.taken + self._schedule.overlap:
                self._land(fragment, self._alpha)

    def finish(self, step: int) -> None:
        for fragment in self._in_flight():
            self._land(fragment, self._alpha if fragment.taken < step else 0.0)
        due = self._schedule.due(step)
        rest = [fragment for fragment in self._fragments if fragment.number not in due]
        for fragment in rest:
            fragment.begin(step)
        for fragment in rest:
            self._land(fragment, 0.0)
        if not self._schedule.overlap and self._alpha:
            for number in due:  # those landed after this step already, and were merged
                self._fragments[number].adopt(0.0)

    def _in_flight(self) -> list[_Fragment]:
        """Return the fragments on their way, in the order in which they were sent."""
        flying = [fragment for fragment in self._fragments if fragment.taken]
        return sorted(flying, key=lambda fragment: (fragment.taken, fragment.number))

    def _land(self, fragment: _Fragment, keep: float) -> None:
        waited_s = fragment.arrive()
        if self._schedule.overlap:
            self.context.late_s += waited_s
        fragment.adopt(keep)

    def state(self) -> dict[str, Tensor]:
        return {name: it for fragment in self._fragments for name, it in fragment.state().items()}

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        outer = {f"outer.{it.number}": (it.outer.values, it.outer.momentum) for it in self._fragments}
        return {**super().fingerprints(), **outer}

    def outer_parameters(self) -> list[Tensor]:
        found = {id(each): torch.empty_like(each) for each in self.parameters}
        for fragment in self._fragments:
            whole = fragment.slice.gather(fragment.outer.values)
            unflatten(whole, [found[id(each)] for each in fragment.parameters])
        return [found[id(each)] for each in self.parameters]

    @property
    def outer_version(self) -> int:
        """The number of exchanges of fragments that have landed."""
        return sum(fragment.version for fragment in self._fragments)


class _Fragment:
    """Outer parameters, momentum and version of a fragment's slice, and the pseudo-gradient that is on its way."""

    def __init__(
        self,
        number: int,
        parameters: list[nn.Parameter],
        part: Slice,
        outer: Nesterov,
        codec: Codec,
        context: Context,
        shares_of: Callable[[int, int], tuple[float, ...]],
    ) -> None:
        self._shares_of, self._shares = shares_of, tuple[float, ...]()
        self.number, self.parameters, self.slice, self.outer = number, parameters, part, outer
        self._codec, self._context = codec, context
        self._delta = torch.zeros_like(outer.values)
        self._taken = torch.zeros((), dtype=torch.int64)
        self._version = torch.zeros((), dtype=torch.int64)
        self._sum: Exchange | None = None
        self._codes: CodedExchange | None = None

    @property
    def taken(self) -> int:
        """The step after which the pseudo-gradient on its way was taken; 0: nothing is on its way."""
        return int(self._taken)

    @property
    def version(self) -> int:
        return int(self._version)

    def begin(self, step: int) -> None:
        """Take the pseudo-gradient after ``step`` and send it."""
        torch.sub(self.outer.values, self.slice.of_parameters(), out=self._delta)
        self._taken.fill_(step)
        self.send()

    def send(self) -> None:
        """Send the pseudo-gradient to the other replicas. It must not change until it has arrived."""
        self._shares = self._shares_of(self.number, self.taken)
        if self._codec.exact:
            self._sum = self.slice.begin_mean(self._delta, self._shares)
        else:
            seed = (self.taken * 2**20 + self.number) * 2**20 + self._context.groups.rank
            generator = torch.Generator().manual_seed(seed % 2**63)
            self._codes = CodedExchange(self._delta, self._codec, self.slice.replicas, generator)

    def arrive(self) -> float:
        """Wait for the pseudo-gradients of all replicas and apply their mean to the outer parameters.

        Returns how long that took until they were there, decoded if they are coded.
        """
        began_t = time.monotonic()
        if self._codes is None:
            assert self._sum is not None
            total = self._sum.wait()
            waited_s = time.monotonic() - began_t
            mean = self.slice.mean_of(self.outer.name, total, self._delta, self._shares, self.taken)
        else:
            decoded = self._codes.wait()
            waited_s = time.monotonic() - began_t
            total = added(decoded, self._shares if self.slice.holds else ())
            self._note(decoded, total)
            own = decoded[self.slice.own]
            mean = self.slice.mean_of(self.outer.name, total, own, self._shares, self.taken)
        self._sum = self._codes = None
        self.outer.step(mean)
        self._version += 1
        self._taken.zero_()
        return waited_s

    def adopt(self, keep: float) -> None:
        """θ ← keep θ + (1 - keep) Θ; a collective call of the ranks of a replica."""
        self.slice.spread(self.outer.values, keep)

    def state(self) -> dict[str, Tensor]:
        own = {"delta": self._delta, "taken": self._taken, "version": self._version}
        return {f"outer.{self.number}.{name}": it for name, it in {**self.outer.state(), **own}.items()}

    def _note(self, decoded: list[Tensor], total: Tensor) -> None:
        if self.slice.holds:
            self._context.checks.encoded(
                "streaming",
                fragment=self.number,
                inputs=self._delta,
                decoded=decoded,
                ranks=self.slice.replicas.across_ranks,
                own=self.slice.own,
                total=total,
                weights=self._shares or None,
                bound=lambda positions: self._codec.bound(self._delta)[positions],
            )
