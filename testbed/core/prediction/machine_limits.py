"""What a lab costs the machine itself: whether its cores can carry a lab that is similar to a prediction. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["RANK_STEP_S", "cpu_share"]

RANK_STEP_S: Final = 22e-3
"""CPU of one rank and step without compute: the upper end of 13 to 22 ms, measured with 64 ranks of gloo, two cores."""


def cpu_share(ranks: int, step_s: float, cores: int) -> float:
    """Return the share of ``cores`` that a lab of ``ranks`` ranks needs beside compute; above 1 it is CPU-bound.

    >>> cpu_share(64, 1.0, 2), cpu_share(64, 0.5, 2)
    (0.704, 1.408)
    """
    return ranks * RANK_STEP_S / (step_s * cores)
