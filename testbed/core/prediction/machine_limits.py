"""What a lab costs the machine itself: whether its cores can carry a lab that is similar to a prediction. Pure."""

from __future__ import annotations

from typing import Final

from testbed.core.units import format_duration, format_number

__all__ = ["RANK_STEP_S", "cpu_bound", "cpu_share"]

RANK_STEP_S: Final = 22e-3
"""CPU of one rank and step without compute: the upper end of 13 to 22 ms, measured with 64 ranks of gloo, two cores."""


def cpu_share(ranks: int, step_s: float, cores: int) -> float:
    """Return the share of ``cores`` that a lab of ``ranks`` ranks needs beside compute; above 1 it is CPU-bound.

    >>> cpu_share(64, 1.0, 2), cpu_share(64, 0.5, 2)
    (0.704, 1.408)
    """
    return ranks * RANK_STEP_S / (step_s * cores)


def cpu_bound(ranks: int, step_s: float, cores: int) -> str:
    """Return the verdict of a lab whose declared steps its machine cannot carry, in a sentence; empty if it can.

    >>> cpu_bound(4, 0.08, 2)
    ''
    >>> cpu_bound(64, 0.5, 2)
    'CPU-bound here: 64 ranks need 22 ms of CPU each per step, 1.41 times what 2 cores have in 500 ms; declare 704 ms or more, or use fewer ranks'
    """  # noqa: E501
    share = cpu_share(ranks, step_s, cores)
    if share <= 1:
        return ""
    need = f"{ranks} ranks need {format_duration(RANK_STEP_S)} of CPU each per step"
    have = f"{format_number(share, 3)} times what {cores} cores have in {format_duration(step_s)}"
    return f"CPU-bound here: {need}, {have}; declare {format_duration(share * step_s, 3)} or more, or use fewer ranks"
