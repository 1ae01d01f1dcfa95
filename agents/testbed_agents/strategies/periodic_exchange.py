"""Bases of strategies whose replicas train alone, and exchange the model or its fragments every H steps.

After step s, a fragment that is due (``testbed_agents.exchange.fragments``) is sent to the other replicas. After step
s + tau, before the next forward pass, it *lands*: the update of the strategy is applied to the outer parameters Θ, and
the parameters θ of a replica become a share α of themselves and 1 - α of Θ. Without fragments the whole model is one;
with tau = 0 a step waits for the exchange, and with α = 0 all replicas continue with Θ.

At the end, what is on its way lands, all other fragments are exchanged once more, and θ ← Θ.

A checkpoint may be taken while fragments are on their way: what was sent is among the state, and is sent again after
loading. Codes are the same again, because the seed of stochastic rounding is made of rank, fragment and step.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from testbed_agents.exchange.codec import Codec, Float32
from testbed_agents.exchange.fragments import Schedule, cut
from testbed_agents.exchange.gradients import BucketedGradients, mean_over
from testbed_agents.exchange.outer_optimizers import Nesterov
from testbed_agents.exchange.slices import Slice
from testbed_agents.exchange.sums import CodedExchange, Exchange, mean_of, rank_at
from testbed_agents.groups import Replicas
from testbed_agents.site_pace import InnerSteps
from testbed_agents.strategies.strategy import Context, Strategy, unflatten

__all__ = ["FragmentExchange", "PeriodicExchange", "Received", "ReplicaTraining", "Update"]


class ReplicaTraining(Strategy):
    """Average gradients inside each replica in every step: a ``site``, or each ``rank`` by itself.

    ``pace``: ``steps``, or ``time`` for inner steps by the declared speed of a site. ``weigh``: ``equal``, or
    ``tokens`` for replicas weighted by what they trained on since their last exchange.
    """

    def __init__(self, replica: str = "site", pace: str = "steps", weigh: str = "equal") -> None:
        self._replica, self._by_time, self._by_tokens = replica, pace == "time", weigh == "tokens"

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.context = context
        self.model = model
        self.replicas = context.groups.replicas(self._replica, apart=True)
        self.step_group = self.replicas.inside_ranks
        size = len(self.replicas.inside_ranks)
        self._gradients = BucketedGradients(model, context, self.replicas.inside, mean_over(self.replicas.inside, size))
        self.module = self._gradients.wrapped
        self.parameters = list(model.parameters())
        self.inner = InnerSteps(context.groups, context.speeds, self._by_time)
        return self.parameters

    def inner_steps(self, step: int) -> int:
        return self.inner.within(step, self.context.groups.rank)

    def shares(self, since: int, step: int, members: Sequence[Sequence[int]] = ()) -> tuple[float, ...]:
        """Return the share of each replica in a mean of what they trained in the steps after ``since``, until ``step``.

        Empty for equal shares. ``members``: ranks of each that is averaged, where these are not the replicas.
        """
        groups = self.context.groups
        alone = [(rank,) for rank in range(groups.world_size)]
        replicas = members or (alone if self._replica == "rank" else list(groups.members.values()))
        return self.inner.shares(replicas, since, step) if self._by_tokens else ()

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        self._gradients.rehearse(inputs, targets)

    def outer_slices(self) -> Iterable[tuple[Slice, Tensor]]:
        """Return the slices of the model, and of each the outer parameters that this rank holds."""
        raise NotImplementedError

    def outer_parameters(self) -> list[Tensor]:
        gathered = {id(parameter): torch.empty_like(parameter) for parameter in self.parameters}
        for part, values in self.outer_slices():
            unflatten(part.gather(values), [gathered[id(parameter)] for parameter in part.parameters])
        return list(gathered.values())


@dataclass
class Received:
    """What the replicas have sent of a fragment.

    Attributes:
        fragment: of the exchange.
        total: the sum over the replicas, each times its share if there are shares.
        own: what this replica has sent, as the others received it.
        decoded: what each replica has sent, in their order; empty where no codes are sent.
    """

    fragment: FragmentExchange
    total: Tensor
    own: Tensor
    decoded: Sequence[Tensor] = ()

    def mean(self) -> Tensor:
        """Return the mean over the replicas; some of its elements are recorded if it is weighted."""
        fragment, replicas = self.fragment, self.fragment.slice.replicas
        name, shares, evidence = fragment.outer.name, fragment.shares, replicas.hooks.evidence
        return mean_of(name, self.total, self.own, replicas.across_ranks, shares, evidence, fragment.taken)


Update: TypeAlias = Generator[Tensor, Received, None]
"""Yields what a replica sends of a fragment, (elements,), and continues with what all have sent."""


class PeriodicExchange(ReplicaTraining):
    """Replicas exchange slices of the model every H steps, or of one fragment after the other beside further steps.

    Raises ValueError for options that do not fit.

    Args:
        every: H, steps between two exchanges.
        fragments: P; None: the model is exchanged as a whole, and its outer parameters have no number.
        overlap: tau, steps that an exchange may take.
        alpha: share of its own parameters that a replica keeps when a fragment lands.
        codec: of what is sent.
        rate, momentum: of the outer optimizer.
        aggregate_at: the site that adds what all send to it; empty: they exchange with each other.
        replica, pace, weigh: as of :class:`ReplicaTraining`.
    """

    def __init__(
        self,
        every: int,
        fragments: int | None = None,
        overlap: int = 0,
        alpha: float = 0.0,
        codec: Codec | None = None,
        rate: float = 1.0,
        momentum: float = 0.0,
        aggregate_at: str = "",
        replica: str = "site",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(replica, pace, weigh)
        self.schedule = Schedule(every, fragments or 1, overlap)
        self.codec = codec or Float32()
        self._numbered, self._alpha, self._aggregate_at = fragments is not None, alpha, aggregate_at
        self._rate, self._momentum = rate, momentum

    @abstractmethod
    def update(self, fragment: FragmentExchange) -> Update:
        """The update of Θ of a fragment, as published: yield what is sent, then apply what all have sent.

        What is before the ``yield`` must change nothing: after a checkpoint it is done again.
        """

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        trained = super().prepare(model, context)
        parts: list[list[nn.Parameter]] = [trained]
        if self._numbered:
            parts = cut(model.named_parameters(), self.schedule.count, context.failpoint("tied-twice"))
        self.fragments: list[FragmentExchange] = []
        for number, parameters in enumerate(parts):
            replicas = self.replicas
            if self.schedule.overlapping:
                replicas = context.groups.replicas(self._replica, f"/fragment-{number}", apart=True)
            aggregator = rank_at(self._aggregate_at, context.groups.sites, replicas.across_ranks)
            part, name = (
                self.make_slice(parameters, replicas, aggregator),
                f"outer.{number}" if self._numbered else "outer",
            )
            outer = Nesterov(part.of_parameters(), self._rate, self._momentum, replicas.hooks, name)
            self.fragments.append(FragmentExchange(self, number if self._numbered else None, part, outer))
        return trained

    def make_slice(self, parameters: list[nn.Parameter], replicas: Replicas, aggregator: int | None) -> Slice:
        return Slice(parameters, replicas, aggregator)

    def loaded(self) -> None:
        for fragment in self._in_flight():
            fragment.resume()

    def after_step(self, step: int) -> None:
        for number in self.schedule.due(step):
            self.fragments[number].begin(step)
        for fragment in self._in_flight():
            if step >= fragment.taken + self.schedule.overlap:
                self._land(fragment, self._alpha)

    def finish(self, step: int) -> None:
        for fragment in self._in_flight():
            self._land(fragment, self._alpha if fragment.taken < step else 0.0)
        due = [self.fragments[number] for number in self.schedule.due(step)]
        remaining = [fragment for fragment in self.fragments if fragment not in due]
        for fragment in remaining:
            fragment.begin(step)
        for fragment in remaining:
            self._land(fragment, 0.0)
        if not self.schedule.overlap and self._alpha:
            for fragment in due:  # those landed after this step already, and were merged
                fragment.adopt(0.0)

    def _in_flight(self) -> list[FragmentExchange]:
        """Return the fragments on their way, in the order in which they were sent."""
        return sorted((fragment for fragment in self.fragments if fragment.taken), key=lambda fragment: fragment.taken)

    def _land(self, fragment: FragmentExchange, keep: float) -> None:
        waited_s = fragment.land()
        if self.schedule.overlap:
            self.context.late_s += waited_s
        fragment.adopt(keep)

    def state(self) -> dict[str, Tensor]:
        return {name: tensor for fragment in self.fragments for name, tensor in fragment.state().items()}

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        outer = {fragment.outer.name: (fragment.outer.values, fragment.outer.momentum) for fragment in self.fragments}
        return {**super().fingerprints(), **outer}

    def outer_slices(self) -> Iterable[tuple[Slice, Tensor]]:
        return [(fragment.slice, fragment.outer.values) for fragment in self.fragments]

    @property
    def outer_version(self) -> int:
        """The number of exchanges that have landed, of any fragment."""
        return sum(int(fragment.version) for fragment in self.fragments)


class FragmentExchange:
    """A fragment, or the whole model: this rank's slice of it, its outer parameters, and the exchange on its way."""

    def __init__(self, strategy: PeriodicExchange, number: int | None, part: Slice, outer: Nesterov) -> None:
        self._strategy, self.number, self.slice, self.outer = strategy, number, part, outer
        self.version = torch.zeros((), dtype=torch.int64)
        self.shares: tuple[float, ...] = ()
        """Of the replicas in the exchange on its way; empty for equal ones."""
        self._taken = torch.zeros((), dtype=torch.int64)
        self._sent = torch.zeros_like(outer.values) if strategy.schedule.overlap else None
        """What was sent, if a checkpoint may be taken before it lands."""
        self._update: Update | None = None
        self._exchange: tuple[Exchange, Tensor] | None = None
        """What is on its way, and what of it this replica has sent."""

    @property
    def taken(self) -> int:
        """The step after which was taken what is on its way; 0: nothing is on its way."""
        return int(self._taken)

    def pseudo_gradient(self) -> Tensor:
        """Return Δ = Θ - θ, (elements,)."""
        return self.outer.values - self.slice.of_parameters()

    def begin(self, step: int) -> None:
        """Take what the strategy sends after ``step``, and send it."""
        self._taken.fill_(step)
        self._update = self._strategy.update(self)
        values = next(self._update)
        if self._sent is not None:
            values = self._sent.copy_(values)
        self._send(values)

    def resume(self) -> None:
        """Send once more what was on its way when a checkpoint was taken."""
        assert self._sent is not None
        self._update = self._strategy.update(self)
        next(self._update)
        self._send(self._sent)

    def _send(self, values: Tensor) -> None:
        """Send ``values`` to the other replicas. They must not change until the exchange has landed."""
        strategy, number = self._strategy, self.number or 0
        self.shares = strategy.shares(strategy.schedule.before(number, self.taken), self.taken)
        seed = (self.taken * 2**20 + number) * 2**20 + strategy.context.groups.rank
        generator = torch.Generator().manual_seed(seed % 2**63)
        self._exchange = self.slice.begin_sum(values, self.shares, strategy.codec, generator), values

    def land(self) -> float:
        """Wait for what all replicas have sent, and update Θ.

        Returns how long that took until it was there, decoded if it is coded.
        """
        assert self._exchange is not None and self._update is not None
        (exchange, own), began_t = self._exchange, time.monotonic()
        received = Received(self, exchange.wait(), own)
        waited_s = time.monotonic() - began_t
        if isinstance(exchange, CodedExchange):
            received.decoded, received.own = exchange.decoded, exchange.decoded[self.slice.own]
        with contextlib.suppress(StopIteration):
            self._update.send(received)
        self._exchange = self._update = None
        self.version += 1
        self._taken.zero_()
        return waited_s

    def adopt(self, keep: float) -> None:
        """θ ← keep θ + (1 - keep) Θ; a collective call of the ranks of a replica."""
        self.slice.spread(self.outer.values, keep)

    def state(self) -> dict[str, Tensor]:
        tensors = {**self.outer.state(), "version": self.version}
        if self._sent is not None:
            tensors |= {"delta": self._sent, "taken": self._taken}
        return {f"{self.outer.name}.{name}": tensor for name, tensor in tensors.items()}

    def record_codes(self, what: str, sent: Tensor, received: Received, **error_feedback: Any) -> None:
        """Record a sum of codes for the checkers, before any of its tensors is changed."""
        if not self.slice.holds or not received.decoded:
            return
        codec = self._strategy.codec
        self.slice.replicas.hooks.evidence.encoded(
            what,
            fragment=self.number,
            inputs=sent,
            decoded=received.decoded,
            ranks=self.slice.replicas.across_ranks,
            own=self.slice.own,
            total=received.total,
            weights=self.shares or None,
            bound=lambda positions: codec.bound(sent)[positions],
            **error_feedback,
        )
