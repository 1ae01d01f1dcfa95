"""Labs of tests, and their state as ip, /proc and the keeper report it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from oracles import oracle

import testbed
from builders.commands import run_line
from testbed import Lab, Topology
from testbed.host import lab_folder
from testbed.keeper import client
from testbed.keeper.keeper_api import KeeperApi

GATEWAYS = ("east-gw", "west-gw")
NODES = ("east-0", "east-1", "west-0", "west-1")


def bring_up(name: str = "", topology: str | Topology = "metro-40km", **options: Any) -> Lab:
    """Bring up a lab: without agents and even if uncertified, unless ``options`` state otherwise."""
    defaults = {"agents": False, "allow_uncertified": True}
    return testbed.up(topology, name=name or oracle.unused_name(), **{**defaults, **options})


class OwnLab(str):
    """The name of a lab that a test makes, which also reports what there is of the lab."""

    state: Path

    def __new__(cls, name: str, state: Path) -> OwnLab:
        made = super().__new__(cls, name)
        made.state = state
        return made

    @property
    def folder(self) -> Path:
        return self.state / "labs" / self

    def left(self) -> list[str]:
        return oracle.left_behind(self, self.state)

    def keepers(self) -> list[int]:
        return oracle.keeper_pids(self, self.state)


@contextlib.contextmanager
def lab_without_leftovers(state: Path, name: str = "", *what: str | Topology, **options: Any) -> Iterator[Lab]:
    """Have a lab up; check for leftovers at its end."""
    with bring_up(name, *what, **options) as lab:
        yield lab
    assert oracle.left_behind(lab.name, state) == []


def shared_lab(topology: str | Callable[[], Topology] | Mapping[str, str] = "metro-40km", **options: Any) -> Any:
    """Return a fixture: a lab for all tests of a module.

    ``topology``: its name, its text, what returns it, or several of them by id, each for all tests.
    """
    several = topology if isinstance(topology, Mapping) else None

    @pytest.fixture(scope="module", params=several)
    def lab(
        request: pytest.FixtureRequest, state_folder: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Lab]:
        if options.get("agents"):
            pytest.importorskip("torch", reason="the training agents need torch")
        what: Any = topology if several is None else several[request.param]
        what = what if isinstance(what, str) else what()
        if isinstance(what, str) and "\n" in what:
            file = tmp_path_factory.mktemp("topology") / "lab.yaml"
            file.write_text(what)
            what = str(file)
        with lab_without_leftovers(state_folder, "", what, **options) as made:
            yield made

    return lab


def ns(lab: Lab, node: str) -> str:
    """Return the name of a node's network namespace."""
    return oracle.netns(lab.name, node)


def address_of(lab: Lab, node: str, interface: str = "fabric0", family: str = "inet") -> str:
    return oracle.addresses(ns(lab, node), interface)[family]


def is_dark(lab: Lab, node: str, interface: str) -> bool:
    """Return whether an interface of a node has no carrier."""
    return oracle.no_carrier(ns(lab, node), interface)


def processes_in(lab: Lab, node: str) -> list[int]:
    return oracle.inside_pids(ns(lab, node))


def watch(lab: Lab, link: str) -> oracle.CarrierWatch:
    """Watch the carriers at both ends of a link."""
    return oracle.CarrierWatch({gateway: (ns(lab, gateway), link) for gateway in GATEWAYS})


def carrier_losses(lab: Lab, gateway: str, link: str = "north") -> int:
    """Return how often the kernel has counted the carrier as lost."""
    return int(run_in(lab, gateway, f"cat /sys/class/net/{link}/carrier_down_count"))


def end_rank(lab: Lab, node: str, number: int = signal.SIGKILL) -> int:
    """Send a signal to the only process of a node, as somebody else might; return its pid."""
    (victim,) = processes_in(lab, node)
    os.kill(victim, number)
    return victim


def programs_in(lab: Lab, word: str) -> list[int]:
    """Return the processes in the lab's nodes whose arguments have ``word``."""
    inside = {pid for node in lab.topology.node_names for pid in processes_in(lab, node)}
    return [pid for pid, argv, _ in oracle.processes() if pid in inside and word in " ".join(argv)]


def launched(lab: Lab, argv: Sequence[str], **options: Any) -> list[str]:
    """Run a program on all nodes, which must succeed; return the lines that it printed."""
    lines: list[str] = []
    status = lab.launch(argv, echo=lines.append, **options).exit_status()
    assert status == 0, lines
    return lines


def run_in(lab: Lab, node: str, line: str, *arguments: object) -> str:
    """Run a program in a node's network namespace; return its output."""
    return run_line(f"ip netns exec {ns(lab, node)} {line}", *arguments, timeout_s=60)


def folder(lab: Lab) -> lab_folder.LabFolder:
    return lab_folder.folder(lab.name)


def keeper(lab: Lab) -> KeeperApi:
    """Return the lab's keeper, by requests."""
    return client.keeper(folder(lab))


def events(lab: Lab, kind: str, since: int = 0) -> list[dict[str, Any]]:
    """Return the keeper's events of a kind."""
    return [event for event in keeper(lab).events(since=since)["events"] if event["event"] == kind]


def counters(lab: Lab) -> dict[str, Any]:
    """Return the emulator's counters of each direction."""
    return {direction["direction"]: direction for direction in keeper(lab).stats()["directions"]}
