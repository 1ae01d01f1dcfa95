"""The certificate of a site's fabric as a value: the rate of each port both ways, and that of the core. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from testbed.core.certification.link_certificate import RATE_TOLERANCE
from testbed.core.json_record import JsonRecord, Key, Or
from testbed.core.units import format_rate

__all__ = ["FabricCertificate", "FabricRate"]

_HELP: Final = "if the machine was busy, try again; a rate that it cannot carry needs a larger scale"


@dataclass(frozen=True)
class FabricRate(JsonRecord):
    """One measured rate of a fabric, in bit/s: of ``path``, ``east-0 > east-1`` or ``core``.

    Without a measurement, ``note`` is the reason that none was made, which does not count, and ``unmeasured``
    the reason that the host prevented it. Without either, the missing measurement counts against the lab.
    """

    WRITTEN: ClassVar = ("tolerance", "verdict")
    tolerance: ClassVar = RATE_TOLERANCE

    path: Annotated[str, Or("")]
    target_bps: Annotated[float, Or(1.0)]
    measured_bps: float | None = None
    note: str = ""
    unmeasured: Annotated[str, Key("unmeasured", omit_empty=True)] = ""

    @property
    def why(self) -> str:
        """What is wrong with it; empty for nothing."""
        if self.measured_bps is None:
            return "" if self.note or self.unmeasured else f"{self.path}: no packet train arrived"
        off = self.measured_bps / self.target_bps - 1.0
        if abs(off) <= RATE_TOLERANCE:
            return ""
        rates = f"{self.path}: {format_rate(self.measured_bps, 3)}, expected {format_rate(self.target_bps, 3)}"
        return f"{rates} within {RATE_TOLERANCE:.0%}" + (f" ({_HELP})" if off < 0 else "")

    @property
    def verdict(self) -> str:
        if self.why or self.unmeasured:
            return "bad" if self.why else "unmeasured"
        return "ok" if self.measured_bps is not None else "inconclusive"


@dataclass(frozen=True)
class FabricCertificate(JsonRecord):
    """All rates of the fabric of one site; ``rate_bps`` of a port and ``core_bps`` as the topology has them.

    On reading, a missing field counts against the lab, never for it.
    """

    WRITTEN: ClassVar = ("verdict", "why")

    site: Annotated[str, Or("")]
    rate_bps: Annotated[float, Or(0.0)]
    core_bps: Annotated[float, Or(0.0)]
    oversubscription: Annotated[float, Or(1.0)]
    rates: tuple[FabricRate, ...] = ()

    @property
    def why(self) -> tuple[str, ...]:
        if not self.rates:
            return (f"fabric of {self.site}: not measured",)
        return tuple(f"fabric of {self.site}, {rate.why}" for rate in self.rates if rate.why)

    @property
    def ok(self) -> bool:
        return not self.why

    @property
    def verdict(self) -> str:
        verdicts = {rate.verdict for rate in self.rates}
        if self.why or self.unmeasured:
            return "bad" if self.why else "unmeasured"
        return "ok" if verdicts == {"ok"} else "inconclusive"

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why rates are not measurable on this host, as sentences."""
        return tuple(f"fabric of {self.site}, {rate.path}: {rate.unmeasured}" for rate in self.rates if rate.unmeasured)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"fabric of {self.site}, {rate.path}: {rate.note}" for rate in self.rates if rate.note)

    def measured(self, core: bool) -> tuple[float, ...]:
        """Return the measured rates of the core, or of the ports."""
        return tuple(
            rate.measured_bps for rate in self.rates if rate.measured_bps is not None and (rate.path == "core") == core
        )
