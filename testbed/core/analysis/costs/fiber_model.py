"""The slowest certified fiber of a lab, used for all fibers in the model of an exchange. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from testbed.core.certification.certificate import Certificate
from testbed.core.plan import routing
from testbed.core.prediction.library_costs import GLOO, LibraryCosts
from testbed.core.prediction.network import Network, payload_rate_bps
from testbed.core.topology.model import Topology
from testbed.core.training.layout import Layout

__all__ = ["FiberModel"]


@dataclass(frozen=True)
class FiberModel:
    """One-way delay in seconds, payload rate in bit/s.

    ``slow_after_idle``: whether connections start slowly after idling (tcp_slow_start_after_idle, and not by BBR).
    """

    delay_s: float
    rate_bps: float
    slow_after_idle: bool = True

    @classmethod
    def certified(cls, certificate: Certificate | None, topology: Topology | None = None) -> FiberModel | None:
        """Return the slowest fiber of a certificate, with the settings of its host; None if it has none.

        ``topology``: only fibers used by the healthy lab count, not standby fibers.
        """
        if certificate is None:
            return None
        used = _used(topology) if topology else None
        measured = [
            direction
            for link in certificate.links
            if used is None or link.name in used
            for direction in link.directions
            if direction.measured is not None
            and direction.rate is not None
            and (direction.rate.measured_bps or 0.0) > 0
        ]
        if not measured:
            return None
        rate_bps = min(direction.rate.measured_bps for direction in measured if direction.rate)
        sysctls = certificate.host.get("sysctls")
        set_to = sysctls.get("net.ipv4.tcp_slow_start_after_idle", "1") if isinstance(sysctls, dict) else "1"
        slow = str(set_to) != "0" and certificate.host.get("congestion_control") != "bbr"
        return cls(max(direction.target_s for direction in measured), payload_rate_bps(rate_bps), slow)

    def costs(self, layout: Layout, step_s: float = 0.0) -> LibraryCosts:
        """Return what gloo's operations cost between sites that have such a fiber to each other.

        ``step_s``: compute of a step, in seconds.
        """
        network = Network.alike(layout.site_names, self.rate_bps, self.delay_s)
        return LibraryCosts(layout, network, GLOO, dict.fromkeys(layout.site_names, step_s))


def _used(topology: Topology) -> set[str] | None:
    """Return the links on the paths between all sites with ranks; None if a path is not known."""
    sites = [site.name for site in topology.sites if site.nodes]
    paths = [routing.path(topology, here, there) for here, there in itertools.permutations(sites, 2)]
    if not paths or any(path is None for path in paths):
        return None
    return {direction.link for path in paths for hop in path or () for direction in hop}
