"""What a library offers, operation by operation: ``offers`` of docs/validate.md."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_agents.adapters.elements import TYPES

__all__ = ["Offer", "everything"]


@dataclass(frozen=True)
class Offer:
    """What the library offers of an operation. ``same_bits``: it guarantees all ranks the same bits."""

    types: tuple[str, ...] = tuple(TYPES)
    reductions: tuple[str, ...] = ()
    same_bits: bool = False


def everything(
    reductions: tuple[str, ...] = ("sum", "max", "avg"),
    types: tuple[str, ...] = tuple(TYPES),
    *,
    same_bits: bool = False,
) -> dict[str, Offer]:
    """Return the offers of a library with all operations: any type is moved, ``types`` are reduced; ``same_bits`` is
    for all_reduce."""
    reduced = Offer(types, reductions)
    return {
        "all_reduce": Offer(types, reductions, same_bits),
        "reduce_scatter": reduced,
        "all_gather": Offer(),
        "broadcast": Offer(),
        "reduce": reduced,
        "all_to_all": Offer(),
        "send": Offer(),
        "barrier": Offer(),
    }
