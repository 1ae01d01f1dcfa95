"""Rate limits of a site's fabric: token buckets on the ports of its bridge, and one core that all frames go through.

An oversubscribed fabric has a second bridge and a veth between the two. The nodes' ports move to the second one, the
*leaf*; whatever a node sends is redirected to the veth (clsact, u32, mirred, as certification's baseline), so it enters
the gateway's own bridge, the core, by one port, and comes back by the same if it is for another node (hairpin). Both
ends of the veth have the core's rate. The leaf knows by fixed entries which node is at which port, because it sees no
frame that a node sends.

Names have an underscore, which no name of a topology has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from testbed.core.physics import fabric_queue
from testbed.core.plan.resources import SiteFabric
from testbed.errors import HostError
from testbed.host.linux import netlink
from testbed.host.linux.rate_limit import TokenBucket

__all__ = ["DOWN", "LEAF", "UP", "add", "remove"]

LEAF, UP, DOWN = "fabric_leaf", "fabric_up", "fabric_down"

Open = Callable[[str], netlink.Namespace]
"""Returns the network namespace of a node or gateway."""


def add(step: SiteFabric, opened: Open) -> None:
    """Limit the fabric. Raises HostError, also where the kernel has no token bucket (sch_tbf)."""
    gateway = opened(step.gateway)
    port = _bucket(step.rate_bps, step.mtu)
    if step.oversubscribed:
        _add_core(step, gateway, opened)
    for node, name in step.ports:
        gateway.limit(name, port)
        opened(node).limit(step.interface, port)


def remove(step: SiteFabric, opened: Open) -> None:
    """Remove the limits, wholly or partly added; nodes stay connected."""
    gateway = opened(step.gateway)
    for node, name in step.ports:
        gateway.unlimit(name)
        opened(node).unlimit(step.interface)
    if step.oversubscribed:
        for _, name in step.ports:
            gateway.unredirect(name)
            gateway.set_port(name, master=step.bridge)
        for name in (UP, LEAF):
            with contextlib.suppress(HostError):  # it is not there
                gateway.delete_link(name)


def _add_core(step: SiteFabric, gateway: netlink.Namespace, opened: Open) -> None:
    core = _bucket(step.core_bps, step.mtu)
    gateway.add_bridge(LEAF, (), False, step.mtu)
    gateway.add_inner_veth(UP, DOWN, step.mtu)
    gateway.set_port(UP, master=LEAF, learning=False)
    gateway.set_port(DOWN, master=step.bridge, hairpin=True)
    for name in (UP, DOWN):
        gateway.limit(name, core)
        gateway.up(name)
    for node, name in step.ports:
        gateway.set_port(name, master=LEAF)
        gateway.add_forwarding(opened(node).mac(step.interface), name)
        gateway.redirect_ingress(name, UP)


def _bucket(rate_bps: float, mtu: int) -> TokenBucket:
    return TokenBucket(
        fabric_queue.frame_rate_bytes(rate_bps, mtu),
        fabric_queue.burst_bytes(rate_bps),
        fabric_queue.queue_bytes(rate_bps),
    )
