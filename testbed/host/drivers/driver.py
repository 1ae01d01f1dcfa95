"""What a driver is: the hand that makes a lab's namespaces, cables and routes real, and unmakes them.

Protocols by role, the one that does nothing first. The engine (``testbed.keeper.engine``) knows only these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from testbed.core.plan.step import Property, Step

Facts = dict[str, Any]
"""What making a Step brought to light and its undoing needs (inodes, pids): JSON-able, journalled."""


class Handler(Protocol):
    """Makes and unmakes some kinds of Steps."""

    def make(self, step: Step) -> Facts:
        """Bring it into being. Raises TestbedError."""
        ...

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        """Remove it; what is not there is no error. ``facts`` is empty if making it never came to its end."""
        ...

    def assign(self, settings: Sequence[Property]) -> None:
        """Give these keys these values, all at once."""
        ...


class NoHandler:
    """Does nothing; for dry runs and tests."""

    def make(self, step: Step) -> Facts:
        return {}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        return None

    def assign(self, settings: Sequence[Property]) -> None:
        return None
