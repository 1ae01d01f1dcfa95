"""Hooks of a job in its operations and outer optimizers: an observer, records, waits, and a planted error of a test.

One object per job, made with the process groups (``Groups.hooks``), attached by the trainer, and passed to all code
that records or waits. Without a trainer it does nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from testbed_agents.evidence import Evidence
from testbed_agents.stragglers import Stragglers

if TYPE_CHECKING:
    from testbed_agents.watched import Operation

__all__ = ["Hooks", "Observer", "PlantedError"]


class Observer(Protocol):
    """Called at each operation. Errors of an observer end the operation with them."""

    def entered(self, operation: Operation) -> None:
        """Note an operation that is about to begin, in the thread that begins it; inputs are intact."""

    def left(self, operation: Operation) -> None:
        """Note one that has ended or failed, in any thread; results are intact while this runs."""

    def added(self, group: str, ranks: tuple[int, ...], parts: Sequence[Tensor], total: Tensor) -> None:
        """Note a sum of messages that this rank added itself (``watched.added``)."""


class PlantedError(Protocol):
    """A deliberate error, for tests of the checkers (``examples/planted_errors.py``)."""

    def install(self, strategy: Any, optimizer: torch.optim.Optimizer) -> None:
        """Called when the strategy is prepared and a checkpoint loaded, before the first step."""

    def failpoint(self, name: str) -> bool:
        """Return whether the place in a strategy of this name does the wrong thing now."""

    def entering(self, operation: Operation) -> bool:
        """Return whether the operation is carried out at all; called before the observer."""

    def inputs(self, operation: Operation, given: Any) -> Any:
        """Return the input to use instead of ``given``, in the same structure; called after the observer."""

    def outputs(self, operation: Operation) -> None:
        """Called when the operation has ended, before the observer."""


@dataclass(eq=False)
class Hooks:
    """The hooks of one job.

    Attributes:
        observer: called when an operation of a watched group begins and ends; None for none.
        evidence: records sums, codecs and outer optimizers, which no operation shows.
        planted: the planted error of a test; None outside such tests.
        stragglers: in groups with a ``bound``, waits for ranks that are steps behind before the timeout runs; None: the
            timeout runs at once.
        labels: number of groups by name and ranks.
    """

    observer: Observer | None = None
    evidence: Evidence = field(default_factory=Evidence)
    planted: PlantedError | None = None
    stragglers: Stragglers | None = None
    labels: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)
    _blocked: Callable[[], AbstractContextManager[None]] | None = None
    _blocked_thread: int = 0

    @contextlib.contextmanager
    def unobserved(self) -> Iterator[None]:
        """Begin operations inside without the observer; those that run already keep it."""
        observer, self.observer = self.observer, None
        try:
            yield
        finally:
            self.observer = observer

    def count_blocked(self, blocked: Callable[[], AbstractContextManager[None]]) -> None:
        """Have the calling thread wait for operations inside ``blocked()``, which may count the time."""
        self._blocked, self._blocked_thread = blocked, threading.get_ident()

    def blocked(self) -> AbstractContextManager[None]:
        """Return the context in which this thread waits for an operation."""
        if self._blocked is None or self._blocked_thread != threading.get_ident():
            return contextlib.nullcontext()
        return self._blocked()

    def await_all(self) -> None:
        """Wait until all ranks have entered this step, before an operation with a rank that waits for them."""
        if self.stragglers is not None:
            self.stragglers.await_all()

    def detach(self) -> None:
        """Let go of the job: its records are about to be closed."""
        self.observer = self.planted = self.stragglers = self._blocked = None
        self.evidence = Evidence()

    def failpoint(self, name: str) -> bool:
        """Return whether a planted error goes wrong at the place ``name``, now; False outside tests."""
        return self.planted is not None and self.planted.failpoint(name)
