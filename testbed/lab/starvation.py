"""Measure again what was starved of CPU: how often, and how long to wait for free cores before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from testbed.host.linux.cpu_load import wait_until_free

__all__ = ["TRIES", "tries"]

TRIES: Final = 3
"""How often a quantity is measured at most, each time because the try before was starved."""

LONGEST_WAITS_S: Final = (0.0, 2.0, 8.0)
"""Longest wait before each try. Other programs seldom take the cores for as long as all waits together; one that does,
such as a job in another lab, is not waited for, because what is measured would run beside it."""

Tell = Callable[[str], None]


def tries(tell: Tell) -> Iterator[int]:
    """Yield 1 to :data:`TRIES`; wait before each but the first until cores are free, and ``tell`` it."""
    for attempt, most_s in enumerate(LONGEST_WAITS_S, start=1):
        if most_s:
            tell(f"waiting for free cores, at most {most_s:.0f} s")
            wait_until_free(most_s)
        yield attempt
