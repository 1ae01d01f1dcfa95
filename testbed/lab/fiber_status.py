"""One fiber of a running lab, or both directions of a link: what the emulator applies and counts at this moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.core.analysis.wire.fidelity import quantile
from testbed.core.physics import calibration
from testbed.core.physics.impairment import Impairment
from testbed.core.topology.model import Topology
from testbed.errors import LabError, UnknownName
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.keeper.journal import FIBERS_DARK
from testbed.keeper.protocol import DirectionCounters, DirectionInForce, HelloAnswer

__all__ = ["FiberStatus", "FiberValue", "fibers", "look"]


@dataclass(frozen=True)
class FiberValue:
    """A value in force, for people, and who made it: ids of faults, ``link``, ``protection``."""

    key: str
    text: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class FiberStatus:
    """One direction of a fiber at ``t``, a time of CLOCK_MONOTONIC.

    Attributes:
        sender, receiver: the gateways; ``interface`` is the link's on both, ``ends`` are the plant's.
        dark_by: who keeps packets from passing; empty where they pass.
        values: what is in force, and who made it; ``masked`` what is stated and does not apply, as (fault, key).
        impairment: the same in SI units, every field of ``Impairment``.
        taken_off_s: what calibration takes off the delay, as veths, bridges and routers add it again.
        delay_s: what the emulator applies: the delay in force less ``taken_off_s``; None while the lab is built.
        differences: how the values that the emulator has differ from those; empty: read back and equal.
        packets, segments, bytes: delivered since the lab came up: packets as the hosts made them, MTU segments, and
            their L2 bytes.
        drops: lost segments by cause.
        corrupted, duplicated, held_back, in_flight_packets: None where the emulator does not count them.
        queue_bytes: waiting for the rate now.
        late_median_s, late_p99_s: how late the emulator sent its packets; None: no packet yet, or it does not measure.
    """

    direction: str
    t: float
    sender: str
    receiver: str
    interface: str
    ends: tuple[str, ...]
    dark_by: tuple[str, ...]
    values: tuple[FiberValue, ...]
    masked: tuple[tuple[str, str], ...]
    impairment: dict[str, object]
    taken_off_s: float
    delay_s: float | None
    differences: tuple[str, ...]
    emulator: str
    scheduling: str
    packets: int
    segments: int
    bytes: int
    drops: dict[str, int]
    corrupted: int | None
    duplicated: int | None
    held_back: int | None
    queue_bytes: int
    in_flight_packets: int | None
    late_median_s: float | None
    late_p99_s: float | None
    lateness_bounds_s: tuple[float, ...] = ()
    lateness_counts: tuple[int, ...] = ()
    captures: tuple[str, ...] = field(default=())
    """Ids of captures of its packets in progress."""


def fibers(topology: Topology, target: str) -> tuple[str, ...]:
    """Return the directions of a link (``north``) or the direction itself (``north:west``). Raises UnknownName."""
    name, colon, toward = target.partition(":")
    link = next((link for link in topology.links if link.name == name), None)
    if link is None:
        raise UnknownName("link", name, [link.name for link in topology.links])
    if colon and toward not in link.between:
        raise UnknownName(f"end of link {name}", toward, link.between)
    return tuple(direction for direction in link.directions if not toward or direction == f"{name}:{toward}")


def look(lab: LabFolder, topology: Topology, target: str) -> tuple[FiberStatus, ...]:
    """Return the state of each direction of ``target``.

    Raises:
        UnknownName: no such link or direction.
        LabError: the keeper does not answer, or the emulator has died.
    """
    wanted = fibers(topology, target)
    with client.Connection(lab) as connection:
        hello = connection.keeper.hello()
        if hello["emulator_died"]:
            raise LabError(f"{FIBERS_DARK} of lab {lab.name}: nothing is applied or counted any more")
        stats = connection.keeper.stats()
        answer = connection.keeper.in_force(compare=list(wanted))
    counters = {counted["direction"]: counted for counted in stats["directions"]}
    if lacking := [direction for direction in wanted if direction not in counters]:
        raise LabError(f"lab {lab.name} has no emulator for {', '.join(lacking)} yet")
    in_force = {applied["direction"]: applied for applied in answer["directions"]}
    return tuple(
        _status(
            topology,
            name,
            stats["t"],
            hello,
            counters[name],
            in_force.get(name),
            tuple(text for text in answer["differences"] if text.startswith(f"{name}: ")),
        )
        for name in wanted
    )


def _status(
    topology: Topology,
    direction: str,
    t: float,
    hello: HelloAnswer,
    counted: DirectionCounters,
    in_force: DirectionInForce | None,
    differences: tuple[str, ...],
) -> FiberStatus:
    path = topology.directions[direction]
    impairment = dict(in_force.get("impairment", {})) if in_force else {}
    off_s = hello.get("taken_off_s", {}).get(direction, 0.0)
    bounds, counts = counted["lateness"]["bounds_s"], counted["lateness"]["counts"]
    return FiberStatus(
        direction=direction,
        t=t,
        sender=topology.site(path.tail).gateway,
        receiver=topology.site(path.head).gateway,
        interface=topology.interfaces.of_link(path.link),
        ends=topology.interfaces.ends(path.link),
        dark_by=tuple(in_force["dark_by"]) if in_force else (),
        values=tuple(
            FiberValue(setting["key"], setting["text"], tuple(setting["by"])) for setting in in_force["values"]
        )
        if in_force
        else (),
        masked=tuple((mask["fault"], mask["key"]) for mask in in_force["masked"]) if in_force else (),
        impairment=impairment,
        taken_off_s=off_s,
        delay_s=_applied_s(impairment, off_s),
        differences=differences,
        emulator=hello["emulator"],
        scheduling=hello["scheduling"],
        packets=counted["packets"],
        segments=counted["segments"],
        bytes=counted["bytes"],
        drops=counted["drops"],
        corrupted=counted["corrupted"],
        duplicated=counted["duplicated"],
        held_back=counted["held_back"],
        queue_bytes=counted["queue_bytes"],
        in_flight_packets=counted.get("in_flight_packets"),
        late_median_s=quantile(bounds, counts, 0.5),
        late_p99_s=quantile(bounds, counts, 0.99),
        lateness_bounds_s=tuple(bounds),
        lateness_counts=tuple(counts),
        captures=tuple(
            capture_record["capture"]
            for capture_record in hello.get("captures", ())
            if direction in capture_record["directions"]
        ),
    )


def _applied_s(impairment: dict[str, object], off_s: float) -> float | None:
    return calibration.applied(Impairment(**impairment), off_s).delay_s if impairment else None  # type: ignore[arg-type]
