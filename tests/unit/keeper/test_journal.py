"""The journal: what is read back is what stood in memory, whenever the writer died."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from builders.tables import table

from testbed.core.plan import build
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Namespace
from testbed.errors import LabError, StorageError
from testbed.host.files import catalog
from testbed.keeper.journal import Journal

PLAN = (Namespace("plant"), Namespace("east-0", isolated=True, hosts="127.0.0.1 localhost\n"))
DARK, LIT = Carrier("plant", "north-a", False), Carrier("plant", "north-a", True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def journal(path: Path) -> Journal:
    return Journal.create(path, "lab", "this-boot", (4711, 99))


def content(journal: Journal) -> dict[str, Any]:
    return {
        "lab": journal.lab,
        "boot": journal.boot,
        "keeper": journal.keeper,
        "state": journal.state,
        "entries": {number: (it.owner, it.step, it.facts) for number, it in journal.entries.items()},
        "forgotten": {number: (it.owner, it.step) for number, it in journal.forgotten.items()},
        "notes": journal.notes,
    }


def test_whoever_asks_for_what_stands_may_do_so_while_it_changes(journal: Journal) -> None:
    """Connections ask while the engine's thread writes: here one more entry before each of their bytecodes."""
    journal.intend("lab", [*PLAN, LIT])

    def write(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        journal.intend("lab", [LIT])
        return write

    tracer = sys.gettrace()
    sys.settrace(write)
    try:
        owned = journal.owned("lab")
        found = journal.properties([LIT.key])
    finally:
        sys.settrace(tracer)
    assert [it.step for it in owned] == [*PLAN, *[LIT] * (len(owned) - len(PLAN))]
    assert found == {LIT.key: [("lab", LIT)]}
    assert len(journal.owned("lab")) > len(owned) > len(PLAN) + 1, "it was written meanwhile"


def test_what_is_read_back_is_what_stood_in_memory(journal: Journal, path: Path) -> None:
    first, second = journal.intend("lab", PLAN)
    first.facts = {"inode": 4026532000}
    journal.done([first, second])
    (cut,) = journal.intend("f1", [DARK])
    journal.set_state("up")
    journal.note("fault", id="f1", target="north")
    journal.intend("f2", [DARK])
    journal.undone([cut])
    (left, over) = journal.intend("f3", [DARK, DARK])
    journal.forget([left, over])
    journal.undone([over])
    again = Journal.read(path)
    assert content(again) == content(journal)
    assert again.entries[first.id].done
    assert [it.owner for it in again.owned("f2")] == ["f2"]
    assert again.owned("f1") == again.owned("f3") == []
    assert [it.id for it in again.forgotten_by("f3")] == [left.id]


def test_a_whole_plan_comes_back(journal: Journal, path: Path) -> None:
    plan = build.build(catalog.load_topology("regional-ring", None))
    journal.intend("lab", plan)
    assert tuple(it.step for it in Journal.read(path).owned("lab")) == plan


def test_numbers_are_never_used_twice(journal: Journal, path: Path) -> None:
    gone = journal.intend("f1", [DARK])
    journal.undone(gone)
    (fresh,) = Journal.read(path).intend("f2", [DARK])
    assert fresh.id > gone[0].id


def test_intentions_are_on_disk_before_anybody_acts_on_them(journal: Journal, path: Path) -> None:
    entries = journal.intend("lab", PLAN)
    standing = Journal.read(path).owned("lab")
    assert [it.step for it in standing] == [it.step for it in entries]
    assert not any(it.done for it in standing)


@pytest.mark.parametrize("cut_off", [1, 2, 30])
def test_a_torn_last_line_is_dropped_and_spoils_no_later_line(journal: Journal, path: Path, cut_off: int) -> None:
    """1 is the newline alone: the line can be read, but its writer had not been told so.

    `heal` without the keeper writes into the journal that `down` must read afterwards.
    """
    journal.intend("lab", PLAN)
    before = content(Journal.read(path))
    journal.intend("f1", [DARK])
    os.truncate(path, path.stat().st_size - cut_off)
    successor = Journal.read(path)
    assert content(successor) == before
    successor.intend("emulator-died", [DARK])
    successor.set_state("going")
    again = Journal.read(path)
    assert content(again) == content(successor)
    assert [entry.owner for entry in again.entries.values()] == ["lab", "lab", "emulator-died"]


def test_a_write_that_the_disk_cut_short_leaves_no_half_line(
    journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.intend("lab", PLAN)
    before, write = path.read_bytes(), os.write
    full = iter([False, True])

    def write_until_full(file: int, data: bytes) -> int:
        if next(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:10])

    monkeypatch.setattr(os, "write", write_until_full)
    with pytest.raises(StorageError, match="No space left on device"):
        journal.intend("f1", [DARK])
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert journal.owned("f1") == []
    journal.set_state("up")
    assert content(Journal.read(path)) == content(journal)


def header(version: object = 3, keeper: str = "[1, 1]") -> str:
    return f'{{"journal": {version}, "lab": "lab", "boot": "b", "keeper": {keeper}}}'


NO_LINE, OTHER_VERSION = "not a line of a journal", "another version of the testbed"


@table(
    "lines, error",
    {
        "garbage in the middle": ([header(), '{"id": 1, "own', '{"state": "up"}'], rf"journal\.jsonl:2: {NO_LINE}"),
        "an earlier version": ([header(version=2)], OTHER_VERSION),
        "a later version": ([header(version=4)], OTHER_VERSION),
        "an unknown kind of line": ([header(), '{"id": 1, "suspended": true}'], OTHER_VERSION),
        "an unknown step": (
            [header(), '{"id": 1, "owner": "lab", "intend": {"step": "Wormhole", "namespace": "plant"}}'],
            OTHER_VERSION,
        ),
        # It would pass for that of another boot, with nothing left of its lab.
        "no first line": (['{"state": "up"}'], r"journal\.jsonl:1: not the first line of a journal"),
        "a keeper without a pid": ([header(keeper="[]")], rf"journal\.jsonl:1: {NO_LINE}"),
        "no keeper": ([header(keeper="null")], rf"journal\.jsonl:1: {NO_LINE}"),
        "a first line that is a list": (['["journal"]'], rf"journal\.jsonl:1: {NO_LINE}"),
    },
)
def test_a_damaged_journal_or_one_of_another_version_is_refused(path: Path, lines: list[str], error: str) -> None:
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(LabError, match=error):
        Journal.read(path)


def test_no_journal(path: Path) -> None:
    with pytest.raises(LabError, match="no journal at"):
        Journal.read(path)


@pytest.mark.parametrize("text", ["", header()[:22]])
def test_an_empty_journal_is_that_of_a_keeper_that_died_at_once(path: Path, text: str) -> None:
    """Or of a lab that exists and whose journal was emptied: the reader must know."""
    path.write_text(text)
    assert Journal.read(path).entries == {}
    assert Journal.read(path).empty


def test_a_journal_that_has_begun_is_not_empty(journal: Journal, path: Path) -> None:
    assert not journal.empty
    assert not Journal.read(path).empty
