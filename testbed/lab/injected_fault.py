"""A fault in a running lab, as a Python object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from testbed.keeper.protocol import FaultRecord

__all__ = ["Fault"]


class _Lab(Protocol):
    """The part of a lab that a fault uses."""

    def heal(self, what: str | None = None) -> tuple[Fault, ...]: ...

    def faults(self) -> tuple[Fault, ...]: ...


@dataclass
class Fault:
    """One fault in one lab; as a context manager it is always healed on exit.

    ``began`` and ``ended`` are seconds of CLOCK_MONOTONIC; ``ended`` is None while the fault is active. ``phase``
    describes its current effect, or its last one: ``dark``, ``loss 1.2%``. ``lasts_s`` is the duration in seconds after
    which it ends by itself; None if only a heal ends it.
    """

    id: str
    type: str
    target: str
    links: tuple[str, ...]
    began: float
    began_unix_s: float
    ended: float | None = None
    phase: str = ""
    lasts_s: float | None = None
    nodes: tuple[str, ...] = ()
    _lab: _Lab | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, record: FaultRecord, lab: _Lab) -> Fault:
        return cls(
            record["id"],
            record["type"],
            record["target"],
            tuple(record["links"]),
            record["ack_t"] if "ack_t" in record else record["command_t"],
            record["began_unix_s"],
            record["ended_t"],
            record.get("phase", ""),
            record.get("lasts_s"),
            tuple(record.get("nodes", ())),
            lab,
        )

    def heal(self) -> None:
        """End the fault; does nothing if it has already ended."""
        if self._lab is None:
            return
        self._lab.heal(self.id)
        self.refresh()

    def refresh(self) -> None:
        """Update ``ended`` and ``phase`` from the keeper."""
        if self._lab is not None:
            mine = [it for it in self._lab.faults() if it.id == self.id]
            if mine:
                self.ended, self.phase = mine[0].ended, mine[0].phase

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heal()
