"""The protocol of a driver: a handler that creates and removes a lab's namespaces, links and routes.

The engine (``testbed.keeper.engine``) depends on these protocols only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from testbed.core.plan.step import Property, Step

Facts = dict[str, Any]
"""Values learned while applying a Step that its undo needs (inodes, pids): JSON-serialisable, journalled."""


class Handler(Protocol):
    """Applies and undoes some kinds of Steps."""

    def make(self, step: Step) -> Facts:
        """Create the resource. Raises TestbedError."""
        ...

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        """Remove the resource; a missing one is no error. ``facts`` is empty if :meth:`make` did not finish."""
        ...

    def assign(self, settings: Sequence[Property]) -> None:
        """Set these properties, all at once."""
        ...
