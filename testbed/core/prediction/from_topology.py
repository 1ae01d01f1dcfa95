"""What a topology says of the inputs of a prediction: sites, ranks, the payload rate and delay of the cut. Pure."""

from __future__ import annotations

from typing import Any

from testbed.core.prediction.inputs import payload_rate_bps
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import rings_of
from testbed.errors import UserError

__all__ = ["from_topology"]


def from_topology(topology: Topology) -> dict[str, Any]:
    """Return ``sites``, ``ranks_per_site``, ``rate_bps``, ``delay_s`` and ``fibers_m``, by the names of ``Inputs``.

    With fabrics that have a rate also ``site_rate_bps``, that of the slowest site while all of its nodes send.

    Rates are those of full scale, on the direction that a ring of the sites loads most; the delay is that of the
    longest hop from a site to the next. With sites of unequal size the largest counts.

    Raises:
        UserError: one site only: no fiber is crossed.
    """
    rings = rings_of(topology)
    if rings is None:
        raise UserError(f"topology {topology.name} has one site, so no exchange crosses a fiber; name one with two")
    fabrics = [site.fabric_bps / site.oversubscription for site in topology.sites if site.fabric_bps]
    inside = {"site_rate_bps": payload_rate_bps(min(fabrics) * topology.scale)} if fabrics else {}
    return {
        **inside,
        "sites": rings.sites,
        "ranks_per_site": max(site.nodes for site in topology.sites),
        "rate_bps": payload_rate_bps(8 / rings.byte_s),
        "delay_s": rings.hop_s,
        "fibers_m": rings.fibers_m,
    }
