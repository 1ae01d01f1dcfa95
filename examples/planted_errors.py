"""Planted errors: training that is wrong on purpose, to show that each checker finds its error (docs/checkers.md).

The environment variable ``TESTBED_BREAK`` names one error, ``KIND:step=N``, which occurs once, at the first opportunity
from step N on, in the first attempt; on rank R with ``rank=R``, else on every rank. It breaks any strategy. The fork
server of a clone loads this file, and passes each rank its error (``testbed_agents.hooks.PlantedError``).

In the watched process group (``group=NAME`` and ``operation=KIND`` choose another operation than the first one):

* ``wrong-sum``: flips the lowest bit of one element of an operation's result.
* ``lost-input``: replaces half of the input of an operation by zeros.
* ``unsent``: does not carry out the operations between sites of one group in that step: a fragment is never sent.
* ``hang``: sleeps an hour, or ``seconds=``, before it enters an operation.

Around the optimizer and the strategy's state:

* ``stale``: trains step N, and continues, from the parameters of two updates before.
* ``lost-update``: the inner optimizer skips step N.
* ``stale-outer``: the outer state is once more that of the exchange before.
* ``foreign-state``: a rank continues with the state with which the attempt began, unlike its mates.

Inside strategies, where they call ``failpoint``:

* ``applied-twice``: an exchange is applied twice.
* ``dropped-residual``: of error feedback, what was not transmitted is forgotten.
* ``tied-twice``: tied weights are in two fragments.
* ``wrong-parcel``: one bit of a push is flipped when a server of outer parameters receives it.
* ``lost-version``: such a server makes a version of a push, and does not apply the push.
* ``wrong-outer``: delayed Nesterov applies half of a push only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from testbed_agents import watched
from testbed_agents.strategies import Strategy
from testbed_agents.watched import Operation
from torch import Tensor

IN_GROUP = ("wrong-sum", "lost-input", "unsent", "hang")
AROUND = ("stale", "lost-update", "stale-outer", "foreign-state")
INSIDE = ("applied-twice", "dropped-residual", "tied-twice", "wrong-parcel", "lost-version", "wrong-outer")
KINDS = (*IN_GROUP, *AROUND, *INSIDE)
AN_HOUR_S = 3600.0


def plant(rank: int, written: str) -> PlantedError | None:
    """Return the error that ``written`` (the value of TESTBED_BREAK) plants in ``rank``; None if it is another rank's.

    Raises ValueError.
    """
    plan = Plan.parse(written)
    if plan.rank not in (None, rank):
        return None
    print(f"broken on purpose: {written}", flush=True)
    return PlantedError(plan)


@dataclass(frozen=True)
class Plan:
    """Which error, and when. ``rank`` None: on every rank. ``group``, ``operation``: empty for any."""

    kind: str
    rank: int | None
    step: int
    seconds: float
    group: str = ""
    operation: str = ""

    @classmethod
    def parse(cls, written: str) -> Plan:
        """Parse ``KIND:rank=R,step=N``. Raises ValueError."""
        kind, _, written_fields = written.partition(":")
        fields = dict(part.partition("=")[::2] for part in written_fields.split(","))
        accepted = {"rank", "step", "seconds", "group", "operation"}
        if kind not in KINDS or not fields.keys() <= accepted or "step" not in fields:
            raise ValueError(f"TESTBED_BREAK: expected KIND:rank=R,step=N (kinds: {', '.join(KINDS)}), got {written!r}")
        rank = int(fields["rank"]) if "rank" in fields else None
        target = fields.get("group", ""), fields.get("operation", "")
        return cls(kind, rank, int(fields["step"]), float(fields.get("seconds", 0)), *target)


class PlantedError:
    """An error of one rank. Failpoints work from the beginning, all other kinds from :meth:`install` on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._fired = False
        self._skipped: tuple[str, int] | None = None
        self._strategy: Strategy | None = None

    def install(self, strategy: Strategy, optimizer: torch.optim.Optimizer) -> None:
        """Begin: the strategy is prepared, and a checkpoint loaded."""
        self._strategy = strategy
        if self.plan.kind in ("stale", "lost-update"):
            self._wrap_update(optimizer)
        elif self.plan.kind in AROUND:
            self._wrap_exchange(strategy, optimizer)

    @property
    def _step(self) -> int:
        return self._strategy.context.step if self._strategy else 0

    def _due(self, before: int = 0) -> bool:
        return not self._fired and self._step >= self.plan.step - before

    def failpoint(self, name: str) -> bool:
        # Fragments are made before the first step: tied weights are in two of them from the beginning.
        if name != self.plan.kind or not (self._due() or name == "tied-twice"):
            return False
        self._fired = True
        return True

    # In the group

    def _hits(self, operation: Operation) -> bool:
        """Return whether the error is planted in operations like this one."""
        if self._strategy is None or operation.kind == "barrier" or not operation.byte_count:
            return False
        return operation.group.startswith(self.plan.group) and self.plan.operation in ("", operation.kind)

    def entering(self, operation: Operation) -> bool:
        if not self._hits(operation):
            return True
        if self.plan.kind == "hang" and self._due():
            self._fired = True
            time.sleep(self.plan.seconds or AN_HOUR_S)
        if self.plan.kind == "unsent" and self._crosses_sites(operation):
            group_and_step = (operation.group, self._step)
            if self._due():
                self._fired, self._skipped = True, group_and_step
            if self._skipped == group_and_step:
                for output in operation.outputs:
                    if not any(output is tensor for tensor in operation.inputs):
                        output.zero_()
                return False
        return True

    def inputs(self, operation: Operation, given: Any) -> Any:
        if self.plan.kind == "lost-input" and self._hits(operation) and self._due() and operation.inputs:
            self._fired = True
            given = given if operation.kind in ("all_reduce", "reduce") else _copied(given)
            _zero_half(list(watched.flat(given)))
        return given

    def outputs(self, operation: Operation) -> None:
        if self.plan.kind == "wrong-sum" and self._hits(operation) and self._due() and operation.outputs:
            self._fired = True
            first = next(tensor for tensor in operation.outputs if tensor.numel())
            flat = first.detach().view(-1)
            flat[:1].view(torch.uint8)[0] ^= 1

    def _crosses_sites(self, operation: Operation) -> bool:
        sites = self._strategy.context.groups.sites if self._strategy else ()
        return len({sites[rank] for rank in operation.ranks}) > 1 or len(set(sites)) == 1

    # Around the optimizer and the strategy's state

    def _wrap_update(self, optimizer: torch.optim.Optimizer) -> None:
        before: deque[list[Tensor]] = deque(maxlen=2)
        correct_step = optimizer.step

        def update(*args: Any, **kwargs: Any) -> Any:
            before.append(_clones(_updated(optimizer)))
            if self.plan.kind == "lost-update" and self._due():
                self._fired = True
                return
            correct_step(*args, **kwargs)
            if self.plan.kind == "stale" and self._due(before=1) and len(before) == 2:
                self._fired = True
                _restore(_updated(optimizer), before[0])

        optimizer.step = update  # type: ignore[method-assign]

    def _wrap_exchange(self, strategy: Strategy, optimizer: torch.optim.Optimizer) -> None:
        stale = self.plan.kind == "stale-outer"
        tensors_of = _outer if stale else _everything
        saved: deque[list[Tensor]] = deque([_clones(tensors_of(strategy, optimizer))], maxlen=2)
        correct_after_step, version = strategy.after_step, strategy.outer_version

        def after_step(step: int) -> None:
            nonlocal version
            if stale and self._due() and len(saved) == 2:
                self._fired = True
                _restore(tensors_of(strategy, optimizer), saved[0])
            correct_after_step(step)
            if not stale and self._due():
                self._fired = True
                _restore(tensors_of(strategy, optimizer), saved[0])
                strategy.loaded()
            if stale and strategy.outer_version != version:
                version = strategy.outer_version
                saved.append(_clones(tensors_of(strategy, optimizer)))

        strategy.after_step = after_step  # type: ignore[method-assign]


def _updated(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _outer(strategy: Strategy, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the outer parameters and moments: of a strategy's state, what is neither counted nor error feedback."""
    named = strategy.state().items()
    return [tensor for name, tensor in named if tensor.is_floating_point() and "residual" not in name]


def _everything(strategy: Strategy, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [*_updated(optimizer), *strategy.state().values()]


def _clones(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _restore(tensors: Iterable[Tensor], saved: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for tensor, old in zip(tensors, saved, strict=True):
            tensor.copy_(old)


def _copied(given: Any) -> Any:
    return given.detach().clone() if isinstance(given, Tensor) else [_copied(part) for part in given]


def _zero_half(tensors: list[Tensor]) -> None:
    left = -(-sum(tensor.numel() for tensor in tensors) // 2)
    with torch.no_grad():
        for tensor in tensors:
            tensor.view(-1)[:left] = 0
            left = max(0, left - tensor.numel())
