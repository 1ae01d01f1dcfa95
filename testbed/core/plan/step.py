"""Steps: everything that changes the host, as values, each with an inverse.

A plan is a tuple of Steps; a fault compiles to Steps too. What a Step *does* is a driver's matter
(``testbed.host``); what it *means* is here, so that plans can be compared, printed and journalled.

Two sorts:

- a **making** brings something into being; its inverse removes it. One that lives inside namespaces
  (``within``) needs no inverse of its own when one of those goes too.
- a **setting** gives ``key`` a value on top of the settings before it. The latest one that still stands wins,
  so its inverse is: forget it, and set what now wins. Two overlapping cuts of one fiber therefore
  end when the last of them ends, in whatever order they are healed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from testbed.core.physics.impairment import Direction, Impairment


@dataclass(frozen=True)
class Step:
    """Base of all Steps. ``str(step)`` is the line that ``--dry-run`` prints."""

    @property
    def within(self) -> tuple[str, ...]:
        """Namespaces whose removal removes this too."""
        return ()

    @property
    def holds(self) -> tuple[str, ...]:
        """Namespaces that go when this goes."""
        return ()


@dataclass(frozen=True)
class Setting(Step):
    """A Step of the second sort; ``key`` says what it sets."""

    @property
    def key(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def rest(self) -> Setting | None:
        """What stands where nobody says anything of ``key`` any more; None: nothing needs to be set then."""
        return None


@dataclass(frozen=True)
class Namespace(Step):
    """A network namespace; ``isolated`` adds mount, IPC and UTS namespaces, a hostname and a hosts file (a node)."""

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
    """One end of a veth. ``index`` 0 lets the kernel choose; ``up`` False leaves it dark until a Carrier lights it."""

    namespace: str
    name: str
    index: int = 0
    up: bool = True


@dataclass(frozen=True)
class Veth(Step):
    """A cable. One end has an explicit high index: with equal indices on both ends the kernel
    delays carrier events by up to a second and loses short cuts (net/core/link_watch.c)."""

    a: End
    b: End
    mtu: int = 1500

    @property
    def within(self) -> tuple[str, ...]:
        return (self.a.namespace, self.b.namespace)

    def __str__(self) -> str:
        return f"veth {self.a.namespace}:{self.a.name} = {self.b.namespace}:{self.b.name} mtu {self.mtu}"


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
    """Values below /proc/sys of a namespace. A key that this kernel does not have is skipped if ``optional``."""

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
    """``cidr`` as ``10.1.0.1/16`` or ``fd5c:…::1/64``; IPv6 without duplicate detection (it would cost a second)."""

    namespace: str
    interface: str
    cidr: str

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"address {self.namespace}:{self.interface} {self.cidr}"


@dataclass(frozen=True)
class Route(Step):
    """A plain metric or multipath route, never a nexthop object: those do not come back after a cut.

    ``hops`` are (gateway address, interface); several make a multipath route, none a blackhole. ``congestion`` is the
    TCP congestion control of connections over it, where the kernel has it: the sysctl of a namespace takes only those
    that the host's administrator allows to all.
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
    """A wire of zero delay between two interfaces, both ways, by clsact and mirred: the bare path of a certificate."""

    namespace: str
    a: str
    b: str

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"redirect {self.namespace}: {self.a} = {self.b}"


@dataclass(frozen=True)
class Fibers(Step):
    """The emulator of all directions, in the namespace ``plant``: ``fiberd``, a process, or ``netem``, the kernel."""

    plant: str
    directions: tuple[Direction, ...]
    seed: int = 0
    emulator: str = "fiberd"

    def __str__(self) -> str:
        return f"fibers in {self.plant}: " + ", ".join(
            f"{it.name} {it.ingress} > {it.egress}" for it in self.directions
        )


@dataclass(frozen=True)
class Rank:
    """Where a rank lives. ``metrics`` is its address on the management network."""

    rank: int
    node: str
    site: str
    metrics: str
    port: int


@dataclass(frozen=True)
class Agents(Step):
    """One training agent per rank, forked from one warm parent."""

    ranks: tuple[Rank, ...]

    def __str__(self) -> str:
        return f"agents: {len(self.ranks)} ranks on " + " ".join(rank.node for rank in self.ranks)


@dataclass(frozen=True)
class Prometheus(Step):
    """A Prometheus server at ``address`` in ``namespace``, that scrapes ``ranks`` and the keeper's own exporter there.

    Without ``within``: a process has to be ended, it does not go with the namespace that it is in.
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
class Carrier(Setting):
    """An interface administratively up or down; its peer sees the carrier."""

    namespace: str
    interface: str
    up: bool

    @property
    def key(self) -> tuple[str, ...]:
        return ("carrier", self.namespace, self.interface)

    @property
    def rest(self) -> Carrier:
        # A fiber's ends have a Carrier of the lab's own below every fault; the ports of fabrics and of the management
        # network are up from their making on.
        return Carrier(self.namespace, self.interface, True)

    @property
    def within(self) -> tuple[str, ...]:
        return (self.namespace,)

    def __str__(self) -> str:
        return f"carrier {self.namespace}:{self.interface} {'up' if self.up else 'down'}"


@dataclass(frozen=True)
class Shape(Setting):
    """What one direction of a fiber does to packets, from now on; ``flush``: what is under way is lost."""

    direction: str
    impairment: Impairment
    flush: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return ("shape", self.direction)

    def __str__(self) -> str:
        it = self.impairment
        return (
            f"shape {self.direction} delay {it.delay_s * 1e6:g} us rate {it.rate_bps / 1e6:g} Mb/s "
            f"queue {it.queue_bytes} B loss {it.loss:g}"
        )


@dataclass(frozen=True)
class Paused(Setting):
    """The process of a rank stopped where it is (SIGSTOP), or let go on: its sockets stay open, its peers wait."""

    rank: int
    paused: bool

    @property
    def key(self) -> tuple[str, ...]:
        return ("paused", str(self.rank))

    @property
    def rest(self) -> Paused:
        return Paused(self.rank, False)

    def __str__(self) -> str:
        return f"rank {self.rank} {'paused' if self.paused else 'runs'}"


@dataclass(frozen=True)
class Slowed(Setting):
    """A rank's compute takes ``1 + by`` times as long: it waits so much longer, and the machine's CPU is not used."""

    rank: int
    by: float

    @property
    def key(self) -> tuple[str, ...]:
        return ("slowed", str(self.rank))

    @property
    def rest(self) -> Slowed:
        return Slowed(self.rank, 0.0)

    def __str__(self) -> str:
        return f"rank {self.rank} computes {self.by:.4g} times as long more"


@dataclass(frozen=True)
class Throttled(Setting):
    """The process of a rank gets at most ``cpu`` CPUs (0.3: 30 % of one) from the kernel; None: all there are."""

    rank: int
    node: str
    cpu: float | None

    @property
    def key(self) -> tuple[str, ...]:
        return ("throttled", self.node)

    @property
    def rest(self) -> Throttled:
        return Throttled(self.rank, self.node, None)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node}: " + ("all CPUs" if self.cpu is None else f"{self.cpu:.0%} of a CPU")


@dataclass(frozen=True)
class Killed(Step):
    """The process of a rank ended by SIGKILL, and no new one while this stands; its inverse deploys a fresh agent."""

    rank: int

    def __str__(self) -> str:
        return f"rank {self.rank} killed"


@dataclass(frozen=True)
class Unpowered(Step):
    """Everything that runs on a node ended by SIGKILL, and no agent on it while this stands.

    The node's cables are a matter of :class:`Carrier`. Its inverse deploys fresh agents; programs of others
    do not come back.
    """

    node: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"node {self.node} without power"


Plan = tuple[Step, ...]

_KINDS: dict[str, type[Step]] = {
    kind.__name__: kind
    for kind in (
        Namespace,
        Veth,
        Bridge,
        Sysctls,
        Containers,
        Address,
        Route,
        Redirect,
        Fibers,
        Agents,
        Prometheus,
        Carrier,
        Shape,
        Paused,
        Slowed,
        Throttled,
        Killed,
        Unpowered,
    )
}


def to_dict(step: Step) -> dict[str, Any]:
    """JSON-able form of a Step, for the journal."""
    return {"step": type(step).__name__, **dataclasses.asdict(step)}


class _Build:
    """How nested values come back from JSON, by field name."""

    END: ClassVar[tuple[str, ...]] = ("a", "b")

    @staticmethod
    def field(name: str, value: Any) -> Any:
        if name in _Build.END and isinstance(value, Mapping):
            return End(**value)
        if name == "impairment":
            return Impairment(**value)
        if name == "directions":
            return tuple(Direction(**{**it, "impairment": Impairment(**it["impairment"])}) for it in value)
        if name == "ranks":
            return tuple(Rank(**it) if isinstance(it, Mapping) else it for it in value)
        if isinstance(value, list):
            return tuple(tuple(it) if isinstance(it, list) else it for it in value)
        return value


def from_dict(data: Mapping[str, Any]) -> Step:
    """The Step that :func:`to_dict` wrote. Raises KeyError for a kind that this version does not know."""
    fields = {name: _Build.field(name, value) for name, value in data.items() if name != "step"}
    return _KINDS[data["step"]](**fields)
