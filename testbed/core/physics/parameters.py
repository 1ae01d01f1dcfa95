"""Impairments as people write them: ``delay=5ms loss=0.1% burst=8``, in a command or under a link of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from testbed.core import units
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment
from testbed.core.words import shown

__all__ = ["PARAMETERS", "Misread", "Parameter", "read"]


@dataclass(frozen=True)
class Parameter:
    """One value of an impairment: its field, how it is read (raises ValueError), and what it means in a line."""

    field: str
    parse: Callable[[object], Any]
    words: str


@dataclass(frozen=True)
class Misread:
    """What is wrong with one parameter: the key as written, and a sentence that ends in what would be right."""

    key: str
    why: str


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
        return value.lower() in ("true", "yes", "on")
    raise units.Unreadable(f"{shown(value)} is neither true nor false", "write true or false")


def _distribution(value: object) -> str:
    if isinstance(value, str) and value in DISTRIBUTIONS:
        return value
    raise units.Unreadable(f"there is no distribution {shown(value)}", f"write one of {', '.join(DISTRIBUTIONS)}")


def _packets(value: object) -> float:
    return units.parse_number(value, low=1, high=1e9)


PARAMETERS: Final[Mapping[str, Parameter]] = {
    "delay": Parameter("delay_s", units.parse_delay_s, "one way, in place of the link's own (5ms)"),
    "jitter": Parameter("jitter_s", units.parse_delay_s, "spread of the delay around it (20us)"),
    "distribution": Parameter("jitter_distribution", _distribution, "of the jitter: " + ", ".join(DISTRIBUTIONS)),
    "correlation": Parameter(
        "jitter_correlation", units.parse_probability, "of a packet's jitter with the last one's (25%)"
    ),
    "jitter_reorders": Parameter("jitter_reorders", _flag, "let jittered packets overtake one another (true)"),
    "rate": Parameter("rate_bps", units.parse_rate_bps, "on the wire (100M)"),
    "overhead": Parameter(
        "overhead_bytes", units.parse_size_bytes, "what a packet costs at the rate beyond its frame (24 B)"
    ),
    "queue": Parameter("queue_bytes", units.parse_size_bytes, "bytes that may wait (64 KiB)"),
    "loss": Parameter("loss", units.parse_probability, "mean probability per MTU segment (0.1%, 1e-9)"),
    "burst": Parameter("burst", _packets, "lose in runs of so many packets on average (8)"),
    "p": Parameter("p", units.parse_probability, "burst loss by its chain: from good to bad (0.1%)"),
    "r": Parameter("r", units.parse_probability, "from bad to good (10%)"),
    "h": Parameter("h", units.parse_probability, "a packet passes in the bad state (0)"),
    "k": Parameter("k", units.parse_probability, "a packet passes in the good state (100%)"),
    "corrupt": Parameter(
        "corrupt", units.parse_probability, "bits are flipped: Ethernet's check drops the frame (1e-5)"
    ),
    "corrupt_survives": Parameter(
        "corrupt_survives", _flag, "the check misses them: TCP and UDP see the wrong bit (true)"
    ),
    "duplicate": Parameter("duplicate", units.parse_probability, "a packet comes twice (0.1%)"),
    "reorder": Parameter("reorder", units.parse_probability, "a packet is held back and overtaken (1%)"),
    "reorder_by": Parameter("reorder_by_s", units.parse_delay_s, "for how long it is held back (500us)"),
}
"""By the key that users write, in the order of ``--help``."""

_MEANS, _CHAIN = ("loss", "burst"), ("p", "r", "h", "k")


def read(written: Mapping[str, object], base: Impairment) -> tuple[Impairment, tuple[Misread, ...]]:
    """``base`` with what is written in place of its own, and everything that is wrong with it.

    What is not named keeps the value of ``base``. Loss by its means and loss by its chain replace each other whole.
    A value that cannot be read leaves that of ``base``, so that the others are judged all the same.
    """
    changes: dict[str, Any] = {}
    misread: list[Misread] = []
    for key, value in written.items():
        if key not in PARAMETERS:
            misread.append(Misread(key, f"there is no such impairment; there is {', '.join(PARAMETERS)}"))
            continue
        try:
            changes[PARAMETERS[key].field] = PARAMETERS[key].parse(value)
        except ValueError as error:
            misread.append(Misread(key, str(error)))
    blank = Impairment()
    replaced = (
        _CHAIN if any(key in changes for key in _MEANS) else _MEANS if any(key in changes for key in _CHAIN) else ()
    )
    for key in replaced:
        changes.setdefault(key, getattr(blank, key))
    if changes.get("loss") in (0.0, 1.0):
        changes.setdefault("burst", 0.0)  # nothing and everything have no bursts
    result = dataclasses.replace(base, **changes)
    if not misread:
        for finding in result.findings():
            key, _, why = finding.partition(": ")
            misread.append(Misread(key, why))
    return result, tuple(misread)
