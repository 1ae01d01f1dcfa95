"""The certificate of a site's fabric as a value: the rate of each port both ways, and that of the core. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.certification.link_certificate import RATE_TOLERANCE
from testbed.core.fields import Fields, number, sequence, text
from testbed.core.units import format_rate

__all__ = ["FabricCertificate", "FabricRate"]

_HELP: Final = "if the machine was busy, try again; a rate that it cannot carry needs a larger scale"


@dataclass(frozen=True)
class FabricRate:
    """One measured rate of a fabric, in bit/s: of ``path``, ``east-0 > east-1`` or ``core``.

    Without a measurement, ``note`` is the reason that none was made, which does not count, and ``unmeasured``
    the reason that the host prevented it. Without either, the missing measurement counts against the lab.
    """

    path: str
    target_bps: float
    measured_bps: float | None = None
    note: str = ""
    unmeasured: str = ""

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

    def to_dict(self) -> dict[str, object]:
        return {
            "path": self.path,
            "target_bps": self.target_bps,
            "measured_bps": self.measured_bps,
            "tolerance": RATE_TOLERANCE,
            "verdict": self.verdict,
            "note": self.note,
            **({"unmeasured": self.unmeasured} if self.unmeasured else {}),
        }


@dataclass(frozen=True)
class FabricCertificate:
    """All rates of the fabric of one site; ``rate_bps`` of a port and ``core_bps`` as the topology has them."""

    site: str
    rate_bps: float
    core_bps: float
    oversubscription: float
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

    def to_dict(self) -> dict[str, object]:
        return {
            "site": self.site,
            "rate_bps": self.rate_bps,
            "core_bps": self.core_bps,
            "oversubscription": self.oversubscription,
            "rates": [it.to_dict() for it in self.rates],
            "verdict": self.verdict,
            "why": list(self.why),
        }

    @classmethod
    def from_dict(cls, fields: Fields) -> FabricCertificate:
        """Read back ``to_dict``; a missing field counts against the lab, never for it."""
        return cls(
            site=text(fields, "site"),
            rate_bps=number(fields, "rate_bps") or 0.0,
            core_bps=number(fields, "core_bps") or 0.0,
            oversubscription=number(fields, "oversubscription") or 1.0,
            rates=tuple(
                FabricRate(
                    text(rate_fields, "path"),
                    number(rate_fields, "target_bps") or 1.0,
                    number(rate_fields, "measured_bps"),
                    text(rate_fields, "note"),
                    text(rate_fields, "unmeasured"),
                )
                for rate_fields in sequence(fields, "rates")
                if isinstance(rate_fields, Mapping)
            ),
        )
