"""Declared compute of a workload: how long a step computes, and which model the exchanged bytes stand for.

::

    compute: 80ms                           # a model that sleeps: parameters and gradients, no arithmetic
    compute: {real: true, at_least: 80ms}   # the agents' GPT inside that time: loss is real, time is declared
    compute: real:80ms                      # the same, as a command has it
    compute: {at_least: 80ms, speeds: {west: 0.5}}   # sites that are slower; the others have speed 1
    model: 1.3B                             # parameters at full scale, of a model that sleeps
    noise: 5%                               # standard deviation of a step's time, seeded, for each rank

Distance and time are real; rates and payloads are divided by the lab's ``scale``. So a declared step of 80 ms in the
lab *is* one of 80 ms at full scale, of a model ``scale`` times as large over fibers ``scale`` times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from testbed.core.physics.full_scale import at_full_scale
from testbed.core.training.layout import FLOAT32_BYTES, VECTORS_PER_LAYER
from testbed.core.units import (
    Unreadable,
    format_duration,
    format_number,
    format_percent,
    format_rate,
    format_size,
    parse_count,
    parse_number,
    parse_probability,
    parse_step_s,
)
from testbed.core.user_text import expected, unknown

__all__ = [
    "DDP_BUCKET_BYTES",
    "MODEL_LAYERS",
    "MOST_ELEMENTS",
    "DeclaredCompute",
    "equivalent",
    "format_count",
    "full_scale_buckets",
    "parse_compute",
    "parse_model",
    "parse_noise",
    "told_speeds",
]

MODEL_LAYERS: Final = 24
"""Layers of a model of declared size whose ``layers`` are not written: those of a GPT of 1.3 billion parameters (Brown
et al. 2020, arXiv:2005.14165, table 2.1)."""
DDP_BUCKET_BYTES: Final = 25 * 2**20
"""DistributedDataParallel's default ``bucket_cap_mb``."""
MOST_ELEMENTS: Final = 200_000_000
"""Parameters of a rank of a sleeping model: 4 GB with gradients, targets and moments."""
_MOST_S: Final = 3600.0
_HOW: Final = "write compute: 80ms, or compute: {real: true, at_least: 80ms}"
_HOW_FAST: Final = "write compute: {at_least: 80ms, speeds: {west: 0.5}}"
_LEAST_SPEED: Final = 0.01


@dataclass(frozen=True)
class DeclaredCompute:
    """How long a step of a rank computes.

    Attributes:
        seconds: of forward, backward and optimizer, at a site of speed 1.
        real: the agents' GPT runs inside this time; else a model sleeps.
        model: parameters of the sleeping model at full scale; None for as many as the agents' GPT has in the lab.
        noise: standard deviation of a step's time as a share, drawn anew for each rank and step.
        speeds: of sites relative to the fastest ones, whose speed is 1; a step of a site takes ``seconds`` / speed.
    """

    seconds: float
    real: bool = False
    model: float | None = None
    noise: float = 0.0
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def slowest_s(self) -> float:
        """Compute of a step at the slowest site."""
        return self.seconds / min(self.speeds.values(), default=1.0)

    def written(self) -> dict[str, Any]:
        """Return the keys of ``workload:`` that say the same."""
        time = f"{self.seconds:.9g}s"
        mapping = {
            **({"real": True} if self.real else {}),
            "at_least": time,
            **({"speeds": dict(self.speeds)} if self.speeds else {}),
        }
        return {
            "compute": mapping if len(mapping) > 1 else time,
            **({} if self.model is None else {"model": self.model}),
            **({"noise": self.noise} if self.noise else {}),
        }

    def __str__(self) -> str:
        noise = f" with a noise of {format_percent(self.noise)}" if self.noise else ""
        kind = "real" if self.real else "sleeping"
        return f"{format_duration(self.seconds)} of {kind} compute a step{noise}{told_speeds(self.speeds)}"


def told_speeds(speeds: Mapping[str, float]) -> str:
    """Return the speeds of sites that are slower than others, as the end of a sentence.

    >>> told_speeds({"west": 0.5}), told_speeds({})
    (' (west at 0.5 of the speed)', '')
    """
    slower = ", ".join(f"{site} at {speed:g}" for site, speed in speeds.items() if speed < 1)
    return f" ({slower} of the speed)" if slower else ""


def parse_compute(value: object) -> tuple[float, bool, dict[str, float]] | None:
    """Parse ``compute:``: (seconds, real, speeds); None for ``real``, the agents' GPT at its own speed.

    Raises Unreadable.
    """
    if isinstance(value, str):
        kind, colon, time = value.strip().partition(":")
        if kind == "real":
            return (_time(time.strip()), True, {}) if colon else None
    if not isinstance(value, Mapping):
        return _time(value), False, {}
    keys = ("real", "at_least", "speeds")
    if foreign := [key for key in value if key not in keys]:
        message, fix = unknown("key", str(foreign[0]), keys)
        raise Unreadable(message, fix or _HOW)
    real = value.get("real", False)
    if not isinstance(real, bool):
        raise Unreadable(*expected("true or false", real, _HOW))
    if "at_least" not in value:
        if real and "speeds" not in value:
            return None
        raise Unreadable(*expected("a time", None, _HOW_FAST if "speeds" in value else _HOW))
    return _time(value["at_least"]), real, _speeds(value.get("speeds", {}))


def _speeds(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(site, str) and site for site in value):
        raise Unreadable(*expected("the speed of each slower site", value, _HOW_FAST))
    try:
        return {str(site): parse_number(speed, low=_LEAST_SPEED, high=1.0) for site, speed in value.items()}
    except Unreadable as error:
        fix = "write the share of the fastest site's speed, such as 0.5"
        raise Unreadable(f"speeds: {error.message}", fix) from error


def _time(value: object) -> float:
    try:
        seconds = parse_step_s(value)
    except Unreadable as error:
        raise Unreadable(error.message, _HOW) from error
    if not 0 < seconds <= _MOST_S:
        raise Unreadable(*expected("a time above 0, at most 1 hour", value, _HOW))
    return seconds


def parse_model(value: object) -> float:
    """Parse ``model:``, a number of parameters at full scale. Raises Unreadable."""
    try:
        return parse_count(value)
    except Unreadable as error:
        raise Unreadable(error.message, "write the parameters at full scale, such as 1.3B") from error


def parse_noise(value: object) -> float:
    """Parse ``noise:``, a share of the declared time. Raises Unreadable."""
    try:
        return parse_probability(value)
    except Unreadable as error:
        message = error.message.replace("a probability", "a share of the declared time")
        raise Unreadable(message, "write a share such as 5%") from error


def full_scale_buckets(parameters: float, layers: int) -> int:
    """Return into how many buckets DistributedDataParallel cuts the gradients of a model of ``parameters``.

    A bucket is closed once it has 25 MiB, and a tensor is never split: a layer has four matrices.

    >>> full_scale_buckets(1.3e9, 24), full_scale_buckets(10e6, 24)
    (96, 2)
    """
    return max(1, min(VECTORS_PER_LAYER * layers, math.ceil(parameters * FLOAT32_BYTES / DDP_BUCKET_BYTES)))


def format_count(count: float) -> str:
    """Format a number of parameters.

    >>> format_count(1.3e9), format_count(478272), format_count(4)
    ('1.3 B', '478 k', '4')
    """
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{format_number(count / factor, 3)} {letter}"
    return format_number(count, 3)


def equivalent(
    seconds: float,
    elements: int,
    scale: float,
    rate_bps: float | None = None,
    speeds: Mapping[str, float] | None = None,
) -> str:
    """Return what a job of declared compute stands for at full scale, in a sentence.

    ``elements``: parameters in the lab. ``rate_bps``: of the slowest fiber, in the lab.

    >>> equivalent(0.08, 1_300_000, 1000, 8e8)
    'compute is declared: 80 ms a step; at full scale 1.3 B parameters (5.2 GB of gradients) over fibers of 800 Gb/s, with the same distances and step'
    """  # noqa: E501
    declaration = f"compute is declared: {format_duration(seconds)} a step{told_speeds(speeds or {})}"
    full = elements * scale
    size = f"{format_count(full)} parameters ({format_size(full * FLOAT32_BYTES, 3)} of gradients)"
    rate = "" if not rate_bps else f" over fibers of {at_full_scale(rate_bps, scale) or format_rate(rate_bps)}"
    if scale == 1:
        return f"{declaration}, of {size}{rate}"
    return f"{declaration}; at full scale {size}{rate}, with the same distances and step"
