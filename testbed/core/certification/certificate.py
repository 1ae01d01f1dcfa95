"""The fidelity certificate of a lab as a value: measurements of every link, and the judge's verdicts.

``link_certificate.py`` has the links. ``certificate.json`` is ``to_dict``; its version grows only when a field changes
its meaning, and fields are only added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.certification.fabric_certificate import FabricCertificate
from testbed.core.certification.link_certificate import LinkCertificate
from testbed.core.fields import Fields, integer, mapping, number, sequence, text, texts

__all__ = ["Certificate", "ConcurrentFault", "Headroom"]

BUSY = 0.95
"""Share of all cores above which a machine measures itself rather than its fibers."""
MOST_REASONS = 6
"""Reasons that a refusal lists; the table has all of them."""
STOLEN = 0.1
"""Share of the cores' time taken by other guests of the same hardware above which the same is true."""


@dataclass(frozen=True)
class Headroom:
    """CPU headroom during the measurement, as shares of all cores (0..1): ``free``, and ``stolen`` by other guests."""

    free: float
    stolen: float = 0.0

    @property
    def note(self) -> str:
        """Why the measurement may not show the fibers alone; empty when it does."""
        if 1.0 - self.free >= BUSY:
            return f"the machine was {1 - self.free:.0%} busy during the measurement, which inflates these numbers"
        if self.stolen >= STOLEN:
            return (
                f"other guests took {self.stolen:.0%} of this machine's CPU time during the measurement,"
                " which inflates these numbers"
            )
        return ""

    def to_dict(self) -> dict[str, object]:
        return {"free": self.free, "stolen": self.stolen, "trusted": not self.note, "note": self.note}


@dataclass(frozen=True)
class ConcurrentFault:
    """A fault that was active during the measurement; ``links`` are those it affects, none for a fault of a rank."""

    name: str
    links: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "links": list(self.links)}


@dataclass(frozen=True)
class Certificate:
    """All links of a lab, and the check that nothing bypasses them.

    ``taken_unix_s`` is wall-clock time, ``took_s`` the duration of the measurement. ``cpu_busy`` and ``stolen`` are
    shares of all cores, 0..1, while delays were measured: busy, the measurement included, and taken by other guests.
    ``faults`` were active meanwhile. ``around_pairs`` pairs of sites were probed for a path around the fibers, in
    ``around_families`` of addresses, which took ``around_took_s``; 0 in certificates of older versions. ``fabrics`` are
    those of sites whose fabric has a rate.
    """

    lab: str
    topology: str
    taken_unix_s: float
    emulator: str
    links: tuple[LinkCertificate, ...]
    around_ok: bool
    around_why: str
    cpu_busy: float
    host: Fields = field(default_factory=dict)
    thorough: bool = False
    took_s: float | None = None
    stolen: float = 0.0
    faults: tuple[ConcurrentFault, ...] = ()
    around_pairs: int = 0
    around_families: tuple[str, ...] = ()
    around_took_s: float | None = None
    fabrics: tuple[FabricCertificate, ...] = ()

    @property
    def certified(self) -> bool:
        return not self.why

    @property
    def why(self) -> tuple[str, ...]:
        """Every reason against the lab, as sentences; empty when it is certified."""
        reasons = [why for link in self.links for why in link.why]
        reasons += [why for fabric in self.fabrics for why in fabric.why]
        if not self.links:
            reasons.append("no link was measured")
        if not self.around_ok:
            reasons.append(self.around_why or "a path bypasses the fiber")
        # Also a fault too slight to be measured: the lab was not in its healthy state.
        reasons += [f"{', '.join(it.links)}: fault {it.name} is active" for it in self.faults if it.links]
        return tuple(reasons)

    @property
    def refusal(self) -> str:
        """Why the lab is refused, whether the machine is the cause, and what to do; for a lab that is not certified."""
        reasons = "; ".join(self.why[:MOST_REASONS])
        if len(self.why) > MOST_REASONS:
            reasons += f"; and {len(self.why) - MOST_REASONS} more"
        free = f"the CPU was {self.headroom.free:.0%} free while it was measured"
        if any(each.starved for link in self.links for each in link.directions):
            cause = (
                f"{free}, and the measurement had too little of it: let other programs end and try again;"
                " a rate that this machine cannot fill needs a larger scale"
            )
        else:
            cause = f"{free}: if other programs needed it, let them end and try again; else correct the topology"
        return f"the lab is outside tolerance: {reasons}\n{cause}, or continue with --allow-uncertified"

    @property
    def headroom(self) -> Headroom:
        return Headroom(1.0 - self.cpu_busy, self.stolen)

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not count against the lab, but limits the trust in the numbers: sentences."""
        undecided = [why for link in self.links for why in link.inconclusive]
        beside = [f"fault {it.name} was active, which affects no fiber" for it in self.faults if not it.links]
        repeated = [what for link in self.links for what in link.repeated]
        early = [note for link in self.links for note in link.early]
        inside = [note for fabric in self.fabrics for note in fabric.notes]
        return (*([self.headroom.note] if self.headroom.note else []), *beside, *early, *repeated, *undecided, *inside)

    def __str__(self) -> str:
        """Format the verdict, and a line per direction: target and median in us, and what is wrong with it."""
        lines = [f"{self.lab}: " + ("certified" if self.certified else "outside tolerance: " + "; ".join(self.why))]
        for each in (each for link in self.links for each in link.directions):
            median = "not measured" if each.measured is None else f"measured {each.measured.median * 1e6:.1f} us"
            lines.append(f"  {each.direction}: target {each.target_s * 1e6:.1f} us, {median}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        return {
            "version": 1,
            "lab": self.lab,
            "topology": self.topology,
            "taken_unix_s": self.taken_unix_s,
            "took_s": self.took_s,
            "thorough": self.thorough,
            "emulator": self.emulator,
            "verdict": "certified" if self.certified else "outside tolerance",
            "why": list(self.why),
            "notes": list(self.notes),
            "links": [link.to_dict() for link in self.links],
            **({"fabrics": [it.to_dict() for it in self.fabrics]} if self.fabrics else {}),
            "around": {
                "ok": self.around_ok,
                "why": self.around_why,
                "pairs": self.around_pairs,
                "families": list(self.around_families),
                "took_s": self.around_took_s,
            },
            "faults": [it.to_dict() for it in self.faults],
            "cpu_busy": self.cpu_busy,
            "headroom": self.headroom.to_dict(),
            "host": dict(self.host),
        }

    @classmethod
    def from_dict(cls, fields: Fields) -> Certificate:
        """Read back ``to_dict``; a missing field counts against the lab, never for it."""
        around = mapping(fields, "around")
        return cls(
            lab=text(fields, "lab"),
            topology=text(fields, "topology"),
            taken_unix_s=number(fields, "taken_unix_s") or 0.0,
            emulator=text(fields, "emulator"),
            links=tuple(
                LinkCertificate.from_dict(each) for each in sequence(fields, "links") if isinstance(each, Mapping)
            ),
            around_ok=around.get("ok") is True,
            around_why=text(around, "why"),
            cpu_busy=number(fields, "cpu_busy") or 0.0,
            host=mapping(fields, "host"),
            thorough=fields.get("thorough") is True,
            took_s=number(fields, "took_s"),
            stolen=number(mapping(fields, "headroom"), "stolen") or 0.0,
            faults=tuple(
                ConcurrentFault(text(each, "name"), texts(each, "links"))
                for each in sequence(fields, "faults")
                if isinstance(each, Mapping)
            ),
            around_pairs=integer(around, "pairs") or 0,
            around_families=texts(around, "families"),
            around_took_s=number(around, "took_s"),
            fabrics=tuple(
                FabricCertificate.from_dict(each) for each in sequence(fields, "fabrics") if isinstance(each, Mapping)
            ),
        )
