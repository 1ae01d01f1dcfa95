"""An experiment's faults on a job that runs: each handed to the keeper when it is known when it is due.

What has a time is handed over beforehand, and happens at that time however busy this process is. What waits for a step
or for a condition is handed over when that comes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from testbed.core.experiment.fault_schedule import Planned
from testbed.errors import LabError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client, protocol
from testbed.keeper.protocol import ScheduledFault

__all__ = ["LEAD_S", "FaultPlayer"]

LEAD_S: Final = 1.0
"""So long before the first fault is due it is decided whether there is a steady state to disturb."""


class FaultPlayer:
    """Plays ``planned``. As a context manager: what has not begun when it ends never will."""

    def __init__(self, folder: LabFolder, planned: tuple[Planned, ...]) -> None:
        self.planned = planned
        self._waiting = dict(enumerate(planned))
        self._connection = client.Connection(folder)
        self.begun = False
        """Whether anything was handed over: from then on there is no way back to an undisturbed job."""

    def __enter__(self) -> FaultPlayer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(LabError):  # a keeper that is gone injects nothing either
            self._connection.ask(protocol.Unschedule())
        self._connection.close()

    @property
    def all_handed_over(self) -> bool:
        return not self._waiting

    @property
    def total(self) -> int:
        return sum(it.repeat for it in self.planned)

    def due(self, now: float, began_t: float, step: int, values: Mapping[str, float | None]) -> bool:
        """Whether something has to be handed over: its moment has come, or is near."""
        return any(self._is_due(it, now + LEAD_S, began_t, step, values) for it in self._waiting.values())

    def hand_over(self, now: float, began_t: float, step: int, values: Mapping[str, float | None]) -> None:
        """All that has a time, and what else is due. ``now``, ``began_t``: CLOCK_MONOTONIC, of the job's first step.

        Raises LabError.
        """
        faults: list[ScheduledFault] = []
        for number, it in list(self._waiting.items()):
            if it.at_s is None and not self._is_due(it, now, began_t, step, values):
                continue
            del self._waiting[number]
            from_t, after_s = (now, 0.0) if it.at_s is None else (began_t, it.at_s)
            # Rounded before it is added: 10 s and twice 5 s more are one moment, as 20 s are, to the last bit.
            due_s = (round(after_s + index * it.every_s, 9) for index in range(it.repeat))
            faults += [_message(it, number, from_t + each_s) for each_s in due_s]
        if faults:
            self.begun = True
            self._connection.ask(protocol.Schedule(faults=faults))

    @staticmethod
    def _is_due(it: Planned, now: float, began_t: float, step: int, values: Mapping[str, float | None]) -> bool:
        if it.at_s is not None:
            return now >= began_t + it.at_s
        if it.after_step is not None:
            return step >= it.after_step
        return it.when is not None and it.when.holds(values.get(it.when.metric)) is True


def _message(it: Planned, number: int, planned_t: float) -> ScheduledFault:
    return {
        "type": it.inject,
        "target": it.target,
        "parameters": dict(it.parameters),
        "for_s": it.for_s,
        "planned_t": planned_t,
        "scheduled": number,
    }
