"""Parse and format impairments as users write them, in a command or a file: ``delay=5ms loss=0.1% burst=8``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from testbed.core import units
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment
from testbed.core.user_text import expected, shown

__all__ = ["PARAMETERS", "Misread", "Parameter", "judge", "lay", "parse", "read", "text"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of an impairment: its field, its parser (raises ValueError), and its help text."""

    field: str
    parse: Callable[[object], Any]
    help_text: str


@dataclass(frozen=True)
class Misread:
    """A mistake in one parameter: the key as written, and a sentence that ends with the fix."""

    key: str
    why: str


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
        return value.lower() in ("true", "yes", "on")
    raise units.Unreadable(*expected("a boolean", value, "write true or false"))


def _distribution(value: object) -> str:
    return units.parse_choice(value, DISTRIBUTIONS, "distribution")


def _packets(value: object) -> float:
    packets = units.parse_number(value, low=0, high=1e9)
    if packets < 1:
        raise units.Unreadable(f"{shown(value)} is out of range", "expected at least 1 packet, such as 8")
    return packets


PARAMETERS: Final[Mapping[str, Parameter]] = {
    "delay": Parameter("delay_s", units.parse_delay_s, "one way, replaces the link's own (5ms)"),
    "jitter": Parameter("jitter_s", units.parse_delay_s, "spread around the delay (20us)"),
    "distribution": Parameter("jitter_distribution", _distribution, "of the jitter: " + ", ".join(DISTRIBUTIONS)),
    "correlation": Parameter(
        "jitter_correlation", units.parse_probability, "of a packet's jitter with the previous one's (25%)"
    ),
    "jitter_reorders": Parameter("jitter_reorders", _flag, "let jittered packets overtake one another (true)"),
    "rate": Parameter("rate_bps", units.parse_rate_bps, "on the wire (100M)"),
    "overhead": Parameter(
        "overhead_bytes", units.parse_size_bytes, "wire overhead of a packet beyond its frame (24 B)"
    ),
    "queue": Parameter("queue_bytes", units.parse_size_bytes, "size of the queue (64 KiB); 0: no limit"),
    "loss": Parameter("loss", units.parse_probability, "mean probability per MTU segment (0.1%, 1e-9)"),
    "burst": Parameter("burst", _packets, "mean length of a run of lost packets (8)"),
    "p": Parameter("p", units.parse_probability, "burst loss by its Markov chain: from good to bad (0.1%)"),
    "r": Parameter("r", units.parse_probability, "from bad to good (10%)"),
    "h": Parameter("h", units.parse_probability, "a packet passes in the bad state (0)"),
    "k": Parameter("k", units.parse_probability, "a packet passes in the good state (100%)"),
    "corrupt": Parameter(
        "corrupt", units.parse_probability, "bits are flipped: Ethernet's frame check drops the frame (1e-5)"
    ),
    "corrupt_survives": Parameter(
        "corrupt_survives", _flag, "the frame check misses it: TCP and UDP see the wrong bit (true)"
    ),
    "duplicate": Parameter("duplicate", units.parse_probability, "a packet is delivered twice (0.1%)"),
    "reorder": Parameter("reorder", units.parse_probability, "a packet is delayed and overtaken (1%)"),
    "reorder_by": Parameter("reorder_by_s", units.parse_delay_s, "additional delay of reordered packets (500us)"),
    "largest": Parameter(
        "largest_bytes", units.parse_size_bytes, "drop larger IP packets, as in an MTU black hole (1400 B); 0: none"
    ),
}
"""Parameters by the key that users write, in the order of ``--help``."""

_FORMATS: Final[Mapping[Callable[[object], Any], Callable[[Any], str]]] = {
    units.parse_delay_s: units.format_delay,
    units.parse_rate_bps: units.format_rate,
    units.parse_size_bytes: units.format_size,
    units.parse_probability: units.format_probability,
    _packets: "{:g}".format,
    _flag: shown,
}

_MEANS, _CHAIN = ("loss", "burst"), ("p", "r", "h", "k")


def parse(written: Mapping[str, object]) -> tuple[dict[str, Any], tuple[Misread, ...]]:
    """Parse each value by itself. Returns the valid values by key, in SI units, and the mistakes."""
    values: dict[str, Any] = {}
    misread: list[Misread] = []
    for key, value in written.items():
        if key not in PARAMETERS:
            misread.append(Misread(key, f"unknown parameter (available: {', '.join(PARAMETERS)})"))
            continue
        try:
            values[key] = PARAMETERS[key].parse(value)
        except ValueError as error:
            misread.append(Misread(key, str(error)))
    return values, tuple(misread)


def lay(values: Mapping[str, Any], base: Impairment) -> Impairment:
    """Return ``base`` overlaid with ``values`` (by key, as :func:`parse` returns them).

    Loss given by its means and loss given by its chain replace each other completely.
    """
    changes = {PARAMETERS[key].field: value for key, value in values.items()}
    blank = Impairment()
    replaced = (
        _CHAIN if any(key in changes for key in _MEANS) else _MEANS if any(key in changes for key in _CHAIN) else ()
    )
    for key in replaced:
        changes.setdefault(key, getattr(blank, key))
    if changes.get("loss") in (0.0, 1.0):
        changes.setdefault("burst", 0.0)  # a loss of 0 or 1 has no bursts
    return dataclasses.replace(base, **changes)


def judge(impairment: Impairment, mtu: int = 0) -> tuple[Misread, ...]:
    """Return the mistakes in ``impairment``, by the key that users write.

    With the ``mtu`` of its link, in bytes, this includes a queue too small for a full packet.
    """
    mistakes = [Misread(key, why) for key, _, why in (finding.partition(": ") for finding in impairment.findings())]
    least = impairment.least_queue_bytes(mtu)
    if mtu and 0 < impairment.queue_bytes < least and impairment.rate_bps:
        why = f"{impairment.queue_bytes} B cannot hold a full packet, so none would pass; write at least {least} B"
        mistakes.append(Misread("queue", why))
    return tuple(mistakes)


def read(written: Mapping[str, object], base: Impairment, mtu: int = 0) -> tuple[Impairment, tuple[Misread, ...]]:
    """Return ``base`` overlaid with the written values, and all mistakes, including those of :func:`judge`.

    An invalid value leaves that of ``base``.
    """
    values, misread = parse(written)
    result = lay(values, base)
    return result, misread or judge(result, mtu)


def text(key: str, value: Any) -> str:
    """Format a value in SI units as users write it; ``key`` is one of PARAMETERS.

    >>> text("delay", 0.005), text("loss", 0.001)
    ('5 ms', '0.1%')
    """
    return _FORMATS.get(PARAMETERS[key].parse, str)(value)
