"""A whole run directory as one value: what ``testbed.host.store`` reads and ``testbed.core.report`` explains."""

from __future__ import annotations

from collections.abc import Mapping
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
    """``topology.json`` back into what was resolved; None when it has no sites, links with less than two ends are left out."""
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
    return Link(
        name=text(fields, "name"),
        between=between,
        via=texts(fields, "via"),
        length_m=number(fields, "length_m") or 0.0,
        fiber=text(fields, "fiber"),
        optics=text(fields, "optics"),
        waves=integer(fields, "waves") or 1,
        delay_s=number(fields, "delay_s") or 0.0,
        rate_bps=number(fields, "rate_bps") or 0.0,
        queue_bytes=integer(fields, "queue_bytes") or 0,
        loss=number(fields, "loss") or 0.0,
        mtu=integer(fields, "mtu") or 1500,
        protection=text(fields, "protection"),
    )
