"""Places where a strategy could go wrong, by name: a test plants its bug there (:mod:`testbed_agents.breakage`)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["failpoint", "plant"]


def _nowhere(name: str) -> bool:
    return False


_planted: Callable[[str], bool] = _nowhere


def failpoint(name: str) -> bool:
    """Whether to go wrong here, now; False outside such tests."""
    return _planted(name)


def plant(planted: Callable[[str], bool] | None) -> None:
    """Set the function that answers; None: the answer is always False."""
    global _planted
    _planted = planted or _nowhere
