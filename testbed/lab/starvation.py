"""Repeat a measurement for which the host delayed too many packets: how often, and how long to wait for free cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from testbed.host.linux.cpu_load import wait_until_free

__all__ = ["TRIES", "tries"]

LONGEST_WAITS_S: Final = (0.0, 1.0, 3.0)
"""Longest wait before each try. Other programs seldom use the cores for longer when they start or end; a longer wait
does not help against other guests of the hardware."""

TRIES: Final = len(LONGEST_WAITS_S)
"""How often a quantity is measured at most."""

Tell = Callable[[str], None]


def tries(tell: Tell) -> Iterator[int]:
    """Yield 1 to :data:`TRIES`; wait before each but the first until cores are free, and ``tell`` it."""
    for attempt, most_s in enumerate(LONGEST_WAITS_S, start=1):
        if most_s:
            tell(f"waiting for free cores, at most {most_s:.0f} s")
            wait_until_free(most_s)
        yield attempt
