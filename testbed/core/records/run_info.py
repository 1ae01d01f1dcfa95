"""``run.json`` as a typed, frozen record (its contract: docs/design.md, "Run directory")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from testbed.core.fields import Fields, mapping, number, sequence, text
from testbed.core.records.capture_record import CaptureRecord

__all__ = ["Expectation", "RunInfo", "SteadyCheck"]


@dataclass(frozen=True)
class Expectation:
    """An expectation of the experiment; ``holds`` is None when it could not be evaluated.

    ``bound`` is ``at least`` or ``at most`` where ``measured`` is a bound, as the job did not come back; else empty.
    ``low`` and ``high`` are the range of ``measured`` within the uncertainty by stalls of the host; None without any.
    """

    text: str
    holds: bool | None = None
    measured: float | None = None
    bound: Annotated[str, {"enum": ["", "at least", "at most"]}] = ""
    low: float | None = None
    high: float | None = None

    @property
    def within_noise(self) -> bool:
        """Whether stalls of the host leave the verdict open."""
        return self.holds is None and self.low is not None


@dataclass(frozen=True)
class SteadyCheck:
    """A condition of the steady state and its result; ``holds`` is None when it could not be evaluated.

    ``when`` is before, during, after or always. ``violations`` are (began, ended, measured), in CLOCK_MONOTONIC.
    """

    when: str
    text: str
    holds: bool | None = None
    measured: float | None = None
    bound: float | None = None
    why: str = ""
    violations: tuple[tuple[float, float, float | None], ...] = ()

    @classmethod
    def from_dict(cls, fields: Fields) -> SteadyCheck:
        return cls(
            when=text(fields, "when"),
            text=text(fields, "text"),
            holds=holds if isinstance(holds := fields.get("holds"), bool) else None,
            measured=number(fields, "measured"),
            bound=number(fields, "bound"),
            why=text(fields, "why"),
            violations=tuple(
                (began_t, ended_t, number(each, "measured"))
                for each in sequence(fields, "violations")
                if isinstance(each, Mapping)
                and (began_t := number(each, "began_t")) is not None
                and (ended_t := number(each, "ended_t")) is not None
            ),
        )


@dataclass(frozen=True)
class RunInfo:
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

    @classmethod
    def from_dict(cls, fields: Fields) -> RunInfo:
        return cls(
            name=text(fields, "name"),
            lab=text(fields, "lab"),
            testbed=text(fields, "testbed"),
            status=text(fields, "status"),
            reason=text(fields, "reason"),
            unknown_because=text(fields, "unknown_because"),
            started_unix_s=number(fields, "started_unix_s"),
            started_t=number(fields, "started_t"),
            ended_t=number(fields, "ended_t"),
            experiment=mapping(fields, "experiment"),
            expectations=tuple(
                Expectation(
                    text=text(each, "text"),
                    holds=holds if isinstance(holds := each.get("holds"), bool) else None,
                    measured=number(each, "measured"),
                    bound=text(each, "bound"),
                )
                for each in sequence(fields, "expectations")
                if isinstance(each, Mapping)
            ),
            hypothesis=tuple(
                SteadyCheck.from_dict(each) for each in sequence(fields, "hypothesis") if isinstance(each, Mapping)
            ),
            schedule=tuple(each for each in sequence(fields, "schedule") if isinstance(each, Mapping)),
            workload=mapping(fields, "workload"),
            driver=text(fields, "driver"),
            emulator=text(fields, "emulator"),
            scheduling=mapping(fields, "scheduling"),
            uncertified=fields.get("uncertified") is True,
            noisy_host=fields.get("noisy_host") is True,
            validity=tuple(each for each in sequence(fields, "validity") if isinstance(each, Mapping)),
            host=mapping(fields, "host"),
            captures=tuple(
                CaptureRecord.from_dict(each) for each in sequence(fields, "captures") if isinstance(each, Mapping)
            ),
        )
