"""What a library says that it has, operation by operation: ``offers`` of docs/validate.md."""

from __future__ import annotations

from dataclasses import dataclass

from testbed_agents.adapters.elements import TYPES

__all__ = ["Offer", "everything"]


@dataclass(frozen=True)
class Offer:
    """What the library has of an operation. ``same_bits``: it promises all ranks the same bits."""

    types: tuple[str, ...] = tuple(TYPES)
    reductions: tuple[str, ...] = ()
    same_bits: bool = False


def everything(
    reductions: tuple[str, ...] = ("sum", "max", "avg"),
    types: tuple[str, ...] = tuple(TYPES),
    *,
    same_bits: bool = False,
) -> dict[str, Offer]:
    """Of a library that has all operations: any type is moved, ``types`` are reduced; ``same_bits`` is all_reduce's."""
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
