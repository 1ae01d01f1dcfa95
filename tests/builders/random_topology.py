"""Random resolved topologies for hypothesis: up to eight sites, connected or not, parallel links, equal lengths."""

from __future__ import annotations

from hypothesis import strategies as st

from testbed.core.topology.model import Link, Site, Topology

__all__ = ["link_between", "topologies"]


def link_between(name: str, between: tuple[str, str], km: float) -> Link:
    return Link(
        name=name,
        between=between,
        via=(name,),
        length_m=km * 1000,
        fiber="smf",
        optics="800ZR",
        waves=1,
        delay_s=km * 5e-6,
        rate_bps=8e8,
        queue_bytes=1_000_000,
        loss=0.0,
        mtu=1500,
        protection="route",
    )


@st.composite
def topologies(draw: st.DrawFn, most_nodes: int = 1, connected: bool = False) -> Topology:
    """Draw from few lengths, so that paths of equal length are common: routing errors are likely there."""
    count = draw(st.integers(2, 8))
    sites = tuple(Site(f"s{number}", draw(st.integers(1, most_nodes)), "") for number in range(count))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=14))
    if connected:
        chosen += [(draw(st.integers(0, number - 1)), number) for number in range(1, count)]
    lengths = draw(st.lists(st.sampled_from((1.0, 2.0, 3.0, 5.0, 40.0)), min_size=len(chosen), max_size=len(chosen)))
    links = tuple(
        link_between(f"k{number}", (sites[a].name, sites[b].name), km)
        for number, ((a, b), km) in enumerate(zip(chosen, lengths, strict=True))
    )
    return Topology("random", 1000.0, sites, links, routing=draw(st.sampled_from(("shortest", "multipath"))))
