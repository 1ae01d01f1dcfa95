"""What one thing cannot do keeps no other from it: a heal in which something fails, an emulator that dies."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from builders.noop import NoHandler

from testbed.core.faults.fault_kind import Compiled
from testbed.core.plan.properties import Carrier, Paused
from testbed.core.plan.step import Property
from testbed.errors import HostError, LabError, StorageError, TestbedError, raise_all
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper import journal, protocol
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.journal import EMULATOR_DIED, PROTECTED, Journal
from testbed.keeper.keeper import Keeper
from testbed.keeper.program_ranks import ProgramRanks
from testbed.keeper.rank_faults import RankFaultHandler
from testbed.keeper.service import Caller
from testbed.keeper.verbs import Verbs
from testbed.lab import teardown


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A real one, of a lab of which nothing is built."""
    folder = LabFolder(tmp_path / "metro")
    folder.path.mkdir()
    made = Keeper(folder, containers=False)
    yield made
    made._worker.shutdown()


def refuse(error: Exception) -> Callable[..., Any]:
    def instead(*arguments: Any, **more: Any) -> Any:
        raise error

    return instead


def test_all_that_failed_is_said_and_one_cause_once() -> None:
    raise_all([])
    with pytest.raises(LabError, match=r"^one$"):
        raise_all([LabError("one")])
    with pytest.raises(HostError, match=r"^one; two; OSError\('three'\)$"):
        raise_all([LabError("one"), StorageError("two"), LabError("one"), OSError("three")])


# ---- the emulator dies


@pytest.mark.parametrize("error", [HostError("no such device"), StorageError("disk full"), OSError("out of files")])
def test_that_the_emulator_died_is_written_whatever_fails_after_it(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("testbed.keeper.keeper._fiber_ends", lambda step: ["north-a", "north-b"])
    keeper.journal.intend(LAB, [Carrier("plant", "x", True)])
    monkeypatch.setattr(keeper.engine, "apply", refuse(error))
    monkeypatch.setattr(keeper.driver, "assign", refuse(error))
    keeper._emulator_died(-9)
    told = keeper.events.since(0)["events"]
    assert [it["event"] for it in told] == ["emulator-died", "note"]
    assert told[0]["status"] == -9
    assert str(error) in told[1]["text"]
    assert Verbs(keeper).answer({"call": "hello"}, Caller(lambda text: None))["emulator_died"]


def test_on_a_full_disk_the_ends_go_down_unrecorded(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the fibers would swallow packets behind ends that are up."""
    down: list[Property] = []
    monkeypatch.setattr("testbed.keeper.keeper._fiber_ends", lambda step: ["north-a", "north-b"])
    keeper.journal.intend(LAB, [Carrier("plant", "x", True)])
    monkeypatch.setattr(keeper.journal, "intend", refuse(StorageError("disk full")))
    monkeypatch.setattr(keeper.journal, "exchange", refuse(StorageError("disk full")))
    monkeypatch.setattr(keeper.driver, "assign", down.extend)
    keeper._emulator_died(None)
    assert down == [Carrier("plant", "north-a", False), Carrier("plant", "north-b", False)]
    assert [it["event"] for it in keeper.events.since(0)["events"]] == ["emulator-died"]


def cut_of(*ends: str) -> tuple[protocol.CompiledFault, Compiled]:
    fault = {"type": "cut", "target": "north", "links": ["north"], "nodes": [], "parameters": {}, "for_s": None}
    dark = tuple(Carrier("plant", end, False) for end in ends)
    return cast(protocol.CompiledFault, fault), Compiled.at_once("dark", dark, ("north",))


def test_no_heal_lights_a_fiber_whose_emulator_died_on_a_full_disk(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With carrier but without an emulator it would silently drop all packets. The disk has it as soon as it can."""
    ends, full, up = ("north-a", "north-b"), list[bool](), dict[str, bool]()
    monkeypatch.setattr("testbed.keeper.keeper._fiber_ends", lambda step: [step.interface])
    monkeypatch.setattr(keeper.driver, "assign", lambda settings: up.update({it.interface: it.up for it in settings}))
    append = journal._append
    monkeypatch.setattr(
        journal, "_append", lambda file, data: refuse(OSError(errno.ENOSPC, "full"))() if full else append(file, data)
    )
    keeper.engine.apply(LAB, tuple(Carrier("plant", end, True) for end in ends))
    keeper.faults.inject(*cut_of(*ends))
    full.append(True)
    keeper._emulator_died(-9)
    assert Journal.read(keeper.lab.journal).owned(EMULATOR_DIED) == [], "else the disk was not full"
    keeper.faults.heal(["f1"])
    assert up == dict.fromkeys(ends, False)
    full.clear()
    keeper.faults.inject(*cut_of("north-a"))
    keeper.faults.heal(["f2"])
    assert up == dict.fromkeys(ends, False)
    there = Journal.read(keeper.lab.journal)
    assert [it.step for it in there.owned(EMULATOR_DIED)] == [Carrier("plant", end, False) for end in ends]
    assert there.owned("f2") == []


@pytest.mark.parametrize("first", ["forgotten", "undone", "compacted"])
def test_what_the_disk_refused_and_took_later_can_be_read(keeper: Keeper, first: str) -> None:
    it = keeper.journal
    held = it.hold(EMULATOR_DIED, [Carrier("plant", "north-a", False)])
    if first == "compacted":
        it._compact_at = 0
        it.note("remark")
    else:
        {"forgotten": it.forget, "undone": it.undone}[first](held)
    again = Journal.read(it.path)
    assert (again.entries, again.forgotten) == (it.entries, it.forgotten)
    it.note("remark")
    assert Journal.read(it.path).entries == it.entries


def test_a_keeper_that_may_begin_no_thread_ends_with_its_lab(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.do(lambda: None)  # the engine's thread is there
    monkeypatch.setattr(threading.Thread, "start", refuse(RuntimeError("can't start new thread")))
    keeper.down()
    assert keeper._ended.is_set()


# ---- heal


class Handler(NoHandler):
    """Refuses to light the fibers of ``broken``, each in its own words."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.lit = broken, list[str]()

    def assign(self, settings: Sequence[Property]) -> None:
        for it in settings:
            assert isinstance(it, Carrier)
            if it.up and it.interface in self.broken:
                raise HostError(f"{it.interface} is stuck")
            self.lit += [it.interface] if it.up else []


def test_a_heal_of_everything_tries_everything(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(keeper.faults, "heal", refuse(HostError("f1 is stuck")))
    monkeypatch.setattr(keeper.protection, "restore", refuse(HostError("north is stuck")))
    monkeypatch.setattr(keeper.engine, "settle", lambda: done.append("settled"))
    with pytest.raises(HostError, match=r"^f1 is stuck; north is stuck$"):
        Verbs(keeper).answer({"call": "heal", "ids": ["f1"], "everything": True}, Caller(lambda text: None))
    assert done == ["settled"]


def test_every_fault_is_healed_but_those_that_cannot_and_all_of_these_are_told(keeper: Keeper) -> None:
    hand = Handler("b", "d")
    keeper.engine = keeper.faults._engine = Engine(keeper.journal, {Carrier: hand})
    keeper.engine.apply(LAB, tuple(Carrier("plant", end, True) for end in "ace"))
    for end in "abcde":
        fault = cast(
            protocol.CompiledFault,
            {"type": "cut", "target": end, "links": [end], "nodes": [], "parameters": {}, "for_s": None},
        )
        keeper.faults.inject(fault, Compiled.at_once("dark", (Carrier("plant", end, False),), (end,)))
    hand.lit.clear()
    with pytest.raises(HostError, match=r"b is stuck.*d is stuck"):
        keeper.faults.heal(["f1", "f2", "f3", "f4", "f5"])
    assert hand.lit == ["a", "c", "e"]
    assert [it["id"] for it in keeper.faults.records() if it["ended_t"] is None] == ["f2", "f4"]


def test_a_fault_whose_keys_are_stuck_does_not_keep_its_own_from_being_undone(keeper: Keeper) -> None:
    """A second heal of one that was half undone settles first; if that fails, its Steps are withdrawn all the same."""
    keeper.faults._active["f1"] = cast(Any, type("Active", (), {"half_undone": True, "record": {}, "due": None})())
    tried: list[str] = []
    keeper.engine.settle = refuse(HostError("another key is stuck"))  # type: ignore[method-assign]
    keeper.engine.undo = tried.append  # type: ignore[method-assign]
    keeper.faults._cut = lambda fault, cuts: tried.append("cut")
    with pytest.raises(HostError, match="another key is stuck"):
        keeper.faults.heal(["f1"])
    assert tried == ["f1", "cut"]


def test_without_a_keeper_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the fibers' ends nor a fault nor a protected link keeps another from being healed."""
    refused, lit = {"north-a", "west-0"}, list[str]()

    def assign(self: object, settings: Sequence[Property]) -> None:
        for it in settings:
            assert isinstance(it, Carrier)
            if it.interface in refused:
                raise HostError(f"{it.interface} is stuck")
            lit.append(it.interface)

    monkeypatch.setattr(NetnsDriver, "assign", assign)
    monkeypatch.setattr(teardown, "_darken", refuse(HostError("the plant is stuck")))
    lab = LabFolder(tmp_path / "metro")
    lab.path.mkdir()
    journal = Journal.create(lab.journal, "metro", process.boot_id(), (1 << 22, 1))
    for number, end in (("f1", "west-0"), ("f2", "east-0")):
        journal.note("fault", id=number, type="x", target=end, links=[], nodes=[])
        journal.intend(number, (Carrier("gw", end, False),))
    journal.intend(f"{PROTECTED}north", (Carrier("plant", "north-a", False),))
    journal.intend(f"{PROTECTED}south", (Carrier("plant", "south-a", False),))
    journal.close()
    with pytest.raises(HostError) as caught:
        teardown.heal(lab, None)
    assert all(word in str(caught.value) for word in ("the plant is stuck", "west-0 is stuck", "north-a is stuck"))
    assert {"east-0", "south-a"} <= set(lit)
    left = Journal.read(lab.journal)
    assert [it["id"] for it in left.notes if it["note"] == "fault-ended"] == ["f2"]


def test_one_namespace_that_is_stuck_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, seen = NetnsDriver("metro", tmp_path), list[str]()

    class Space:
        def __init__(self, name: str) -> None:
            self.name = name

        def set_carriers(self, states: dict[str, bool]) -> None:
            if self.name in ("a", "c"):
                raise HostError(f"{self.name} is stuck")
            seen.append(self.name)

    monkeypatch.setattr(driver, "_space", Space)
    with pytest.raises(HostError, match=r"^a is stuck; c is stuck$"):
        driver.assign([Carrier(name, "x", True) for name in "abcd"])
    assert seen == ["b", "d"]


def test_one_rank_that_is_stuck_leaves_the_others() -> None:
    class Agents:
        resumed: list[int] = []  # noqa: RUF012

        def pause(self, rank: int, paused: bool) -> None:
            if rank in (0, 2):
                raise LabError(f"rank {rank} is stuck")
            self.resumed.append(rank)

    handler = RankFaultHandler(cast(Any, Agents()), ProgramRanks("metro", Path), Path)
    with pytest.raises(TestbedError, match=r"^rank 0 is stuck; rank 2 is stuck$"):
        handler.assign([Paused(rank, False) for rank in range(4)])
    assert Agents.resumed == [1, 3]
