"""One operation while a fault happens to it: begun after a stated share of its bytes has crossed, watched to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from testbed.core.conformance.operation import Group, Operation
from testbed.lab.validate.session import Performed, Session
from testbed.lab.validate.wire import Wire

__all__ = ["Disturbed", "disturbed"]

LEAD_S = 0.05
POLL_S = 0.001
"""How often the counters are looked at until the fault begins."""


@dataclass(frozen=True)
class Disturbed:
    """Times are of CLOCK_MONOTONIC. ``share`` of the operation's bytes had crossed when the fault began; both None: it
    did not begin, for the operation had ended before. ``healed_t``: when the fault was over; None: it was not healed
    while anybody could still use that."""

    performed: Performed
    began_t: float
    fault_t: float | None
    share: float | None
    healed_t: float | None


def disturbed(
    session: Session,
    wire: Wire,
    operation: tuple[Operation, Group],
    *,
    usual_bytes: int,
    share: float,
    begin: Callable[[], float],
    heal: Callable[[], float],
    heal_after_s: float | None,
    give_up_after_s: float,
) -> Disturbed:
    """Perform ``operation``, which puts ``usual_bytes`` on all fibers together when nothing is wrong (as
    :meth:`Wire.delivered` counts), and have ``begin`` do the fault when ``share`` of them has crossed.

    ``heal`` ends it ``heal_after_s`` seconds after that, or, None, once the operation is over. ``begin`` and ``heal``
    say when they did. The operation is given up ``give_up_after_s`` after the fault began. Raises LabError.
    """
    at = time.monotonic() + LEAD_S + 2 * operation[0].size_bytes(len(operation[1].ranks)) / 50e6
    before: int | None = None
    fault_t: float | None = None
    healed_t: float | None = None
    crossed: float | None = None

    def each() -> float:
        nonlocal before, fault_t, healed_t, crossed
        now = time.monotonic()
        if now < at:
            return min(0.02, at - now)
        if before is None:
            before = wire.delivered()
        if fault_t is None:
            part = (wire.delivered() - before) / max(1, usual_bytes)
            if part >= share:
                crossed, fault_t = part, begin()
            return POLL_S
        if healed_t is None and heal_after_s is not None and now >= fault_t + heal_after_s:
            healed_t = heal()
        return 0.005

    def until_t() -> float:
        return at + session.bound_s if fault_t is None else fault_t + give_up_after_s

    try:
        performed = session.perform([operation], at=at, until_t=until_t, each=each)
    finally:
        if fault_t is not None and healed_t is None:
            ended_t = heal()
    if fault_t is not None and healed_t is None and not performed.done:
        healed_t = ended_t
    return Disturbed(performed, at, fault_t, crossed, healed_t)
