"""Deliberately wrong training, for tests: shows that each checker finds its fault.

The environment variable ``TESTBED_BREAK`` names one fault, ``KIND:step=N``, which occurs once, at the first opportunity
from step N on, in the first attempt; on rank R with ``rank=R``, else on every rank. It breaks any strategy.

In the watched process group (``group=NAME`` and ``operation=KIND`` choose another operation than the first one):

* ``wrong-sum``: flips the lowest bit of one element of an operation's result.
* ``lost-input``: replaces half of what goes into an operation by zeros.
* ``unsent``: does not carry out the operations between sites of one group in that step: a fragment is never sent.
* ``hang``: sleeps an hour, or ``seconds=``, before it enters an operation.

Around the optimizer and the strategy's state:

* ``stale``: trains step N, and continues, from the parameters of two updates before.
* ``lost-update``: the inner optimizer skips step N.
* ``stale-outer``: the outer state is once more that of the exchange before.
* ``foreign-state``: a rank continues with another state than its mates: that with which the attempt began.

Inside strategies, where they ask :func:`testbed_agents.failpoints.failpoint`:

* ``applied-twice``: an exchange is applied twice.
* ``dropped-residual``: of error feedback, what was not transmitted is forgotten.
* ``tied-twice``: tied weights are in two fragments.
* ``wrong-parcel``: one bit of a push is another when a server of outer parameters takes it.
* ``lost-version``: such a server makes a version of a push, and does not apply the push.
* ``wrong-outer``: delayed Nesterov applies half of a push only.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from testbed_agents import failpoints, watched
from testbed_agents.strategies import Strategy
from testbed_agents.watched import Operation

VARIABLE = "TESTBED_BREAK"
IN_GROUP = ("wrong-sum", "lost-input", "unsent", "hang")
AROUND = ("stale", "lost-update", "stale-outer", "foreign-state")
INSIDE = ("applied-twice", "dropped-residual", "tied-twice", "wrong-parcel", "lost-version", "wrong-outer")
KINDS = (*IN_GROUP, *AROUND, *INSIDE)
AN_HOUR_S = 3600.0


@dataclass(frozen=True)
class Fault:
    """A fault of one rank; ``rank`` None: of every rank. ``group``, ``operation``: of which; empty: of any."""

    kind: str
    rank: int | None
    step: int
    seconds: float
    group: str = ""
    operation: str = ""

    @classmethod
    def parse(cls, written: str) -> Fault:
        """Parse ``KIND:rank=R,step=N``. Raises ValueError."""
        kind, _, rest = written.partition(":")
        fields = dict(part.partition("=")[::2] for part in rest.split(","))
        known = {"rank", "step", "seconds", "group", "operation"}
        if kind not in KINDS or not fields.keys() <= known or "step" not in fields:
            raise ValueError(f"{VARIABLE}: expected KIND:rank=R,step=N (kinds: {', '.join(KINDS)}), got {written!r}")
        rank = int(fields["rank"]) if "rank" in fields else None
        of = fields.get("group", ""), fields.get("operation", "")
        return cls(kind, rank, int(fields["step"]), float(fields.get("seconds", 0)), *of)


def plant(rank: int) -> Fault | None:
    """Plant the fault of TESTBED_BREAK, if it is set and of this rank. Call it before ``Strategy.prepare``."""
    written = os.environ.get(VARIABLE)
    fault = Fault.parse(written) if written else None
    if fault is None or fault.rank not in (None, rank):
        return None
    print(f"broken on purpose: {written}", flush=True)
    return fault


class Broken:
    """The fault at work. ``step``, ``optimizer`` are set by :meth:`install`; failpoints work from the beginning."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._fired = False
        self._skipped: tuple[str, int] | None = None
        self._strategy: Strategy | None = None
        if fault.kind in INSIDE:
            failpoints.plant(self._asked)

    def install(self, strategy: Strategy, optimizer: torch.optim.Optimizer) -> None:
        """Begin: the strategy is prepared, and a checkpoint loaded."""
        self._strategy = strategy
        if self.fault.kind in IN_GROUP:
            watched.break_by(self)
        elif self.fault.kind in ("stale", "lost-update"):
            self._wrap_update(optimizer)
        elif self.fault.kind in AROUND:
            self._wrap_exchange(strategy, optimizer)

    @property
    def _step(self) -> int:
        return self._strategy.context.step if self._strategy else 0

    def _due(self, before: int = 0) -> bool:
        return not self._fired and self._step >= self.fault.step - before

    def _asked(self, name: str) -> bool:
        # Fragments are made before the first step: tied weights are in two of them from the beginning.
        if name != self.fault.kind or not (self._due() or name == "tied-twice"):
            return False
        self._fired = True
        return True

    # In the group

    def _of_it(self, operation: Operation) -> bool:
        wanted = self.fault
        if operation.kind == "barrier" or not operation.byte_count:
            return False
        return operation.group.startswith(wanted.group) and wanted.operation in ("", operation.kind)

    def entering(self, operation: Operation) -> bool:
        if not self._of_it(operation):
            return True
        if self.fault.kind == "hang" and self._due():
            self._fired = True
            time.sleep(self.fault.seconds or AN_HOUR_S)
        if self.fault.kind == "unsent" and self._crosses(operation):
            here = (operation.group, self._step)
            if self._due():
                self._fired, self._skipped = True, here
            if self._skipped == here:
                for each in operation.outputs:
                    if not any(each is it for it in operation.inputs):
                        each.zero_()
                return False
        return True

    def inputs(self, operation: Operation, given: Any) -> Any:
        if self.fault.kind == "lost-input" and self._of_it(operation) and self._due() and operation.inputs:
            self._fired = True
            given = given if operation.kind in ("all_reduce", "reduce") else _copied(given)
            _zero_half(list(watched.flat(given)))
        return given

    def outputs(self, operation: Operation) -> None:
        if self.fault.kind == "wrong-sum" and self._of_it(operation) and self._due() and operation.outputs:
            self._fired = True
            first = next(each for each in operation.outputs if each.numel())
            flat = first.detach().view(-1)
            flat[:1].view(torch.uint8)[0] ^= 1

    def _crosses(self, operation: Operation) -> bool:
        sites = self._strategy.context.groups.sites if self._strategy else ()
        return len({sites[rank] for rank in operation.ranks}) > 1 or len(set(sites)) == 1

    # Around the optimizer and the strategy's state

    def _wrap_update(self, optimizer: torch.optim.Optimizer) -> None:
        before: deque[list[Tensor]] = deque(maxlen=2)
        right = optimizer.step

        def update(*args: Any, **kwargs: Any) -> Any:
            before.append([each.detach().clone() for each in _updated(optimizer)])
            if self.fault.kind == "lost-update" and self._due():
                self._fired = True
                return
            right(*args, **kwargs)
            if self.fault.kind == "stale" and self._due(before=1) and len(before) == 2:
                self._fired = True
                _restore(_updated(optimizer), before[0])

        optimizer.step = update  # type: ignore[method-assign]

    def _wrap_exchange(self, strategy: Strategy, optimizer: torch.optim.Optimizer) -> None:
        of = _outer if self.fault.kind == "stale-outer" else _everything
        saved: deque[list[Tensor]] = deque([_clones(of(strategy, optimizer))], maxlen=2)
        right, version = strategy.after_step, strategy.outer_version

        def after_step(step: int) -> None:
            nonlocal version
            stale = self.fault.kind == "stale-outer"
            if stale and self._due() and len(saved) == 2:
                self._fired = True
                _restore(of(strategy, optimizer), saved[0])
            right(step)
            if not stale and self._due():
                self._fired = True
                _restore(of(strategy, optimizer), saved[0])
                strategy.loaded()
            if stale and strategy.outer_version != version:
                version = strategy.outer_version
                saved.append(_clones(of(strategy, optimizer)))

        strategy.after_step = after_step  # type: ignore[method-assign]


def _updated(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _outer(strategy: Strategy, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the outer parameters and moments: of a strategy's state, what is neither counted nor error feedback."""
    return [it for name, it in strategy.state().items() if it.is_floating_point() and "residual" not in name]


def _everything(strategy: Strategy, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [*_updated(optimizer), *strategy.state().values()]


def _clones(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in tensors]


def _restore(tensors: Iterable[Tensor], saved: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for tensor, old in zip(tensors, saved, strict=True):
            tensor.copy_(old)


def _copied(given: Any) -> Any:
    return given.detach().clone() if isinstance(given, Tensor) else [_copied(each) for each in given]


def _zero_half(tensors: list[Tensor]) -> None:
    left = -(-sum(each.numel() for each in tensors) // 2)
    with torch.no_grad():
        for each in tensors:
            each.view(-1)[:left] = 0
            left = max(0, left - each.numel())
