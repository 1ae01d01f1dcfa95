"""Parse what a library offers; the answer comes from an external program, so nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.core.user_text import shown
from testbed.core.validation.operation import OPERATIONS

__all__ = ["parse_offers"]


def parse_offers(value: object) -> dict[str, Any]:
    """Parse ``offers`` of an answer to ``join``: ``types``, ``reductions`` and ``same_bits`` of each operation that it
    names, and ``groups`` and ``rebuilds``. What is missing or null is not offered.

    Raises:
        ValueError: with a message that reads well after "its offers:".
    """
    if not isinstance(value, Mapping):
        raise ValueError("expected a JSON object")
    for name, offer in value.items():
        if isinstance(offer, Mapping) and name not in OPERATIONS:
            raise ValueError(f"unknown operation {shown(str(name))} (known: {', '.join(OPERATIONS)})")
    offers: dict[str, Any] = {}
    for do in OPERATIONS:
        offer = value.get(do)
        if offer is None:
            continue
        if not isinstance(offer, Mapping):
            raise ValueError(f"{do}: expected a JSON object")
        offers[do] = {
            "types": _names(do, offer, "types"),
            "reductions": _names(do, offer, "reductions"),
            "same_bits": _whether(f"{do}.same_bits", offer.get("same_bits")),
        }
    return offers | {key: _whether(key, value.get(key)) for key in ("groups", "rebuilds")}


def _names(do: str, offer: Mapping[str, Any], key: str) -> list[str]:
    names = offer.get(key)
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{do}.{key}: expected a list of names")
    return names


def _whether(what: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return value is True
    raise ValueError(f"{what}: expected true or false")
