"""Journal and log stay small however long a fault goes on, and a SIGKILL at any point of a compaction is harmless."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Namespace
from testbed.core.plan.step import Property
from testbed.keeper import event_log, journal
from testbed.keeper.journal import Entry, Journal
from testbed.lab.log_tail import LogTail

LIT, DARK = Carrier("plant", "north-a", True), Carrier("plant", "north-a", False)

ROOT = Path(__file__).resolve().parents[3]

FLAP = """
import sys, threading
from pathlib import Path
sys.path.insert(0, "tests")
from builders.noop import NoHandler
from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.plan.properties import Carrier
from testbed.keeper import event_log, faults
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.journal import Journal

folder, phases = Path(sys.argv[1]), int(sys.argv[2])
LIT, DARK = Carrier("plant", "north-a", True), Carrier("plant", "north-a", False)


class Clock:
    now = 1000.0
    monotonic = staticmethod(lambda: Clock.now)
    time = staticmethod(lambda: 1.8e9 + Clock.now)


class Sleep(threading.Condition):
    def wait(self, timeout=None):
        if timeout is None:
            ended.set()  # nothing will ever be due again
        else:
            Clock.now += timeout
        return True


class Handler(NoHandler):
    def assign(self, settings):
        counted.append(len(settings))


counted, ended = [], threading.Event()
faults.time, faults.use_realtime_priority = Clock, lambda: None
event_log.bound_log(folder / "keeper.log", folder / "keeper.log.1")
engine = Engine(Journal.create(folder / "journal.jsonl", "lab", "boot", (1, 1)), {Carrier: Handler()})
engine.apply(LAB, (LIT,))
bench = faults.Faults(engine, lambda work: work(), event_log.EventLog(most=100), lambda fault, cuts: None)
bench._timers_changed = Sleep()
fault = {"type": "flap", "target": "north", "links": ["north"], "nodes": [], "parameters": {}, "for_s": None}
timeline = (Phase(0.0, "dark", (DARK,)), Phase(0.2, "lit", ()))
bench.inject(fault, Compiled(timeline, ("north",), 1.0, phases / 2 - 0.5))
bench.run(ended)
print(len(counted))
"""


def grown(tmp_path: Path, phases: int) -> int:
    """Play a flap of that many phases, its process's stderr being the keeper's log; return what it left, in bytes."""
    with (tmp_path / "keeper.log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-c", FLAP, str(tmp_path), str(phases)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
    assert done.returncode == 0, (tmp_path / "keeper.log").read_text()[-2000:]
    assert int(done.stdout) >= phases, "each phase sets the carrier"
    return sum(file.stat().st_size for file in tmp_path.iterdir())


@pytest.mark.thorough
def test_a_hundred_thousand_phases_leave_at_most_a_megabyte(tmp_path: Path) -> None:
    """On a fake clock: 14 hours of a fiber that flaps every second."""
    assert grown(tmp_path, 100_000) <= 1_000_000
    left = Journal.read(tmp_path / "journal.jsonl")
    assert [it.step for it in left.entries.values()] == [LIT]
    assert [it["note"] for it in left.notes] == ["fault", "fault-ended"]
    assert "fault-ended" in (tmp_path / "keeper.log").read_text().splitlines()[-1]


# ---- what a compaction must not change


def create(folder: Path) -> Journal:
    return Journal.create(folder / "journal.jsonl", "lab", "boot", (1, 1))


def content(of: Journal) -> dict[str, Any]:
    return {
        "lab": (of.lab, of.boot, of.keeper, of.state),
        "entries": [(it.id, it.owner, it.step, it.facts, of.precedence(it)) for it in of.entries.values()],
        "forgotten": [(it.id, it.owner, it.step) for it in of.forgotten.values()],
        "faults": of.faults_begun,
        "active": [it["id"] for it in of.notes if it["note"] == "fault" and it["id"] not in ended(of)],
        "others": [it for it in of.notes if it["note"] not in ("fault", "fault-ended")],
    }


def ended(of: Journal) -> set[str]:
    return {it["id"] for it in of.notes if it["note"] == "fault-ended"}


class Author:
    """Writes at random, as engine and faults do, with the same seed the same."""

    def __init__(self, path: Path, seed: int) -> None:
        self.random, self.journal = random.Random(seed), Journal.create(path, "lab", "boot", (4711, 99))
        self.faults: list[str] = []

    def step(self) -> None:
        kind = self.random.choice(["begin", "phase", "phase", "end", "half", "settle", "resource", "state", "note"])
        it = self.journal
        owner = self.random.choice(self.faults) if self.faults else ""
        if kind == "begin":
            number = f"f{1 + it.faults_begun}"
            it.note_all("fault", [{"id": number, "target": "north"}])
            it.intend(number, [DARK])
            self.faults.append(number)
        elif kind == "phase" and owner:
            gone = [entry for entry in it.owned(owner) if entry.step in (DARK, LIT)]
            it.exchange(owner, gone, self.random.choice([(DARK,), (LIT,), ()]))
            it.undone(it.forgotten_by(owner))
        elif kind == "end" and owner:
            it.undone([*it.forgotten_by(owner), *it.owned(owner)])
            it.note("fault-ended", id=owner, t=1.0)
            self.faults.remove(owner)
        elif kind == "half" and owner:
            it.forget([entry for entry in it.owned(owner) if entry.step in (DARK, LIT)])
        elif kind == "settle" and owner:
            it.undone(it.forgotten_by(owner))
        elif kind == "resource":
            entries = it.intend(self.random.choice(["lab", owner or "certification"]), [Namespace("plant")])
            for entry in entries:
                entry.facts = {"inode": self.random.randrange(10**6)}
            it.done(entries)
        elif kind == "state":
            it.set_state(self.random.choice(["up", "going"]))
        elif kind == "note":
            it.note("remark", text=self.random.random())


@pytest.mark.parametrize("seed", range(20))
def test_a_compacted_journal_says_what_one_says_that_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of entries, owners' order, faults in force, notes, and the next numbers; in memory and read back."""
    often, never = Author(tmp_path / "often", seed), Author(tmp_path / "never", seed)
    compacted = 0
    for _ in range(200):
        monkeypatch.setattr(journal, "COMPACT_BYTES", 10**9)
        never.step()
        monkeypatch.setattr(journal, "COMPACT_BYTES", 500)
        often.journal.compact_at = min(often.journal.compact_at, 600)
        before = often.journal.path.stat().st_ino
        often.step()
        compacted += often.journal.path.stat().st_ino != before
        assert content(often.journal) == content(never.journal)
        assert content(Journal.read(often.journal.path)) == content(Journal.read(never.journal.path))
    assert compacted > 20, "else this tests nothing"
    for each in (often, never):
        each.journal = Journal.read(each.journal.path)
    fresh = [each.journal.intend("f99", [DARK])[0].id for each in (often, never)]
    assert fresh[0] == fresh[1], "no number is used twice"


def by_walking(of: Journal) -> dict[str, Any]:
    """What the journal says of owners and keys, found among all of its entries."""
    properties: dict[tuple[str, ...], dict[str, Any]] = {DARK.key: {}}
    owners: dict[str, list[Any]] = {}
    for it in of.entries.values():
        owners.setdefault(it.owner, []).append(it)
        if isinstance(it.step, Property):
            properties[it.step.key][it.owner] = max(it, properties[it.step.key].get(it.owner, it), key=lambda it: it.id)
    return {
        "owners": owners,
        "properties": {
            key: [(it.owner, it.step) for it in sorted(found.values(), key=of.precedence)]
            for key, found in properties.items()
        },
    }


@pytest.mark.parametrize("seed", range(5))
def test_owners_and_keys_are_found_as_by_walking_over_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(journal, "COMPACT_BYTES", 500)
    author = Author(tmp_path / "journal", seed)
    most = 0
    for _ in range(300):
        author.step()
        for it in (author.journal, Journal.read(author.journal.path)):
            owners = {"lab", "certification", *(f"f{number}" for number in range(1, it.faults_begun + 1))}
            found = {owner: it.owned(owner) for owner in owners}
            expected = by_walking(it)
            assert {owner: entries for owner, entries in found.items() if entries} == expected["owners"]
            assert it.properties([DARK.key]) == expected["properties"]
            assert set(it._by_owner) == set(expected["owners"]), "those that own nothing leave nothing"
            most = max(most, len(expected["properties"][DARK.key]))
    assert most >= 3, "there was something to order"


def test_ended_faults_are_forgotten_but_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_BYTES", 4096)
    found = create(tmp_path)
    for number in range(1000):
        found.note("fault", id=f"f{number + 1}", target="north")
        found.note("fault-ended", id=f"f{number + 1}", t=float(number))
    again = Journal.read(found.path)
    assert again.faults_begun == found.faults_begun == 1000
    assert {"f1000", "f999"} <= ended(again) and "f1" not in ended(again)
    assert found.path.stat().st_size < 10_000


def test_a_journal_whose_steps_are_many_is_compacted_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only once it has doubled: else every line would copy the whole lab."""
    monkeypatch.setattr(journal, "COMPACT_BYTES", 4096)
    found = create(tmp_path)
    found.intend("lab", [Namespace(f"n{number}") for number in range(500)])
    inodes = {found.path.stat().st_ino}
    for _ in range(100):
        found.undone(found.intend("f1", [DARK]))
        inodes.add(found.path.stat().st_ino)
    assert len(inodes) == 2
    assert len(Journal.read(found.path).owned("lab")) == 500


def test_a_journal_that_cannot_be_compacted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = create(tmp_path)
    found.compact_at = 0
    (tmp_path / "journal.jsonl.new").mkdir()  # nothing can be written there
    found.intend("lab", [DARK])
    assert content(Journal.read(found.path)) == content(found)
    (tmp_path / "journal.jsonl.new").rmdir()
    found.compact_at = 0
    found.intend("lab", [LIT])
    assert b'"next"' in found.path.read_bytes().splitlines()[0]
    assert content(Journal.read(found.path)) == content(found)


@pytest.mark.parametrize("version", [1, 2])
def test_a_journal_of_an_older_version_is_compacted(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines: list[dict[str, Any]] = [
        {"journal": version, "lab": "lab", "boot": "boot", "keeper": [4711, 99]},
        {"id": 1, "owner": "lab", "intend": {"step": "Namespace", "name": "plant"}},
        {"id": 1, "done": {"inode": 7}},
        {"state": "up"},
        {"note": "fault", "id": "f1", "target": "north"},
        {"id": 2, "owner": "f1", "intend": {"step": "Carrier", "namespace": "plant", "interface": "a", "up": False}},
        {"id": 2, "undone": True},
    ]
    path.write_text("".join(json.dumps(it) + "\n" for it in lines))
    before, successor = content(Journal.read(path)), Journal.read(path)
    successor.compact_at = 0
    successor.note("remark")
    after = content(Journal.read(path))
    assert {**after, "others": []} == before
    assert json.loads(path.read_bytes().splitlines()[0])["journal"] == journal.VERSION


# ---- SIGKILL

CALLS = ("open", "write", "close", "rename", "unlink", "ftruncate", "fstat", "dup2", "replace")


def killed_at(call: int, work: Callable[[], None]) -> bool:
    """Do the work in a child that SIGKILLs itself at that system call: before it, or in the middle of a write. Return
    whether it came so far."""
    child = os.fork()
    if child == 0:
        try:
            left = call

            def watched(real: Callable[..., Any]) -> Callable[..., Any]:
                def instead(*arguments: Any, **more: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        if real is true_write:
                            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                        os.kill(os.getpid(), signal.SIGKILL)
                    return real(*arguments, **more)

                return instead

            true_write = os.write
            for name in CALLS:
                setattr(os, name, watched(getattr(os, name)))
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the work itself failed"
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_call_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    """The journal is what it was, or that and the new line; and whoever comes next can write and compact it."""
    seen, call = set[tuple[bool, bool]](), 0
    while True:
        call += 1
        author = Author(tmp_path / f"journal-{call}", seed=5)
        for _ in range(100):
            author.step()
        found = author.journal
        before = content(Journal.read(found.path))
        found.compact_at = 0
        was_killed = killed_at(call, lambda it=found: it.intend("certification", [DARK]))  # type: ignore[misc]
        left = content(Journal.read(found.path))
        compacted = b'"next"' in found.path.read_bytes().splitlines()[0]
        found.intend("certification", [DARK])  # in this process, which was not killed
        assert left in (before, content(found))
        seen.add((compacted, left == before))
        successor = Journal.read(found.path)
        successor.compact_at = 0
        successor.note("remark", text="I go on")
        again = Journal.read(found.path)
        assert content(again) == content(successor)
        assert not Path(f"{found.path}.new").exists(), "what the dead one left is gone"
        if not was_killed:
            break
    assert seen == {(False, True), (True, True), (True, False)}, "killed before the rename, after it, and not at all"


def test_a_kill_at_any_call_loses_no_line_of_the_log(tmp_path: Path) -> None:
    call = 0
    while True:
        call += 1
        folder = tmp_path / str(call)
        folder.mkdir()
        path, aside = folder / "keeper.log", folder / "keeper.log.1"
        aside.write_text("long ago\n")

        def work(path: Path = path, aside: Path = aside) -> None:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, event_log.STDERR)
            sys.stderr = os.fdopen(event_log.STDERR, "w", closefd=False)
            event_log.bound_log(path, aside, most_bytes=100)
            for number in range(4):
                event_log.log(f"line {number} ".ljust(60, "."))

        was_killed = killed_at(call, work)
        lines = [it.split()[3] for it in LogTail(path, aside).lines() if "line" in it]
        assert lines == [str(number) for number in range(len(lines))] or lines == ["2", "3"]
        if not was_killed:
            break
    assert call > 6
    assert lines == ["2", "3"], "0 and 1 were moved aside, and then 2 and 3"


def test_who_follows_a_log_reads_each_line_once_while_it_is_moved_aside(tmp_path: Path) -> None:
    path, aside = tmp_path / "keeper.log", tmp_path / "keeper.log.1"
    tail, seen, rng = LogTail(path, aside), list[str](), random.Random(3)
    for number in range(500):
        with path.open("a") as log:
            log.write(f"{number}")
        if rng.random() < 0.3:
            seen += tail.lines(torn=False)  # in the middle of a line
        with path.open("a") as log:
            log.write("\n")
        if rng.random() < 0.4:
            seen += tail.lines(torn=False)
            if rng.random() < 0.5:
                with path.open("a") as log:
                    log.write(f"late {number}\n")
                path.rename(aside)
                if rng.random() < 0.5:
                    seen += tail.lines(torn=False)
    seen += tail.lines()
    assert [it for it in seen if not it.startswith("late")] == [str(number) for number in range(500)]
    assert len(seen) == len(set(seen))


def test_an_entry_writes_itself_as_it_is_read(tmp_path: Path) -> None:
    found = create(tmp_path)
    (entry,) = found.intend("lab", [DARK])
    (again,) = Journal.read(found.path).entries.values()
    assert again == entry == Entry(entry.id, "lab", DARK)
    assert again.written() == entry.written() == Entry(entry.id, "lab", DARK).written()
