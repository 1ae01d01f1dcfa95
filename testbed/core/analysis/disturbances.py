"""Disturbances: a fault or a restart, from its beginning until the end of its aftermath, or several that overlap.

The costs of those that overlap cannot be separated, so they share one label: each rank-second is charged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Disturbance", "FaultCost", "Interruption", "join"]


@dataclass(frozen=True)
class Interruption:
    """One fault or restart. ``ended_t``: the end of its aftermath. ``resumed_t``: when a restart resumed training."""

    began_t: float
    ended_t: float
    label: str
    resumed_t: float | None = None


@dataclass(frozen=True)
class Disturbance:
    """Overlapping interruptions. ``label`` is that of its faults, as in ``cut north + slow east-0``."""

    began_t: float
    ended_t: float
    label: str
    resumed_t: tuple[float, ...]


@dataclass(frozen=True)
class FaultCost:
    """What all disturbances of one label cost, in rank-seconds. ``count``: how many there were."""

    label: str
    """Type and target, as in cut north; of faults that overlap, all of them; restart, without a fault."""
    count: int
    """How often, those that overlap counted once."""
    slowed_by_faults_s: float
    lost_work_s: float
    detection_and_restart_s: float

    @property
    def total_s(self) -> float:
        return self.slowed_by_faults_s + self.lost_work_s + self.detection_and_restart_s


def join(interruptions: Iterable[Interruption]) -> tuple[Disturbance, ...]:
    """Return the disturbances in order. A restart beside a fault has no name of its own: the fault caused it."""
    groups: list[list[Interruption]] = []
    ended_t = 0.0
    for interruption in sorted(interruptions, key=lambda interruption: (interruption.began_t, interruption.ended_t)):
        if groups and interruption.began_t < ended_t:
            groups[-1].append(interruption)
            ended_t = max(ended_t, interruption.ended_t)
        else:
            groups.append([interruption])
            ended_t = interruption.ended_t
    return tuple(_joined(group) for group in groups)


def _joined(group: Sequence[Interruption]) -> Disturbance:
    faults = [interruption.label for interruption in group if interruption.resumed_t is None]
    labels = sorted(set(faults or [interruption.label for interruption in group]))
    return Disturbance(
        group[0].began_t,
        max(interruption.ended_t for interruption in group),
        " + ".join(labels),
        tuple(interruption.resumed_t for interruption in group if interruption.resumed_t is not None),
    )
