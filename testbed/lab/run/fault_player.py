"""Play an experiment's faults on a running job: hand each to the keeper as soon as its time is known.

Faults with a time are scheduled in the keeper beforehand, so that they happen on time however busy this process is.
Faults that wait for a step or a condition are handed over when it is reached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from testbed.core.experiment.fault_schedule import Planned
from testbed.errors import LabError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.keeper.protocol import FaultSpec

__all__ = ["LEAD_S", "FaultPlayer"]

LEAD_S: Final = 1.0
"""How long before the first fault the steady state is checked."""


class FaultPlayer:
    """Plays ``planned``. As a context manager it cancels the faults that have not begun on exit."""

    def __init__(self, folder: LabFolder, planned: tuple[Planned, ...]) -> None:
        self.planned = planned
        self._waiting = dict(enumerate(planned))
        self._connection = client.Connection(folder)
        self.begun = False
        """Whether any fault was handed over; from then on the job counts as disturbed."""

    def __enter__(self) -> FaultPlayer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(LabError):  # a keeper that is gone injects nothing either
            self._connection.keeper.unschedule()
        self._connection.close()

    @property
    def all_handed_over(self) -> bool:
        return not self._waiting

    @property
    def total(self) -> int:
        return sum(fault.repeat for fault in self.planned)

    def due(self, now: float, began_t: float, step: int, values: Mapping[str, float | None]) -> bool:
        """Whether a fault has to be handed over, because its time has come or is near."""
        return any(self._is_due(fault, now + LEAD_S, began_t, step, values) for fault in self._waiting.values())

    def hand_over(self, now: float, began_t: float, step: int, values: Mapping[str, float | None]) -> None:
        """Hand over all faults with a time, and others that are due.

        ``now`` and ``began_t``, the start of the job's first step, are CLOCK_MONOTONIC. Raises LabError.
        """
        faults: list[FaultSpec] = []
        for number, fault in list(self._waiting.items()):
            if fault.at_s is None and not self._is_due(fault, now, began_t, step, values):
                continue
            del self._waiting[number]
            from_t, after_s = (now, 0.0) if fault.at_s is None else (began_t, fault.at_s)
            # Rounded before the addition, so that 10 s + 2 x 5 s and 20 s are the same time to the last bit.
            due_s = (round(after_s + index * fault.every_s, 9) for index in range(fault.repeat))
            faults += [_message(fault, number, from_t + each_s) for each_s in due_s]
        if faults:
            self.begun = True
            self._connection.keeper.schedule(faults=faults)

    @staticmethod
    def _is_due(fault: Planned, now: float, began_t: float, step: int, values: Mapping[str, float | None]) -> bool:
        if fault.at_s is not None:
            return now >= began_t + fault.at_s
        if fault.after_step is not None:
            return step >= fault.after_step
        return fault.when is not None and fault.when.holds(values.get(fault.when.metric)) is True


def _message(fault: Planned, number: int, planned_t: float) -> FaultSpec:
    return {
        "type": fault.inject,
        "target": fault.target,
        "parameters": dict(fault.parameters),
        "for_s": fault.for_s,
        "planned_t": planned_t,
        "scheduled": number,
    }
