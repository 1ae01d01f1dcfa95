"""The protocol of a strategy: one way of training across sites.

The loop (``testbed_agents.train``) draws data, calls the strategy, updates the parameters and records; it knows no
strategy. A strategy decides what is exchanged, when and with whom. In the order of a job::

    prepare ─ [load] ─ (run ─ [inner optimizer] ─ after_step) × steps ─ finish

Also a library outside a lab: give ``prepare`` a :class:`Context` of any initialised process group
(``Context.of_default_group``), and call the methods in this order from a training loop of your own.

Each strategy has a pure twin of the same file name in ``testbed/core/training/strategies``, which knows the operations
of a step, their bytes, and which tensors must be equal. The checkers compare what the strategy did with the twin.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from testbed_agents.evidence import Evidence
from testbed_agents.groups import Groups
from testbed_agents.model import cross_entropy

__all__ = ["Context", "Strategy"]


@dataclass
class Context:
    """What a strategy is given: who trains where, and how to tell the loop what it cannot see.

    Attributes:
        groups: the process groups of the job.
        timeout_s: bound of a wait inside a collective.
        loss: of the model's output and the targets; a mean over the rank's tokens.
        address: this rank's address on the fabric, for strategies with connections of their own.
        before_backward: called between forward and backward, with the loss; None where this rank does not know it.
        told_ready: called with ``ready_t``, so before the exchange that waits for it can end on any rank.
        steps: of the whole job; the last one ends with an exchange.
        step: the step that is running, from 1; set by the loop.
        late_s: how long ``after_step`` waited for what was to have arrived by this step; reset by the loop.
        ready_t: when this rank's last gradient of the step was ready (CLOCK_MONOTONIC, s).
        compute: how time passes in forward and backward (``testbed_agents.compute``); None outside a job.
        speeds: of slower sites, as declared, relative to the others (1.0).
        waited_s: how long this step has waited for communication before its gradients were ready.
    """

    groups: Groups
    timeout_s: float = 30.0
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    address: str = "127.0.0.1"
    before_backward: Callable[[Tensor | None], None] = lambda loss: None
    told_ready: Callable[[float], None] = lambda t: None
    steps: int = 0
    step: int = 0
    ready_t: float = 0.0
    late_s: float = 0.0
    compute: Any = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    waited_s: float = 0.0
    _waiting: bool = False

    def begin(self, step: int) -> None:
        """Begin ``step``: its gradients are not ready, and it has not waited."""
        self.step, self.ready_t, self.waited_s, self.late_s = step, 0.0, 0.0, 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting for communication, not as compute; nested calls count once.

        For strategies whose forward or backward pass waits. Once gradients are ready, all that follows is waiting.
        """
        if self._waiting or self.ready_t:
            yield
            return
        self._waiting, began = True, time.monotonic()
        try:
            yield
        finally:
            waited_s = time.monotonic() - began
            self._waiting = False
            self.waited_s += waited_s
            if self.compute is not None:
                self.compute.excuse(waited_s)

    def next_inner_step(self, sync_t: float) -> None:
        """Begin another inner step of the same step; the gradients of the one before were usable at ``sync_t``."""
        self.waited_s += sync_t - self.ready_t
        self.ready_t = 0.0

    def gradients_ready(self) -> None:
        """Note that this rank has computed its last gradient of the step. Call it before the last exchange begins."""
        self.ready_t = time.monotonic()
        self.told_ready(self.ready_t)

    @property
    def checks(self) -> Evidence:
        """Where a strategy records what the checkers should know of sums and codecs of its own."""
        return self.groups.hooks.evidence

    def failpoint(self, name: str) -> bool:
        """Return whether a planted error goes wrong at the place ``name``, now; False outside tests."""
        return self.groups.hooks.failpoint(name)

    @classmethod
    def of_default_group(cls, site: str = "", timeout_s: float = 30.0) -> Context:
        """Return the context of an initialised default process group; a collective call. ``site``: this rank's."""
        return cls(Groups.of_default_group(site), timeout_s)


class Strategy(ABC):
    """One way of training across sites. Options are arguments of the constructor, by the names of the twin's options.

    All ranks call the same methods in the same order. Errors of collectives (RuntimeError) pass through.
    """

    context: Context
    module: nn.Module
    """What ``run`` calls; set by ``prepare``."""
    _compared: list[Tensor] | None = None
    step_group: tuple[int, ...] = ()
    """Ranks that end each step together with this one; set by ``prepare``; empty for all ranks."""

    @abstractmethod
    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        """Wrap or shard ``model``, make process groups, set ``context`` and ``module``.

        All ranks have equal parameters. Returns the parameters that this rank's inner optimizer updates.
        """

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:  # noqa: B027
        """Run one pass without communication before a checkpoint is loaded, if a first pass differs from later ones."""

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Compute gradients, exchanged as far as the strategy does so in a step; return the loss, detached.

        None where this rank does not know it, as an earlier stage of a pipeline. Calls ``context.before_backward`` and
        ``context.gradients_ready``.
        """
        loss = self.context.loss(self.module(inputs), targets)
        self.context.before_backward(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def updates(self, step: int) -> bool:
        """Return whether the inner optimizer updates the parameters after ``step`` (from 1)."""
        return True

    def inner_steps(self, step: int) -> int:
        """Return how often this rank trains and updates within ``step``, at least once (``site_pace.py``)."""
        return 1

    def after_step(self, step: int) -> None:  # noqa: B027
        """Begin the exchanges that are due after ``step``, and apply those that have arrived."""

    def finish(self, step: int) -> None:  # noqa: B027
        """End with an exchange after the last step, so that all of it is committed; wait for what is on its way.

        After a job that was stopped where :meth:`updates` is False, the loop updates the parameters once more."""

    def settle(self, step: int) -> None:  # noqa: B027
        """Bring all that the next checkpoint must have into the tensors of :meth:`state`; all ranks call it, after the
        same ``step``, before they save. Where sites do not step together, this is where they meet."""

    def state(self) -> dict[str, Tensor]:
        """Return the strategy's own tensors by name, beside parameters and inner optimizer.

        A checkpoint saves them, and loads into them in place. Nothing may be on its way that is not among them."""
        return {}

    def loaded(self) -> None:  # noqa: B027
        """Adopt what a checkpoint has loaded into the tensors of :meth:`state`."""

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        """Return tensors by the names that the twin compares between ranks (``equal``), without communication."""
        if self._compared is None:  # a walk through all modules in each step would take 0.3 ms
            self._compared = [parameter.detach() for parameter in self.module.parameters()]
        return {"parameters": self._compared}

    def outer_parameters(self) -> list[Tensor]:
        """Return what a user would keep, in the order of the model's parameters; ranks of a site may gather it."""
        return [parameter.detach() for parameter in self.module.parameters()]

    def outer_model(self, model: nn.Module) -> nn.Module | None:
        """Fill ``model``, unwrapped and of the job's shape, with the outer parameters, and return what to evaluate.

        None if this rank cannot hold the whole model. A collective call, as :meth:`outer_parameters` is.
        """
        return filled(model, self.outer_parameters())

    @property
    def outer_version(self) -> int:
        """The number of exchanges in the outer parameters; the number of steps where there is no outer loop."""
        return self.context.step


def filled(model: nn.Module, tensors: Sequence[Tensor]) -> nn.Module | None:
    """Copy ``tensors`` over the parameters of ``model``; None, and nothing is changed, if their shapes differ."""
    parameters = list(model.parameters())
    if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in parameters]:
        return None
    with torch.no_grad():
        for mine, theirs in zip(parameters, tensors, strict=True):
            mine.copy_(theirs)
    return model


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Return the elements of all tensors one after the other, copied: (elements,)."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, into: Iterable[Tensor]) -> None:
    """Copy ``flat`` (elements,) over the tensors, in place; more elements than they have are padding."""
    begin = 0
    with torch.no_grad():
        for tensor in into:
            tensor.copy_(flat[begin : begin + tensor.numel()].view_as(tensor))
            begin += tensor.numel()
