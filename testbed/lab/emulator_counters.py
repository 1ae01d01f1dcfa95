"""The emulator's counters before and after a measurement: its own drops, and other traffic on the fibers."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.analysis.wire.fidelity import OWN_DROPS
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client

__all__ = ["Counters", "read"]


@dataclass(frozen=True)
class Counters:
    """Counters of one direction.

    ``own_drops`` are the emulator's own failures; ``emptied`` is None where it does not count (netem), ``queued_bytes``
    what is queued now.

    ``segments`` (packets of at most the MTU) and ``bytes`` (L2) were delivered, ``duplicated`` of them twice (None: not
    counted); ``dropped`` were not, for any cause.
    """

    own_drops: int
    emptied: int | None
    queued_bytes: float
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
            segments=it["segments"],
            bytes=it["bytes"],
            dropped=sum(it["drops"].values()),
            duplicated=it.get("duplicated"),
        )
        for it in client.keeper(lab).stats()["directions"]
    }
