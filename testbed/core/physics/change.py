"""What one fault changes of one direction of a link. ``fold.py`` combines the changes of all faults that are in force.

A change states only what the fault is about; every other value is left to the link and to other faults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.core.physics.impairment import GilbertElliott, Impairment

__all__ = ["BurstLoss", "Change", "Jitter", "Reordering", "change_from_dict", "change_to_dict", "stated"]


@dataclass(frozen=True)
class Jitter:
    """Jitter with its distribution: one whole. Fields as in :class:`Impairment`."""

    jitter_s: float
    jitter_distribution: str = "normal"
    jitter_correlation: float = 0.0
    jitter_reorders: bool = False


@dataclass(frozen=True)
class Reordering:
    """A share of packets that are delayed more than the others: one whole. Fields as in :class:`Impairment`."""

    reorder: float
    reorder_by_s: float


@dataclass(frozen=True)
class BurstLoss:
    """A model of burst loss: by ``loss`` and ``burst``, or by the chain ``p``, ``r``, ``h``, ``k``: one whole."""

    loss: float = 0.0
    burst: float = 0.0
    p: float = 0.0
    r: float = 0.0
    h: float = 0.0
    k: float = 1.0

    @property
    def chain(self) -> GilbertElliott:
        if self.p > 0:
            return GilbertElliott(self.p, self.r, self.h, self.k)
        return GilbertElliott.of_means(self.loss, self.burst)


@dataclass(frozen=True)
class Change:
    """What a fault states of a direction. None, 0 or False: the fault does not state this value.

    Attributes:
        dark: no packet that enters arrives; no port loses its carrier.
        loss, corrupt, corrupt_surviving, duplicate: probabilities of random impairments, independent of those of the
            link and of other faults. ``corrupt_surviving`` is corruption that the frame check misses.
        burst_loss, jitter, reordering: each replaces that of the link and of older faults as a whole.
        delay_s: the one-way delay, in place of the link's own.
        extra_s: additional one-way delay.
        rate_bps, largest_bytes: upper limits; the least one applies.
        queue_bytes, overhead_bytes: in place of the link's own.
    """

    dark: bool = False
    loss: float = 0.0
    burst_loss: BurstLoss | None = None
    corrupt: float = 0.0
    corrupt_surviving: float = 0.0
    duplicate: float = 0.0
    delay_s: float | None = None
    extra_s: float = 0.0
    jitter: Jitter | None = None
    reordering: Reordering | None = None
    rate_bps: float = 0.0
    queue_bytes: int | None = None
    overhead_bytes: int | None = None
    largest_bytes: int = 0

    def __bool__(self) -> bool:
        """Whether anything is stated."""
        return self != _NOTHING

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in _flat(change_to_dict(self))) or "nothing"


_NOTHING = Change()
_WHOLES: Mapping[str, type[BurstLoss | Jitter | Reordering]] = {
    "burst_loss": BurstLoss,
    "jitter": Jitter,
    "reordering": Reordering,
}


def _flat(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        pair
        for key, value in data.items()
        for pair in (value.items() if isinstance(value, Mapping) else [(key, value)])
    ]


def change_to_dict(change: Change) -> dict[str, Any]:
    """Return what is stated as JSON data."""
    return {
        field.name: dataclasses.asdict(value) if field.name in _WHOLES else value
        for field in dataclasses.fields(change)
        if (value := getattr(change, field.name)) != field.default
    }


def change_from_dict(data: Mapping[str, Any]) -> Change:
    """Invert :func:`change_to_dict`. Raises TypeError for a field unknown to this version."""
    fields: dict[str, Any] = {key: _WHOLES[key](**field) if key in _WHOLES else field for key, field in data.items()}
    return Change(**fields)


def stated(fields: Mapping[str, Any], own: Impairment) -> Change:
    """Return the change of a fault that sets these ``fields`` of :class:`Impairment`.

    Of a whole (jitter, reordering) of which only a part is set, the rest is the link's ``own``. A burst model needs its
    own loss: the random loss of the link stays beside it.
    """

    def whole(kind: type[Jitter] | type[Reordering]) -> Any:
        names = [field.name for field in dataclasses.fields(kind)]
        if not any(name in fields for name in names):
            return None
        return kind(**{name: fields.get(name, getattr(own, name)) for name in names})

    bursts = {field.name: fields[field.name] for field in dataclasses.fields(BurstLoss) if field.name in fields}
    by_burst = fields.get("burst", 0.0) > 0 or fields.get("p", 0.0) > 0
    corrupt, survives = fields.get("corrupt", 0.0), fields.get("corrupt_survives", False)
    return Change(
        loss=0.0 if by_burst else fields.get("loss", 0.0),
        burst_loss=BurstLoss(**bursts) if by_burst else None,
        corrupt=0.0 if survives else corrupt,
        corrupt_surviving=corrupt if survives else 0.0,
        duplicate=fields.get("duplicate", 0.0),
        delay_s=fields.get("delay_s"),
        jitter=whole(Jitter),
        reordering=whole(Reordering),
        rate_bps=fields.get("rate_bps", 0.0),
        queue_bytes=fields.get("queue_bytes"),
        overhead_bytes=fields.get("overhead_bytes"),
        largest_bytes=fields.get("largest_bytes", 0),
    )
