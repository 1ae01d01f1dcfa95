"""Energy of exchanges and of waiting. Pure. All constants are inputs: none is assumed here."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["exchange_j", "waiting_j"]


def exchange_j(bits: Mapping[str, float], joules_per_bit: Mapping[str, float]) -> float:
    """Return the joules of ``bits`` per class of path (fabric, metro, long-haul), at that class's joules per bit.

    >>> round(exchange_j({"metro": 1e12}, {"metro": 50e-12}), 6)
    50.0
    """
    return sum(amount * joules_per_bit[path] for path, amount in bits.items())


def waiting_j(exposed_s: float, ranks: int, idle_watts: float) -> float:
    """Return the joules that ``ranks`` ranks draw while each waits ``exposed_s`` at ``idle_watts``."""
    return exposed_s * ranks * idle_watts
