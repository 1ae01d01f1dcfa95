"""What one thing cannot do keeps no other from it: a heal in which something fails, an emulator that dies."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from builders.fault_bench import FAULT, FaultBench, bench, cut

from testbed.core.faults.fault_kind import Compiled
from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.plan.properties import Carrier, Paused
from testbed.core.plan.resources import Fibers
from testbed.core.plan.step import Property
from testbed.errors import HostError, LabError, StorageError, TestbedError, raise_all
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper.engine import LAB
from testbed.keeper.journal import EMULATOR_DIED, PROTECTED, Journal
from testbed.keeper.keeper import Keeper
from testbed.keeper.keeper_api import KeeperApi
from testbed.keeper.program_ranks import ProgramRanks
from testbed.keeper.rank_faults import RankFaultHandler
from testbed.keeper.service import Caller
from testbed.lab import teardown

__all__ = ["bench"]  # a fixture
ENDS = ("north-a", "north-b")
FIBERS = Fibers("plant", (EmulatedDirection("north:west", *ENDS, Impairment()),))


class Ports:
    """A driver's carriers: the state of each interface. Those in ``stuck`` refuse light, each with its own error."""

    def __init__(self, *stuck: str) -> None:
        self.stuck, self.up = stuck, dict[str, bool]()

    def assign(self, settings: Sequence[Property]) -> None:
        for setting in settings:
            assert isinstance(setting, Carrier)
            if setting.up and setting.interface in self.stuck:
                raise HostError(f"{setting.interface} is stuck")
            self.up[setting.interface] = setting.up


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A real one, of a lab of which nothing is built but fibers in its journal."""
    folder = LabFolder(tmp_path / "metro")
    folder.path.mkdir()
    keeper = Keeper(folder, containers=False)
    keeper.journal.intend(LAB, [FIBERS])
    yield keeper
    keeper._worker.shutdown()


@pytest.fixture
def ports(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> Ports:
    ports = Ports()
    monkeypatch.setattr(keeper.driver, "assign", ports.assign)
    return ports


def refuse(error: Exception) -> Callable[..., Any]:
    def instead(*arguments: Any, **options: Any) -> Any:
        raise error

    return instead


def carriers(ends: Sequence[str], up: bool = False) -> tuple[Carrier, ...]:
    return tuple(Carrier("plant", end, up) for end in ends)


def darken(keeper: Keeper, *ends: str) -> None:
    """Inject a fault that takes these ends down."""
    keeper.faults.begin([(FAULT, Compiled.at_once("dark", carriers(ends), ("north",)))])


def api(keeper: Keeper) -> KeeperApi:
    return KeeperApi(keeper, Caller(lambda text: None))


def test_all_failures_are_raised_and_one_cause_once() -> None:
    raise_all([])
    with pytest.raises(LabError, match=r"^one$"):
        raise_all([LabError("one")])
    with pytest.raises(HostError, match=r"^one; two; OSError\('three'\)$"):
        raise_all([LabError("one"), StorageError("two"), LabError("one"), OSError("three")])


# ---- the emulator dies


@pytest.mark.parametrize("error", [HostError("no such device"), StorageError("disk full"), OSError("out of files")])
def test_that_the_emulator_died_is_recorded_whatever_fails_after_it(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(keeper.engine, "apply", refuse(error))
    monkeypatch.setattr(keeper.driver, "assign", refuse(error))
    keeper.emulator_exited(-9)
    died, note = keeper.events.since(0)["events"]
    assert (died["event"], died["status"], note["event"]) == ("emulator-died", -9, "note")
    assert str(error) in note["text"]
    assert api(keeper).hello()["emulator_died"]


def test_on_a_full_disk_the_ends_go_down_unrecorded(
    keeper: Keeper, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the fibers would swallow packets behind ends that are up."""
    for method in ("intend", "exchange"):
        monkeypatch.setattr(keeper.journal, method, refuse(StorageError("disk full")))
    keeper.emulator_exited(None)
    assert ports.up == dict.fromkeys(ENDS, False)
    assert [event["event"] for event in keeper.events.since(0)["events"]] == ["emulator-died"]


def test_no_heal_lights_a_fiber_whose_emulator_died_on_a_full_disk(keeper: Keeper, ports: Ports) -> None:
    """With carrier but without an emulator it would silently drop all packets. The disk has it as soon as it can."""
    keeper.engine.apply(LAB, carriers(ENDS, up=True))
    darken(keeper, *ENDS)
    with pytest.MonkeyPatch.context() as full:
        full.setattr(os, "write", refuse(OSError(errno.ENOSPC, "full")))
        keeper.emulator_exited(-9)
        assert Journal.read(keeper.lab.journal).owned(EMULATOR_DIED) == [], "else the disk was not full"
        keeper.faults.heal(["f1"])
        assert ports.up == dict.fromkeys(ENDS, False)
    darken(keeper, "north-a")
    keeper.faults.heal(["f2"])
    assert ports.up == dict.fromkeys(ENDS, False)
    journal = Journal.read(keeper.lab.journal)
    assert [entry.step for entry in journal.owned(EMULATOR_DIED)] == [*carriers(ENDS)]
    assert journal.owned("f2") == []


@pytest.mark.parametrize("first", ["forget", "undone", "compact"])
def test_what_the_disk_refused_and_took_later_can_be_read(keeper: Keeper, first: str) -> None:
    journal = keeper.journal
    held = journal.hold(EMULATOR_DIED, carriers(["north-a"]))
    if first == "compact":
        journal.compact_at = 0
        journal.note("remark")
    else:
        getattr(journal, first)(held)
    again = Journal.read(journal.path)
    assert (again.entries, again.forgotten) == (journal.entries, journal.forgotten)
    journal.note("remark")
    assert Journal.read(journal.path).entries == journal.entries


def test_a_keeper_that_may_begin_no_thread_ends_with_its_lab(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.do(lambda: None)  # the engine's thread is there
    monkeypatch.setattr(threading.Thread, "start", refuse(RuntimeError("can't start new thread")))
    keeper.down()
    assert keeper._ended.is_set()


# ---- heal


def test_a_heal_of_everything_tries_everything(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(keeper.faults, "heal", refuse(HostError("f1 is stuck")))
    monkeypatch.setattr(keeper.protection, "restore", refuse(HostError("north is stuck")))
    monkeypatch.setattr(keeper.engine, "settle", lambda: done.append("settled"))
    with pytest.raises(HostError, match=r"^f1 is stuck; north is stuck$"):
        api(keeper).heal(ids=["f1"], everything=True)
    assert done == ["settled"]


def test_all_faults_are_healed_but_those_that_cannot_and_all_of_these_are_named(keeper: Keeper, ports: Ports) -> None:
    keeper.engine.apply(LAB, carriers("ace", up=True))
    for end in "abcde":
        darken(keeper, end)
    ports.stuck = ("b", "d")
    with pytest.raises(HostError, match=r"b is stuck.*d is stuck"):
        keeper.faults.heal(["f1", "f2", "f3", "f4", "f5"])
    assert ports.up == {end: end in "ace" for end in "abcde"}
    assert [record["id"] for record in keeper.faults.records() if record["ended_t"] is None] == ["f2", "f4"]


def test_a_fault_is_undone_although_other_keys_are_stuck(bench: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second heal of one that was half undone settles first; if that fails, its Steps are withdrawn all the same."""
    undone: list[str] = []
    fault = bench.inject(cut())
    monkeypatch.setattr(bench.engine, "undo", refuse(HostError("its own key is stuck")))
    with pytest.raises(HostError, match="its own key is stuck"):
        bench.heal(fault)
    bench.cuts.clear()
    monkeypatch.setattr(bench.engine, "settle", refuse(HostError("another key is stuck")))
    monkeypatch.setattr(bench.engine, "undo", undone.append)
    with pytest.raises(HostError, match="another key is stuck"):
        bench.heal(fault)
    assert (undone, bench.cuts) == (["f1"], [("f1", ())])


def test_a_heal_without_a_keeper_tries_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the fibers' ends nor a fault nor a protected link keeps another from being healed."""
    ports = Ports("north-a", "west-0")
    monkeypatch.setattr(NetnsDriver, "assign", lambda self, settings: ports.assign(settings))
    monkeypatch.setattr(teardown, "_darken", refuse(HostError("the plant is stuck")))
    lab = LabFolder(tmp_path / "metro")
    lab.path.mkdir()
    journal = Journal.create(lab.journal, "metro", process.boot_id(), (1 << 22, 1))
    for number, end in (("f1", "west-0"), ("f2", "east-0")):
        journal.note("fault", id=number, type="x", target=end, links=[], nodes=[])
        journal.intend(number, (Carrier("gw", end, False),))
    for link in ("north", "south"):
        journal.intend(f"{PROTECTED}{link}", carriers([f"{link}-a"]))
    journal.close()
    with pytest.raises(HostError) as caught:
        teardown.heal(lab, None)
    assert all(f"{name} is stuck" in str(caught.value) for name in ("the plant", "west-0", "north-a"))
    assert {"east-0", "south-a"} <= {end for end, up in ports.up.items() if up}
    notes = Journal.read(lab.journal).notes
    assert [note["id"] for note in notes if note["note"] == "fault-ended"] == ["f2"]


def test_one_namespace_that_is_stuck_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, done = NetnsDriver("metro", tmp_path), list[str]()

    class Space:
        def __init__(self, name: str) -> None:
            self.name = name

        def set_carriers(self, states: dict[str, bool]) -> None:
            if self.name in ("a", "c"):
                raise HostError(f"{self.name} is stuck")
            done.append(self.name)

    monkeypatch.setattr(driver, "_space", Space)
    with pytest.raises(HostError, match=r"^a is stuck; c is stuck$"):
        driver.assign([Carrier(name, "x", True) for name in "abcd"])
    assert done == ["b", "d"]


def test_one_rank_that_is_stuck_leaves_the_others() -> None:
    resumed: list[int] = []

    class Agents:
        def pause(self, rank: int, paused: bool) -> None:
            if rank in (0, 2):
                raise LabError(f"rank {rank} is stuck")
            resumed.append(rank)

    handler = RankFaultHandler(cast(Any, Agents()), ProgramRanks("metro", Path), Path)
    with pytest.raises(TestbedError, match=r"^rank 0 is stuck; rank 2 is stuck$"):
        handler.assign([Paused(rank, False) for rank in range(4)])
    assert resumed == [1, 3]
