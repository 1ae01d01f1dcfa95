"""A fault in words, with its parameters: ``loss 0.5 % on north toward west``, ``cut north``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["at_link", "in_full", "named", "short"]

_VALUE: Final = re.compile(r"([-+]?[0-9][0-9.]*(?:e[-+]?[0-9]+)?)\s*([A-Za-z%/]+)?", re.ASCII)
_RANKS: Final = frozenset({"rank-kill", "rank-pause", "straggler"})
_RATES: Final = frozenset({"k", "M", "G", "T"})
_RATE_KEYS: Final = frozenset({"rate", "to"})
_TEMPLATES: Final[Mapping[str, tuple[str, str]]] = {
    # The parameter that the fault is about, and the words for it.
    "jitter": ("amount", "jitter of {}"),
    "rate-squeeze": ("to", "rate-squeeze to {}"),
    "corruption": ("share", "corruption of {}"),
    "mtu-black-hole": ("largest", "mtu-black-hole above {}"),
    "brown-out": ("loss", "brown-out to a loss of {}"),
    "evacuation": ("warning", "evacuation after a warning of {}"),
}
"""Other faults are named by their type, with all parameters behind it."""


def in_full(type: str, target: str, parameters: Mapping[str, str]) -> str:
    """Return the fault with its target and parameters; empty if nothing is known of it."""
    return _joined(type, target, parameters, "")


def named(type: str, target: str, parameters: Mapping[str, str]) -> str:
    """Return the same within a sentence: ``the cut of north``, ``loss 0.5 % on north``."""
    sentence = _joined(type, target, parameters, " of")
    return sentence if type == "impair" and parameters else f"the {sentence}"


def _joined(type: str, target: str, parameters: Mapping[str, str], joined: str) -> str:
    what, details = _parts(type, parameters)
    where = _where(type, target)
    if not what or not where:
        return (what or where) + details
    return f"{what}{' on' if what != type else joined} {where}{details}"


def short(type: str, target: str, parameters: Mapping[str, str]) -> str:
    """Return the fault for a label of a plot: ``cut north``, ``loss 0.5 % north:west``."""
    what, details = _parts(type, parameters)
    return f"{what} {target}".strip() + details


def at_link(type: str, target: str, parameters: Mapping[str, str]) -> str:
    """Return what the fault does, without the name of its link, for a label beside that link."""
    what, details = _parts(type, parameters)
    toward = target.partition(":")[2]
    return f"{what} toward {toward}{details}" if toward else what + details


def _parts(type: str, parameters: Mapping[str, str]) -> tuple[str, str]:
    """Return what happens, and further parameters in parentheses."""
    if type == "impair" and parameters:
        return ", ".join(_said(parameters)), ""
    key, template = _TEMPLATES.get(type, ("", ""))
    if key in parameters:
        others = _said({name: value for name, value in parameters.items() if name != key})
        return template.format(_value(key, parameters[key])), f" ({', '.join(others)})" if others else ""
    return type, f" ({', '.join(_said(parameters))})" if parameters else ""


def _said(parameters: Mapping[str, str]) -> list[str]:
    return [f"{key.replace('_', ' ')} {_value(key, value)}".strip() for key, value in parameters.items()]


def _value(key: str, written: str) -> str:
    """Return a value as written, with a space before its unit."""
    match = _VALUE.fullmatch(written.strip())
    if match is None:
        return written
    number, unit = match[1], match[2] or ""
    if unit in _RATES and key in _RATE_KEYS:
        unit = f"{unit}b/s"
    return f"{number} {unit}".strip() if unit != "x" else f"{number}x"


def _where(type: str, target: str) -> str:
    link, _, site = target.partition(":")
    if type in _RANKS and target.isdecimal():
        return f"rank {target}"
    return f"{link} toward {site}" if site else target
