"""Faults of a running lab, as Python objects: inject them, heal them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from testbed.core.faults.fault_registry import compile_fault, registry
from testbed.core.faults.fault_target import all_targets
from testbed.core.topology.model import Topology
from testbed.core.units import MOST_DURATION_S
from testbed.errors import UnknownName, UserError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.keeper.protocol import FaultRecord
from testbed.lab import teardown

__all__ = ["Fault", "LabFaults"]

_FUTURE: Final = 1 << 53
"""A number that no event has yet."""


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
    _faults: LabFaults | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, record: FaultRecord, faults: LabFaults) -> Fault:
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
            faults,
        )

    def heal(self) -> None:
        """End the fault; does nothing if it has already ended."""
        if self._faults is not None:
            self._faults.heal(self.id)
            self.refresh()

    def refresh(self) -> None:
        """Update ``ended`` and ``phase`` from the keeper."""
        for fault in self._faults.all() if self._faults is not None else ():
            if fault.id == self.id:
                self.ended, self.phase = fault.ended, fault.phase

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heal()


class LabFaults:
    """The faults of one lab."""

    def __init__(self, lab: LabFolder, topology: Topology) -> None:
        self._lab, self._topology = lab, topology

    def inject(
        self, fault: str, target: str, parameters: Mapping[str, str], for_s: float | None, *, wait: bool
    ) -> Fault:
        """Inject a fault; ``wait`` until it has ended. Raises UserError, UnknownName before anything is changed."""
        if for_s is not None and not 0 < for_s <= MOST_DURATION_S:
            raise UserError(
                f"expected a fault duration greater than 0 s and at most {MOST_DURATION_S:g} s (7 days), "
                f"got {for_s:g} s; omit it to keep the fault until it is healed"
            )
        kind = registry().get(fault)
        of_ranks = kind is not None and kind.of_ranks
        ranks_per_node = client.keeper(self._lab).ranks_per_node() if of_ranks else 1
        compile_fault(self._topology, fault, target, parameters, ranks_per_node)  # refuses what the keeper would
        record = client.keeper(self._lab).inject(kind=fault, target=target, parameters=dict(parameters), for_s=for_s)
        injected = Fault.of(record, self)
        if wait and injected.lasts_s is not None:
            self._await_end(injected, time.monotonic() + injected.lasts_s + 5.0)
        return injected

    def all(self) -> tuple[Fault, ...]:
        """Return all faults since the lab came up, including ended ones (of thousands of those, the latest)."""
        return tuple(Fault.of(record, self) for record in client.keeper(self._lab).faults())

    def heal(self, what: str | None) -> tuple[Fault, ...]:
        """End one fault (by id), all of one target, link or node, or all; return those that ended now."""
        if not client.answers(self._lab):
            left = teardown.heal(self._lab, what)
            if what is not None and not left:
                self._refuse_unknown(what, teardown.faults_ever(self._lab))
            return tuple(Fault.of(record, self) for record in left)
        faults = self.all()
        chosen = [
            fault
            for fault in faults
            if fault.ended is None and what in (None, fault.id, fault.target, *fault.links, *fault.nodes)
        ]
        if what is not None and not chosen:
            self._refuse_unknown(what, {name for fault in faults for name in (fault.id, fault.target)})
        ids = [fault.id for fault in chosen]
        return tuple(
            Fault.of(record, self) for record in client.keeper(self._lab).heal(ids=ids, everything=what is None)
        )

    def _refuse_unknown(self, what: str, faults: Set[str]) -> None:
        """Raise UnknownName unless ``what`` can be healed; ``faults`` are ids and targets of all faults so far."""
        names = faults | all_targets(self._topology)
        if what.partition(":")[0] not in names:
            raise UnknownName("fault, link, node or site", what, sorted(names))

    def _await_end(self, fault: Fault, until: float) -> None:
        """Return when ``fault`` has ended, or at ``until``. The keeper answers when something has happened."""
        with client.Connection(self._lab) as connection:
            since = connection.keeper.events(since=_FUTURE)["next"]
            fault.refresh()
            while fault.ended is None and (left_s := until - time.monotonic()) > 0:
                since = connection.keeper.events(since=since, wait_s=left_s)["next"]
                fault.refresh()
