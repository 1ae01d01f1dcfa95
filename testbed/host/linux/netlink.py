"""Interfaces, addresses, routes, carriers and redirects of one network namespace, by rtnetlink.

A :class:`Namespace` holds an open socket in one network namespace; opening one takes 0.4 ms. Not thread-safe. The
requests are those of :mod:`testbed.host.linux.rtnetlink`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from testbed.errors import HostError, NotAllowed
from testbed.host.linux import invocation, namespace, rate_limit, rtnetlink

IFF_LOWER_UP = 0x10000


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate netlink's errors to ``testbed.errors``; ``doing`` completes "could not …"."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise NotAllowed(f"not permitted to {doing}: {invocation.again('CAP_NET_ADMIN')}") from error
        raise HostError(f"could not {doing}: {os.strerror(error.errno) if error.errno else error}") from error


class Namespace:
    """One network namespace, given by the path of its handle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with namespace.entered(path):
            self._raw = rtnetlink.connect()
        self._indices: dict[str, int] = {}

    def __enter__(self) -> Namespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._raw.close()

    def index(self, name: str) -> int:
        """Return an interface's index. Raises HostError if there is no such interface."""
        if name not in self._indices:
            index = rtnetlink.index(self._raw, name)
            if not index:
                raise HostError(f"no interface {name} in {self.path.name}")
            self._indices[name] = index
        return self._indices[name]

    def add_veth(self, name: str, index: int, peer: str, peer_namespace: Path, mtu: int, peer_mac: str = "") -> None:
        """Create a veth from this namespace into another, both ends down."""
        with translated(f"make the veth {self.path.name}:{name}"), peer_namespace.open("rb") as other:
            rtnetlink.exchange(self._raw, [rtnetlink.new_veth(name, peer, mtu, index, other.fileno(), peer_mac)])
        if index:
            self._indices[name] = index

    def add_alternative(self, name: str, alternative: str) -> None:
        """Give an interface an alternative name; a kernel without such names (before Linux 5.5) is no error."""
        with translated(f"name {self.path.name}:{name} {alternative}"):
            try:
                rtnetlink.exchange(self._raw, [rtnetlink.new_alternative(self.index(name), alternative)])
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise

    def assert_distinct_indices(self, name: str) -> None:
        """Raise HostError if both ends of a veth have the same index: the kernel would delay its carrier events."""
        index = self.index(name)
        with translated(f"look at {self.path.name}:{name}"):
            other = rtnetlink.link_attributes(self._raw, index).get(rtnetlink.IFLA_LINK, b"")
        if int.from_bytes(other, sys.byteorder) == index:
            raise HostError(f"both ends of {self.path.name}:{name} have interface index {index}")

    def up(self, name: str) -> None:
        with translated(f"bring {self.path.name}:{name} up"):
            rtnetlink.exchange(self._raw, [rtnetlink.link_state(self.index(name), True)])

    def add_bridge(self, name: str, ports: tuple[str, ...], isolated: bool, mtu: int) -> None:
        with translated(f"make the bridge {self.path.name}:{name}"):
            # No forward delay and no spanning tree, as the topology has no loops: ports forward from the first frame.
            rtnetlink.exchange(self._raw, [rtnetlink.new_bridge(name, mtu)])
            bridge = self.index(name)
            requests = []
            for port in map(self.index, ports):
                requests.append(rtnetlink.link_master(port, bridge))
                if isolated:
                    requests.append(rtnetlink.port_flags(port, {rtnetlink.IFLA_BRPORT_ISOLATED: True}))
            rtnetlink.exchange(self._raw, [*requests, rtnetlink.link_state(bridge, True)])

    def add_inner_veth(self, name: str, peer: str, mtu: int) -> None:
        """Create a veth with both ends in this namespace, down."""
        with translated(f"make the veth {self.path.name}:{name}"):
            rtnetlink.exchange(self._raw, [rtnetlink.new_veth(name, peer, mtu)])

    def delete_link(self, name: str) -> None:
        with translated(f"remove {self.path.name}:{name}"):
            rtnetlink.exchange(self._raw, [rtnetlink.old_link(self.index(name))])
            self._indices.clear()

    def mac(self, name: str) -> str:
        """Return the hardware address of an interface."""
        with translated(f"look at {self.path.name}:{name}"):
            return rtnetlink.link_attributes(self._raw, self.index(name))[rtnetlink.IFLA_ADDRESS].hex(":")

    def set_port(self, name: str, master: str, *, learning: bool = True, hairpin: bool = False) -> None:
        """Make an interface a port of a bridge, also one that is a port of another. With ``hairpin`` a frame may leave
        by the port that it came in."""
        with translated(f"make {self.path.name}:{name} a port of {master}"):
            index = self.index(name)
            flags = {rtnetlink.IFLA_BRPORT_LEARNING: learning, rtnetlink.IFLA_BRPORT_MODE: hairpin}
            rtnetlink.exchange(
                self._raw, [rtnetlink.link_master(index, self.index(master)), rtnetlink.port_flags(index, flags)]
            )

    def add_forwarding(self, mac: str, port: str) -> None:
        """Tell a bridge for good that the hardware address is at its ``port``."""
        with translated(f"add {mac} to the port {self.path.name}:{port}"):
            # Replaces an entry that the bridge may have learned since the interface became its port.
            rtnetlink.exchange(self._raw, [rtnetlink.forwarding(self.index(port), mac)])

    def limit(self, name: str, bucket: rate_limit.TokenBucket) -> None:
        """Limit the rate of what an interface sends, as yet unlimited. Raises HostError if it is not in force."""
        with translated(f"limit the rate of {self.path.name}:{name} (qdisc tbf)"):
            rate_limit.limit(self._raw, self.index(name), bucket)
            rate = rate_limit.limit_of(self._raw, self.index(name))
        if rate != bucket.rate:
            raise HostError(f"{self.path.name}:{name} has a rate limit of {rate} B/s, expected {bucket.rate} B/s")

    def unlimit(self, name: str) -> None:
        with translated(f"remove the rate limit of {self.path.name}:{name}"):
            rate_limit.unlimit(self._raw, self.index(name))

    def add_address(self, name: str, cidr: str, neighbour: tuple[str, ...] = ()) -> None:
        """Add an address, and a permanent neighbour (address, MAC) if given."""
        with translated(f"give {self.path.name}:{name} the address {cidr}"):
            requests = [rtnetlink.new_address(self.index(name), cidr)]
            if neighbour:
                requests.append(rtnetlink.new_neighbour(self.index(name), *neighbour))
            rtnetlink.exchange(self._raw, requests)

    def delete_address(self, name: str, cidr: str) -> None:
        """Take an address from an interface; a missing one is no error."""
        with translated(f"take the address {cidr} from {self.path.name}:{name}"):
            try:
                rtnetlink.exchange(self._raw, [rtnetlink.old_address(self.index(name), cidr)])
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise

    def add_route(self, destination: str, hops: tuple[tuple[str, str], ...], metric: int, congestion: str = "") -> None:
        """Add a route; ``congestion`` is ignored if the kernel does not have that congestion control."""
        with translated(f"add the route to {destination} in {self.path.name}"):
            ways = [(gateway, self.index(name)) for gateway, name in hops]
            try:
                rtnetlink.exchange(self._raw, [rtnetlink.new_route(destination, ways, metric, congestion)])
            except OSError as error:
                if not congestion or error.errno != errno.EINVAL:
                    raise
                rtnetlink.exchange(self._raw, [rtnetlink.new_route(destination, ways, metric)])

    def delete_route(self, destination: str, hops: tuple[tuple[str, str], ...], metric: int) -> None:
        """Delete a route; a missing one is no error."""
        with translated(f"delete the route to {destination} in {self.path.name}"):
            try:
                rtnetlink.exchange(self._raw, [rtnetlink.old_route(destination, bool(hops), metric)])
            except ProcessLookupError:  # ESRCH
                return

    def add_redirect(self, a: str, b: str) -> None:
        """Redirect everything received on either interface to the other's egress: clsact, u32 and mirred."""
        self.redirect_ingress(a, b)
        self.redirect_ingress(b, a)

    def redirect_ingress(self, name: str, other: str) -> None:
        """Redirect everything received on an interface to the other's egress."""
        with translated(f"redirect {name} to {other} in {self.path.name}"):
            index = self.index(name)
            rtnetlink.exchange(self._raw, [rtnetlink.clsact(index)])
            rtnetlink.exchange(self._raw, [rtnetlink.redirect(index, self.index(other), "u32")])

    def unredirect(self, name: str) -> None:
        """Remove a redirection; a missing one is no error."""
        with translated(f"remove the redirection of {self.path.name}:{name}"):
            try:
                rtnetlink.exchange(self._raw, [rtnetlink.no_clsact(self.index(name))])
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EINVAL):
                    raise

    def set_carriers(self, states: Mapping[str, bool]) -> None:
        """Bring interfaces up or down in one send, so that their events are within a fraction of a millisecond."""
        with translated("change carriers in " + self.path.name):
            requests = [rtnetlink.link_state(self.index(name), up) for name, up in states.items()]
            rtnetlink.exchange(self._raw, requests)

    def carriers(self) -> dict[str, bool]:
        """Return, by interface, whether it is up and has a carrier."""
        with translated(f"list interfaces of {self.path.name}"):
            return {name: bool(flags & IFF_LOWER_UP) for name, flags in rtnetlink.links(self._raw).items()}

    def write_sysctls(self, values: tuple[tuple[str, str], ...], optional: bool) -> None:
        """Write files of /proc/sys, which belong to the namespace of the thread that opens them."""
        with namespace.entered(self.path):
            for key, value in values:
                try:
                    Path("/proc/sys", key).write_text(value)
                except OSError as error:
                    if not optional:
                        raise HostError(f"could not set {key}={value} in {self.path.name}: {error.strerror}") from error

    def read_sysctl(self, key: str) -> str:
        """Return the value of a file of /proc/sys, single-spaced; empty if this kernel does not have it."""
        with namespace.entered(self.path):
            try:
                return " ".join(Path("/proc/sys", key).read_text().split())
            except OSError:
                return ""
