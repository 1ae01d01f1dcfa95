"""The driver ``netns``: namespaces and veths. Needs root or a user namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.plan import addressing
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Address, Bridge, Namespace, Redirect, Route, SiteFabric, Sysctls, Veth
from testbed.core.plan.step import Property, Step
from testbed.errors import HostError, NameTaken, TestbedError, raise_all
from testbed.host.drivers import fabric_limits
from testbed.host.drivers.driver import Facts
from testbed.host.linux import namespace, netlink, process


def refuse_taken(name: str) -> None:
    """Raise NameTaken if a network namespace of that name exists: this lab did not create it."""
    if namespace.netns_path(name).exists():
        raise NameTaken(
            f"network namespace {name} exists, which no lab of this state folder created"
            " (it may belong to a live lab of another TESTBED_STATE); choose another --name"
        )


def nowhere(node: str) -> None:
    """Default of ``elsewhere``: every node is created by this driver."""
    return


class NetnsDriver:
    """Handler of one lab's namespaces and everything inside them. Not thread-safe.

    Args:
        lab: name of the lab; it is part of every namespace's name, which marks it as this lab's.
        handles: folder for the mount, IPC and UTS handles of nodes, one folder per node.
        elsewhere: returns the network namespace of a node that another driver created (a container), else None.
    """

    def __init__(self, lab: str, handles: Path, elsewhere: Callable[[str], Path | None] = nowhere) -> None:
        self._lab = lab
        self._handles = handles
        self._elsewhere = elsewhere
        self._open: dict[str, netlink.Namespace] = {}
        self._mounts: namespace.CleanMounts | None = None
        self._makers: dict[type[Step], Callable[[Any], Facts]] = {
            Namespace: self._namespace,
            Veth: self._veth,
            Bridge: self._bridge,
            Sysctls: self._sysctls,
            Address: self._address,
            Route: self._route,
            Redirect: self._redirect,
            SiteFabric: self._fabric,
        }

    @property
    def kinds(self) -> tuple[type[Step], ...]:
        return (*self._makers, Carrier)

    def path(self, node: str) -> Path:
        """Return the handle of the network namespace of a node, gateway, the plant or the management network."""
        return self._elsewhere(node) or namespace.netns_path(addressing.namespace_name(self._lab, node))

    def close(self) -> None:
        for space in self._open.values():
            space.close()
        self._open.clear()
        if self._mounts is not None:
            self._mounts.close()
            self._mounts = None

    def make(self, step: Step) -> Facts:
        return self._makers[type(step)](step)

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if isinstance(step, Route):
            self._space(step.namespace).delete_route(step.destination, step.hops, step.metric)
            return
        if isinstance(step, Address):
            self._space(step.namespace).delete_address(step.interface, step.cidr)
            return
        if isinstance(step, SiteFabric):
            fabric_limits.remove(step, self._space)
            return
        if not isinstance(step, Namespace):
            return  # everything else is inside namespaces and is removed with them
        name = addressing.namespace_name(self._lab, step.name)
        path = namespace.netns_path(name)
        inode, expected = namespace.inode(path), facts.get("inode", 0)
        if step.name in self._open:
            self._open.pop(step.name).close()
        if inode and expected and inode != expected:
            raise HostError(f"{path} is not the namespace that this lab created (another inode): not removed")
        if inode and inode != namespace.inode("/proc/self/ns/net"):
            stuck = process.end_all(process.inside({inode}))
            if stuck:
                raise HostError(f"processes {stuck} in {name} did not end after SIGKILL")
        namespace.remove(name, self._handles / step.name if step.isolated else None)

    def assign(self, settings: Sequence[Property]) -> None:
        by_namespace: dict[str, dict[str, bool]] = defaultdict(dict)
        for setting in settings:
            assert isinstance(setting, Carrier)
            by_namespace[setting.namespace][setting.interface] = setting.up
        failures: list[TestbedError] = []
        for name, states in by_namespace.items():
            try:
                self._space(name).set_carriers(states)
            except TestbedError as error:
                failures.append(error)
        raise_all(failures)

    def _clean_mounts(self) -> namespace.CleanMounts:
        if self._mounts is None:
            self._mounts = namespace.CleanMounts()
        return self._mounts

    def _space(self, name: str) -> netlink.Namespace:
        if name not in self._open:
            self._open[name] = netlink.Namespace(self.path(name))
        return self._open[name]

    def _namespace(self, step: Namespace) -> Facts:
        name = addressing.namespace_name(self._lab, step.name)
        path = namespace.netns_path(name)
        refuse_taken(name)
        namespace.create(
            name,
            self._handles / step.name if step.isolated else None,
            hostname=step.name,
            hosts=step.hosts,
            mounts=self._clean_mounts() if step.isolated else None,
        )
        self._space(step.name).up("lo")
        return {"inode": namespace.inode(path)}

    def _veth(self, step: Veth) -> Facts:
        here, there = self._space(step.a.namespace), self._space(step.b.namespace)
        here.add_veth(step.a.name, step.a.index, step.b.name, there.path, step.mtu, step.b.mac)
        here.assert_distinct_indices(step.a.name)
        for space, end in ((here, step.a), (there, step.b)):
            if end.alternative:
                space.add_alternative(end.name, end.alternative)
        if step.a.up:
            here.up(step.a.name)
        if step.b.up:
            there.up(step.b.name)
        return {}

    def _bridge(self, step: Bridge) -> Facts:
        self._space(step.namespace).add_bridge(step.name, step.ports, step.isolated, step.mtu)
        return {}

    def _sysctls(self, step: Sysctls) -> Facts:
        self._space(step.namespace).write_sysctls(step.values, step.optional)
        return {}

    def _address(self, step: Address) -> Facts:
        self._space(step.namespace).add_address(step.interface, step.cidr, step.neighbour)
        return {}

    def _route(self, step: Route) -> Facts:
        self._space(step.namespace).add_route(step.destination, step.hops, step.metric, step.congestion)
        return {}

    def _fabric(self, step: SiteFabric) -> Facts:
        fabric_limits.add(step, self._space)
        return {}

    def _redirect(self, step: Redirect) -> Facts:
        self._space(step.namespace).add_redirect(step.a, step.b)
        return {}
