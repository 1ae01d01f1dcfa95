"""rtnetlink and tc by pyroute2: interfaces, addresses, routes, carriers, redirects of one network namespace.

A :class:`Namespace` holds open sockets in one network namespace; opening one takes 0.4 ms (pyroute2's NetNS takes 8 ms,
and creates a missing namespace). Not thread-safe. Requests that a lab makes by the thousand use
:mod:`testbed.host.linux.rtnetlink`. pyroute2 is imported when it is first needed: the import takes 0.15 s, and commands
that only read or set carriers do not need it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from testbed.errors import HostError, NotAllowed
from testbed.host.linux import invocation, namespace, rate_limit, rtnetlink

IFF_LOWER_UP = 0x10000
NUD_NOARP, NTF_MASTER = 0x40, 0x04


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate netlink's errors to ``testbed.errors``; ``doing`` completes "could not …"."""
    try:
        yield
    except Exception as error:
        if (number := _number(error)) is None:
            raise
        if number in (errno.EPERM, errno.EACCES):
            raise NotAllowed(f"not permitted to {doing}: {invocation.again('CAP_NET_ADMIN')}") from error
        raise HostError(f"could not {doing}: {os.strerror(number) if number else error}") from error


def _number(error: Exception) -> int | None:
    """Return the errno of a kernel error, 0 if it has none; None for any other exception."""
    if isinstance(error, OSError):
        return error.errno or 0
    known = sys.modules.get("pyroute2.netlink.exceptions")  # if not imported, it cannot have raised this
    return int(error.code or 0) if known and isinstance(error, known.NetlinkError) else None


def _number_of(error: BaseException | None) -> int | None:
    return _number(error) if isinstance(error, Exception) else None


def prepare() -> None:
    """Import pyroute2 now, while the calling thread is idle, rather than at its first use."""
    importlib.import_module("pyroute2")


class Namespace:
    """One network namespace, given by the path of its handle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with namespace.entered(path):
            self._raw = rtnetlink.connect()
        self._indices: dict[str, int] = {}

    @functools.cached_property
    def _ip(self) -> Any:
        """pyroute2's socket in this namespace."""
        from pyroute2 import IPRoute

        with namespace.entered(self.path):
            return IPRoute()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if "_ip" in self.__dict__:  # only if it was opened
            self._ip.close()
        self._raw.close()

    def index(self, name: str) -> int:
        """Return an interface's index. Raises HostError if there is no such interface."""
        if name not in self._indices:
            found = rtnetlink.index(self._raw, name)
            if not found:
                raise HostError(f"no interface {name} in {self.path.name}")
            self._indices[name] = found
        return self._indices[name]

    def add_veth(self, name: str, index: int, peer: str, peer_namespace: Path, mtu: int, peer_mac: str = "") -> None:
        """Create a veth from this namespace into another, both ends down."""
        with translated(f"make the veth {self.path.name}:{name}"), peer_namespace.open("rb") as other:
            request: dict[str, Any] = {"ifname": name, "kind": "veth", "mtu": mtu}
            if index:
                request["index"] = index
            there: dict[str, Any] = {"ifname": peer, "net_ns_fd": other.fileno(), "mtu": mtu}
            if peer_mac:
                there["address"] = peer_mac
            self._ip.link("add", **request, peer=there)
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
        link = self._ip.get_links(self.index(name))[0]
        if link["index"] == link.get_attr("IFLA_LINK"):
            raise HostError(f"both ends of {self.path.name}:{name} have interface index {link['index']}")

    def up(self, name: str) -> None:
        with translated(f"bring {self.path.name}:{name} up"):
            rtnetlink.exchange(self._raw, [rtnetlink.link_state(self.index(name), True)])

    def add_bridge(self, name: str, ports: tuple[str, ...], isolated: bool, mtu: int) -> None:
        with translated(f"make the bridge {self.path.name}:{name}"):
            # No forward delay and no spanning tree, as the topology has no loops: ports forward from the first frame.
            self._ip.link("add", ifname=name, kind="bridge", br_stp_state=0, br_forward_delay=0, mtu=mtu)
            bridge = self.index(name)
            for port in ports:
                self._ip.link("set", index=self.index(port), master=bridge)
                if isolated:
                    self._ip.brport("set", index=self.index(port), isolated=1)
            self._ip.link("set", index=bridge, state="up")

    def add_inner_veth(self, name: str, peer: str, mtu: int) -> None:
        """Create a veth with both ends in this namespace, down."""
        with translated(f"make the veth {self.path.name}:{name}"):
            self._ip.link("add", ifname=name, kind="veth", mtu=mtu, peer={"ifname": peer, "mtu": mtu})

    def delete_link(self, name: str) -> None:
        with translated(f"remove {self.path.name}:{name}"):
            self._ip.link("del", index=self.index(name))
            self._indices.clear()

    def mac(self, name: str) -> str:
        """Return the hardware address of an interface."""
        with translated(f"look at {self.path.name}:{name}"):
            return str(self._ip.get_links(self.index(name))[0].get_attr("IFLA_ADDRESS"))

    def set_port(self, name: str, master: str, *, learning: bool = True, hairpin: bool = False) -> None:
        """Make an interface a port of a bridge, also one that is a port of another. With ``hairpin`` a frame may leave
        by the port that it came in."""
        with translated(f"make {self.path.name}:{name} a port of {master}"):
            index = self.index(name)
            self._ip.link("set", index=index, master=self.index(master))
            self._ip.brport("set", index=index, learning=int(learning), mode=int(hairpin))

    def add_forwarding(self, mac: str, port: str) -> None:
        """Tell a bridge for good that the hardware address is at its ``port``."""
        with translated(f"add {mac} to the port {self.path.name}:{port}"):
            # "replace": the bridge may have learned the address since the interface became its port.
            self._ip.fdb("replace", ifindex=self.index(port), lladdr=mac, state=NUD_NOARP, flags=NTF_MASTER)

    def limit(self, name: str, bucket: rate_limit.TokenBucket) -> None:
        """Limit the rate of what an interface sends, as yet unlimited. Raises HostError if it is not in force."""
        with translated(f"limit the rate of {self.path.name}:{name} (qdisc tbf)"):
            rate_limit.limit(self._raw, self.index(name), bucket)
            found = rate_limit.limit_of(self._raw, self.index(name))
        if found != bucket.rate:
            raise HostError(f"{self.path.name}:{name} has a rate limit of {found} B/s, expected {bucket.rate} B/s")

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
            self._ip.tc("add", "clsact", index)
            mirred = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": self.index(other)}
            self._ip.tc(
                "add-filter",
                "u32",
                index,
                parent=0xFFFFFFF2,  # clsact's ingress
                prio=1,
                protocol=0x0003,  # ETH_P_ALL
                target=0,
                keys=["0x0/0x0+0"],
                action=[mirred],
            )

    def unredirect(self, name: str) -> None:
        """Remove a redirection; a missing one is no error."""
        try:
            with translated(f"remove the redirection of {self.path.name}:{name}"):
                self._ip.tc("del", "clsact", self.index(name))
        except HostError as error:
            if _number_of(error.__cause__) not in (errno.ENOENT, errno.EINVAL):
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
