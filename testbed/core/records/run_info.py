"""``run.json`` as a typed, frozen record (its contract: docs/design.md, "Run directory")."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from testbed.core.experiment.steady import SteadyCheck
from testbed.core.fields import Fields
from testbed.core.json_record import UNREAD, JsonRecord, Or
from testbed.core.records.capture_record import CaptureRecord

__all__ = ["Expectation", "RunInfo"]


@dataclass(frozen=True)
class Expectation(JsonRecord):
    """An expectation of the experiment; ``holds`` is None when it could not be evaluated.

    ``bound`` is ``at least`` or ``at most`` where ``measured`` is a bound, as the job did not come back; else empty.
    ``low`` and ``high`` are the range of ``measured`` within the uncertainty by stalls of the host; None without any.
    """

    text: Annotated[str, Or("")]
    holds: bool | None = None
    measured: float | None = None
    bound: str = ""
    low: Annotated[float | None, UNREAD] = None
    high: Annotated[float | None, UNREAD] = None

    @property
    def within_noise(self) -> bool:
        """Whether stalls of the host leave the verdict open."""
        return self.holds is None and self.low is not None


@dataclass(frozen=True)
class RunInfo(JsonRecord):
    """``run.json``. ``status`` is running, finished, interrupted or failed; "" when the file is missing.

    ``unknown_because`` says why the run has no result: the lab, or the machine below it, failed. Otherwise empty.
    """

    name: str = ""
    lab: str = ""
    testbed: str = ""
    status: str = ""
    reason: str = ""
    unknown_because: str = ""
    started_unix_s: float | None = None
    started_t: float | None = None
    ended_t: float | None = None
    experiment: Fields = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    hypothesis: tuple[SteadyCheck, ...] = ()
    schedule: tuple[Fields, ...] = ()
    """Each fault as planned, with ``began``, the number of times it was injected."""
    workload: Fields = field(default_factory=dict)
    driver: str = ""
    emulator: str = ""
    scheduling: Fields = field(default_factory=dict)
    uncertified: bool = False
    noisy_host: bool = False
    """Whether the host delayed packets while the fibers were certified."""
    validity: tuple[Fields, ...] = ()
    """Validity of the scale model per fiber: findings of core/physics/validity.py."""
    host: Fields = field(default_factory=dict)
    captures: tuple[CaptureRecord, ...] = ()
    """Captures of packets meanwhile, which cost CPU."""
