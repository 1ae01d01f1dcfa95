"""The emulator's counters around a measurement: they say whether it was starved, never what it measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.analysis.fidelity import OWN_DROPS
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client, protocol

__all__ = ["Counters", "late_share", "read"]


@dataclass(frozen=True)
class Counters:
    """Counters of one direction.

    ``own_drops`` are the emulator's own failures; ``emptied`` is None where it does not count (netem), ``queued_bytes``
    what is queued now. ``late_bounds_s`` and ``late_counts`` are the histogram of lateness, empty on netem.

    ``segments`` (packets of at most the MTU) and ``bytes`` (L2) were delivered, ``duplicated`` of them twice (None: not
    counted); ``dropped`` were not, for any cause.
    """

    own_drops: int
    emptied: int | None
    queued_bytes: float
    late_bounds_s: Sequence[float] = ()
    late_counts: Sequence[int] = ()
    segments: int = 0
    bytes: int = 0
    dropped: int = 0
    duplicated: int | None = None


def read(lab: LabFolder) -> dict[str, Counters]:
    """Return the counters of all directions. Raises LabError."""
    return {
        it["direction"]: Counters(
            own_drops=sum(it["drops"].get(cause, 0) for cause in OWN_DROPS),
            emptied=it.get("emptied"),  # a keeper of an older version does not know it
            queued_bytes=it["queue_bytes"],
            late_bounds_s=it["lateness"]["bounds_s"],
            late_counts=it["lateness"]["counts"],
            segments=it["segments"],
            bytes=it["bytes"],
            dropped=sum(it["drops"].values()),
            duplicated=it.get("duplicated"),
        )
        for it in client.ask(lab, protocol.Stats())["directions"]
    }


def late_share(before: Counters, after: Counters, than_s: float) -> float:
    """Return the share (0..1) of the packets in between that the emulator sent later than ``than_s`` after they were
    due; 0 where it has no lateness."""
    more = [new - old for new, old in zip(after.late_counts, before.late_counts, strict=True)]
    above = sum(bound <= than_s for bound in after.late_bounds_s)
    return sum(more[above:]) / sum(more) if sum(more) else 0.0
