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
from builders import ROOT

from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Namespace
from testbed.core.plan.step import Property
from testbed.keeper import event_log, journal
from testbed.keeper.journal import Entry, Journal
from testbed.lab.job_output import LogTail

LIT, DARK = Carrier("plant", "north-a", True), Carrier("plant", "north-a", False)

FLAP = """
import sys, threading
from pathlib import Path
sys.path.insert(0, "tests")
from builders.noop import NoHandler
from testbed.core.faults.fault_kind import Compiled, Phase
from testbed.core.plan.properties import Carrier
from testbed.keeper import clock, event_log, faults
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
        if timeout == threading.TIMEOUT_MAX:
            ended.set()  # nothing will ever be due again
        else:
            Clock.now += timeout
        return True


class Handler(NoHandler):
    def assign(self, settings):
        counted.append(len(settings))


counted, ended = [], threading.Event()
faults.time = clock.time = Clock
clock.use_realtime_priority = lambda: None
event_log.bound_log(folder / "keeper.log", folder / "keeper.log.1")
engine = Engine(Journal.create(folder / "journal.jsonl", "lab", "boot", (1, 1)), {Carrier: Handler()})
engine.apply(LAB, (LIT,))
bench = faults.Faults(engine, lambda work: work(), event_log.EventLog(most=100), lambda fault, cuts: None)
bench.phases._changed = Sleep()
fault = {"type": "flap", "target": "north", "parameters": {}, "for_s": None, "planned_t": None, "scheduled": None}
timeline = (Phase(0.0, "dark", (DARK,)), Phase(0.2, "lit", ()))
bench.begin([(fault, Compiled(timeline, ("north",), 1.0, phases / 2 - 0.5))])
bench.phases.run(ended)
print(len(counted))
"""


@pytest.mark.thorough
def test_a_hundred_thousand_phases_leave_at_most_a_megabyte(tmp_path: Path) -> None:
    """On a fake clock: 14 hours of a fiber that flaps each second. The process's stderr is the keeper's log."""
    phases, log = 100_000, tmp_path / "keeper.log"
    with log.open("ab") as stderr:
        argv = [sys.executable, "-c", FLAP, str(tmp_path), str(phases)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT)
    assert done.returncode == 0, log.read_text()[-2000:]
    assert int(done.stdout) >= phases, "each phase sets the carrier"
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1_000_000
    journal = Journal.read(tmp_path / "journal.jsonl")
    assert [entry.step for entry in journal.entries.values()] == [LIT]
    assert [note["note"] for note in journal.notes] == ["fault", "fault-ended"]
    assert "fault-ended" in log.read_text().splitlines()[-1]


# ---- what a compaction must not change


def create(folder: Path) -> Journal:
    return Journal.create(folder / "journal.jsonl", "lab", "boot", (1, 1))


def content(journal: Journal) -> dict[str, Any]:
    over = ended(journal)
    return {
        "lab": (journal.lab, journal.boot, journal.keeper, journal.state),
        "entries": [
            (entry.id, entry.owner, entry.step, entry.facts, journal.precedence(entry))
            for entry in journal.entries.values()
        ],
        "forgotten": [(entry.id, entry.owner, entry.step) for entry in journal.forgotten.values()],
        "faults": journal.faults_begun,
        "active": [note["id"] for note in journal.notes if note["note"] == "fault" and note["id"] not in over],
        "others": [note for note in journal.notes if note["note"] not in ("fault", "fault-ended")],
    }


def ended(journal: Journal) -> set[str]:
    return {note["id"] for note in journal.notes if note["note"] == "fault-ended"}


def compact(journal: Journal) -> None:
    """Compact the journal, by a write."""
    journal.compact_at = 0
    journal.note("remark")


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
        for current in (author.journal, Journal.read(author.journal.path)):
            expected = by_walking(current)
            names = {"lab", "certification", *(f"f{number}" for number in range(1, current.faults_begun + 1))}
            assert {name: entries for name in names if (entries := current.owned(name))} == expected["owners"]
            assert current.properties([DARK.key]) == expected["properties"]
            assert set(current._by_owner) == set(expected["owners"]), "those that own nothing leave nothing"
            most = max(most, len(expected["properties"][DARK.key]))
    assert most >= 3, "there was something to order"


@pytest.fixture
def at_4096(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal that is compacted at 4096 bytes."""
    monkeypatch.setattr(journal, "COMPACT_BYTES", 4096)
    return create(tmp_path)


def test_ended_faults_are_forgotten_but_counted(at_4096: Journal) -> None:
    for number in range(1000):
        at_4096.note("fault", id=f"f{number + 1}", target="north")
        at_4096.note("fault-ended", id=f"f{number + 1}", t=float(number))
    again = Journal.read(at_4096.path)
    assert again.faults_begun == at_4096.faults_begun == 1000
    assert {"f1000", "f999"} <= ended(again) and "f1" not in ended(again)
    assert at_4096.path.stat().st_size < 10_000


def test_a_journal_whose_steps_are_many_is_compacted_seldom(at_4096: Journal) -> None:
    """Only once it has doubled: else each line would copy the whole lab."""
    at_4096.intend("lab", [Namespace(f"n{number}") for number in range(500)])
    inodes = {at_4096.path.stat().st_ino}
    for _ in range(100):
        at_4096.undone(at_4096.intend("f1", [DARK]))
        inodes.add(at_4096.path.stat().st_ino)
    assert len(inodes) == 2
    assert len(Journal.read(at_4096.path).owned("lab")) == 500


def test_a_journal_that_cannot_be_compacted_goes_on(tmp_path: Path) -> None:
    written, beside = create(tmp_path), tmp_path / "journal.jsonl.new"
    beside.mkdir()  # nothing can be written there
    compact(written)
    assert content(Journal.read(written.path)) == content(written)
    beside.rmdir()
    compact(written)
    assert b'"next"' in written.path.read_bytes().splitlines()[0]
    assert content(Journal.read(written.path)) == content(written)


def test_a_journal_that_was_never_compacted_is_compacted(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(
        """{"journal": 3, "lab": "lab", "boot": "boot", "keeper": [4711, 99]}
{"id": 1, "owner": "lab", "intend": {"step": "Namespace", "name": "plant"}}
{"id": 1, "done": {"inode": 7}}
{"state": "up"}
{"note": "fault", "id": "f1", "target": "north"}
{"id": 2, "owner": "f1", "intend": {"step": "Carrier", "namespace": "plant", "interface": "a", "up": false}}
{"id": 2, "undone": true}
"""
    )
    before = content(Journal.read(path))
    compact(Journal.read(path))
    assert {**content(Journal.read(path)), "others": []} == before
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


def test_a_follower_of_a_log_reads_each_line_once_while_it_is_moved_aside(tmp_path: Path) -> None:
    path, aside = tmp_path / "keeper.log", tmp_path / "keeper.log.1"
    tail, lines, chance = LogTail(path, aside), list[str](), random.Random(3)

    def append(text: str) -> None:
        with path.open("a") as log:
            log.write(text)

    def sometimes(share: float) -> bool:
        return chance.random() < share

    for number in range(500):
        append(f"{number}")
        if sometimes(0.3):
            lines += tail.lines(torn=False)  # in the middle of a line
        append("\n")
        if sometimes(0.4):
            lines += tail.lines(torn=False)
            if sometimes(0.5):
                append(f"late {number}\n")
                path.rename(aside)
                if sometimes(0.5):
                    lines += tail.lines(torn=False)
    lines += tail.lines()
    assert [line for line in lines if not line.startswith("late")] == [str(number) for number in range(500)]
    assert len(lines) == len(set(lines))


def test_an_entry_writes_itself_as_it_is_read(tmp_path: Path) -> None:
    written = create(tmp_path)
    (entry,) = written.intend("lab", [DARK])
    (again,) = Journal.read(written.path).entries.values()
    fresh = Entry(entry.id, "lab", DARK)
    assert again == entry == fresh
    assert again.written() == entry.written() == fresh.written()
