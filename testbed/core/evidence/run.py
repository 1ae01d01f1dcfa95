"""A whole run directory as one value: what ``testbed.host.store`` reads and ``testbed.core.report`` explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.core.evidence.certificate import Certificate
from testbed.core.evidence.record import (
    Event,
    FiberSample,
    Fields,
    HostSample,
    RankLog,
    RankSample,
    RunInfo,
    integer,
    number,
    sequence,
    text,
    texts,
)
from testbed.core.topology.model import Duct, Link, Site, Topology

__all__ = ["RunData", "read_topology"]


@dataclass(frozen=True)
class RunData:
    """Everything is optional: a run that died early left little. ``malformed`` counts unreadable lines by file name."""

    info: RunInfo = field(default_factory=RunInfo)
    topology: Topology | None = None
    certificate: Certificate | None = None
    events: tuple[Event, ...] = ()
    fibers: tuple[FiberSample, ...] = ()
    rank_samples: tuple[RankSample, ...] = ()
    hosts: tuple[HostSample, ...] = ()
    ranks: tuple[RankLog, ...] = ()
    malformed: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def read_topology(fields: Fields) -> Topology | None:
    """``topology.json`` back into what was resolved; None without sites; links without two known ends are left out."""
    sites = tuple(
        Site(text(each, "name"), integer(each, "nodes") or 0, text(each, "power"))
        for each in sequence(fields, "sites")
        if isinstance(each, Mapping) and text(each, "name")
    )
    if not sites:
        return None
    names = {site.name for site in sites}
    links = []
    for each in sequence(fields, "links"):
        between = texts(each, "between") if isinstance(each, Mapping) else ()
        if isinstance(each, Mapping) and text(each, "name") and len(between) == 2 and set(between) <= names:
            links.append(_link(each, (between[0], between[1])))
    return Topology(
        name=text(fields, "name"),
        scale=number(fields, "scale") or 1.0,
        sites=sites,
        links=tuple(links),
        ducts=tuple(
            Duct(text(each, "name"), number(each, "length_m") or 0.0)
            for each in sequence(fields, "ducts")
            if isinstance(each, Mapping)
        ),
        routing=text(fields, "routing", "shortest"),
        seed=integer(fields, "seed") or 0,
    )


def _link(fields: Fields, between: tuple[str, str]) -> Link:
    """Every field that a Link has, by its kind; what is missing is 0, empty, or 1 wave of 1500 bytes."""
    values: dict[str, object] = {"between": between}
    for each in dataclasses.fields(Link):
        if each.name not in values:
            values[each.name] = _KINDS[str(each.type)](fields, each.name)
    values["waves"] = values["waves"] or 1
    values["mtu"] = values["mtu"] or 1500
    return Link(**values)  # type: ignore[arg-type]


_KINDS: Mapping[str, Callable[[Fields, str], object]] = {
    "float": lambda fields, name: number(fields, name) or 0.0,
    "int": lambda fields, name: integer(fields, name) or 0,
    "str": text,
    "tuple[str, ...]": texts,
}
