"""Resources: Steps that create something on the host, whose inverse removes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from testbed.core.physics.impairment import EmulatedDirection
from testbed.core.plan.step import Step

LABEL: Final = "testbed"
"""Prefix of all labels: the mark by which `down` recognizes the testbed's containers."""

READY_FILE: Final = "/run/testbed-network"
"""File created in a container once its addresses and routes are set."""


@dataclass(frozen=True)
class Namespace(Step):
    """A network namespace; ``isolated`` adds mount, IPC and UTS namespaces, a hostname and a hosts file.

    All of a lab are isolated but those of the baseline path, and in labs of older versions all but the nodes.
    """

    name: str
    isolated: bool = False
    hosts: str = ""

    @property
    def holds(self) -> tuple[str, ...]:
        return (self.name,)

    def __str__(self) -> str:
        return f"namespace {self.name}" + (" (network, mount, ipc, uts)" if self.isolated else " (network)")


@dataclass(frozen=True)
class End:
    """One end of a veth. ``index`` 0 lets the kernel choose; with ``up`` False it stays down until a Carrier Step.

    ``mac`` empty: the kernel chooses. Only the ``b`` end of a Veth may have one. ``alternative`` is the full name of an
    interface whose ``name`` is a short form of it; it is set where the kernel has alternative names (Linux 5.5), and
    nothing depends on it.
    """

    namespace: str
    name: str
    index: int = 0
    up: bool = True
    mac: str = ""
    alternative: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}" + (f" ({self.alternative})" if self.alternative else "")


@dataclass(frozen=True)
class Veth(Step):
    """A cable. One end has an explicit high index: with equal indices on both ends the kernel delays carrier events by
    up to a second and misses short cuts (net/core/link_watch.c)."""

    a: End
    b: End
    mtu: int = 1500

    @property
    def within(self) -> tuple[str, ...]:
        return (self.a.namespace, self.b.namespace)

    def __str__(self) -> str:
        return f"veth {self.a} = {self.b} mtu {self.mtu}"


@dataclass(frozen=True)
class Bridge(Step):
    """A bridge with its ports. ``isolated`` ports reach the bridge but never each other."""

    namespace: str
    name: str
    ports: tuple[str, ...]
    isolated: bool = False
    mtu: int = 1500

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"bridge {self.namespace}:{self.name} ports {' '.join(self.ports)}" + (" isolated" * self.isolated)


@dataclass(frozen=True)
class Sysctls(Step):
    """Values in /proc/sys of a namespace. With ``optional``, keys that this kernel lacks are skipped."""

    namespace: str
    values: tuple[tuple[str, str], ...]
    optional: bool = False

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"sysctl {self.namespace}: " + " ".join(f"{key}={value}".replace(" ", ",") for key, value in self.values)


@dataclass(frozen=True)
class Containers(Step):
    """All containers of a lab with their cables, addresses and routes: ``topology`` is the text of a ``*.clab.yml``."""

    names: tuple[str, ...]
    topology: str

    @property
    def holds(self) -> tuple[str, ...]:
        return self.names

    def __str__(self) -> str:
        return f"containers {' '.join(self.names)}, as in: testbed render"


@dataclass(frozen=True)
class Address(Step):
    """``cidr`` as ``10.1.0.1/16`` or ``fd5c:…::1/64``; IPv6 without duplicate detection (it would cost a second).

    ``neighbour`` is (address, MAC) of the only other end of the interface's link, if its MAC is known: a permanent
    entry, which the kernel does not count against the limit that all namespaces of a host share (gc_thresh3).
    """

    namespace: str
    interface: str
    cidr: str
    neighbour: tuple[str, ...] = ()

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"address {self.namespace}:{self.interface} {self.cidr}"


@dataclass(frozen=True)
class Route(Step):
    """A plain metric or multipath route; never a nexthop object, which the kernel does not restore after a cut.

    ``hops`` are (gateway address, interface); several make a multipath route, none a blackhole. ``congestion`` is the
    TCP congestion control of connections over the route, if the kernel has it; a route is used because the sysctl of a
    namespace accepts only algorithms that the host's administrator allows for all.
    """

    namespace: str
    destination: str
    hops: tuple[tuple[str, str], ...]
    metric: int = 0
    congestion: str = ""

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        hops = " ".join(f"via {gateway} dev {interface}" for gateway, interface in self.hops) or "blackhole"
        congestion = f" congestion {self.congestion}" if self.congestion else ""
        return f"route {self.namespace}: {self.destination} {hops} metric {self.metric}{congestion}"


@dataclass(frozen=True)
class Redirect(Step):
    """A zero-delay wire between two interfaces, both ways, by clsact and mirred: the baseline of certification."""

    namespace: str
    a: str
    b: str

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"redirect {self.namespace}: {self.a} = {self.b}"


@dataclass(frozen=True)
class SiteFabric(Step):
    """Rate limits of a site's fabric, whose ``bridge`` has the ``ports`` of its nodes: (node, port) each.

    Every port carries ``rate_bps`` both ways. With ``core_bps`` below what all ports carry together, frames of nodes go
    through one core of that rate each way, whether to each other or to the gateway (``host/drivers/fabric_limits.py``).
    """

    gateway: str
    bridge: str
    ports: tuple[tuple[str, str], ...]
    interface: str
    rate_bps: float
    core_bps: float
    mtu: int = 1500

    @property
    def within(self) -> tuple[str, ...]:
        return (self.gateway, *(node for node, _ in self.ports))

    @property
    def oversubscribed(self) -> bool:
        return self.core_bps < len(self.ports) * self.rate_bps

    def __str__(self) -> str:
        core = f", core {self.core_bps / 1e6:g} Mb/s" if self.oversubscribed else ""
        return f"fabric {self.gateway}:{self.bridge}: {len(self.ports)} ports of {self.rate_bps / 1e6:g} Mb/s{core}"


@dataclass(frozen=True)
class Fibers(Step):
    """The emulator of all directions, in the namespace ``plant``: ``fiberd``, a process, or ``netem``, the kernel."""

    plant: str
    directions: tuple[EmulatedDirection, ...]
    seed: int = 0
    emulator: str = "fiberd"

    def __str__(self) -> str:
        return f"fibers in {self.plant}: " + ", ".join(
            f"{direction.name} {direction.ingress} > {direction.egress}" for direction in self.directions
        )


@dataclass(frozen=True)
class Rank:
    """The placement of a rank. ``metrics`` is its address on the management network."""

    rank: int
    node: str
    site: str
    metrics: str
    port: int


@dataclass(frozen=True)
class Agents(Step):
    """One training agent per rank, forked from one fork server."""

    ranks: tuple[Rank, ...]

    def __str__(self) -> str:
        return f"agents: {len(self.ranks)} ranks on " + " ".join(rank.node for rank in self.ranks)


@dataclass(frozen=True)
class Prometheus(Step):
    """A Prometheus server at ``address`` in ``namespace`` that scrapes ``ranks`` and the keeper's exporter there.

    It has no ``within``: removing the namespace does not end the process.
    """

    namespace: str
    address: str
    port: int
    exporter_port: int
    ranks: tuple[Rank, ...] = ()

    def __str__(self) -> str:
        scraped = f"{len(self.ranks)} ranks and {self.address}:{self.exporter_port}, the keeper"
        return f"prometheus {self.namespace}: {self.address}:{self.port} scrapes {scraped}"


@dataclass(frozen=True)
class Killed(Step):
    """A rank's process killed (SIGKILL) and not replaced while active; the inverse deploys a fresh agent."""

    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} killed"


@dataclass(frozen=True)
class Unpowered(Step):
    """All processes of a node killed (SIGKILL), and no agent on it while active.

    :class:`Carrier` Steps handle the node's cables. The inverse deploys fresh agents; other programs are not restarted.
    """

    node: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"node {self.node} without power"
