"""Run one operation and inject a fault once a share of its bytes has crossed; follow it to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from testbed.core.validation.fault_matrix import Trial
from testbed.core.validation.operation import CollectiveOperation, Group
from testbed.lab.validation.fault_injection import Injected
from testbed.lab.validation.library_session import Performed, Session
from testbed.lab.validation.traffic_meter import Wire

__all__ = ["FaultedOperation", "measure_healthy", "perform_with_fault"]

LEAST_LEAD_S: Final = 0.05
LEAD: Final = 1.5
POLL_S: Final = 0.001
"""How often the counters are read until the fault begins."""
STEP_S: Final = 0.005


@dataclass(frozen=True)
class HealthyOperation:
    """The operation without a fault: bytes on all fibers together, as :meth:`Wire.delivered` counts them; seconds until
    its ranks have prepared their input, and from then until they are done."""

    performed: Performed
    size: int
    prepared_s: float
    took_s: float


def measure_healthy(session: Session, wire: Wire, operation: CollectiveOperation, group: Group) -> HealthyOperation:
    """Perform the operation on healthy fibers."""
    before, sent_t = wire.delivered(), time.monotonic()
    performed = session.perform([(operation, group)])
    began_t, finished_t = performed.began_t or sent_t, performed.finished_t or time.monotonic()
    return HealthyOperation(performed, wire.delivered() - before, began_t - sent_t, finished_t - began_t)


@dataclass(frozen=True)
class FaultedOperation:
    """The operation with a fault. Times are of CLOCK_MONOTONIC.

    ``share`` of the operation's bytes had crossed at ``fault_t``; both are None if the operation ended before the fault
    could begin. ``healed_t``: when the fault ended by itself while the operation was in progress; None: it did not.
    """

    performed: Performed
    fault_t: float | None
    share: float | None
    healed_t: float | None


def perform_with_fault(
    session: Session, wire: Wire, trial: Trial, operation: CollectiveOperation, group: Group, injected: Injected,
    healthy: HealthyOperation, share: float,
) -> FaultedOperation:  # fmt: skip
    """Perform ``operation`` and inject once ``share`` of the bytes of ``healthy`` has crossed. Heal everything
    afterwards.

    The operation is given up ``trial.outer_s`` after the fault began. Raises LabError, UserError.
    """
    at = time.monotonic() + LEAST_LEAD_S + LEAD * healthy.prepared_s
    before: int | None = None
    fault_t: float | None = None
    crossed: float | None = None

    def on_poll() -> float:
        nonlocal before, fault_t, crossed
        now = time.monotonic()
        if now < at:
            return min(0.02, at - now)
        if before is None:
            before = wire.delivered()
        if fault_t is not None:
            injected.step(now)
            return STEP_S
        part = (wire.delivered() - before) / max(1, healthy.size)
        if part >= share:
            crossed, fault_t = part, injected.begin()
        return POLL_S

    def until_t() -> float:
        return at + session.bound_s if fault_t is None else fault_t + trial.outer_s

    try:
        performed = session.perform([(operation, group)], at=at, until_t=until_t, on_poll=on_poll)
        over_t = injected.over_t() if fault_t is not None else None
    finally:
        injected.heal()
    healed_t = over_t if over_t is not None and over_t <= performed.ended_t else None
    return FaultedOperation(performed, fault_t, crossed, healed_t)
