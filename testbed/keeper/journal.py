"""The journal of a lab: a write-ahead log of every Step.

One JSON object per line, append-only between compactions. A line names an *owner*: ``lab`` for the lab itself, a
fault's id, a certification. So what a SIGKILL leaves behind is always known: an intended Step may or may not be there,
and undoing a Step that is not there is no error.

::

    {"journal": 3, "lab": "metro-40km", "boot": "…", "keeper": [pid, start time]}
    {"id": 1, "owner": "lab", "intend": {"step": "Namespace", …}}
    {"id": 1, "done": {"inode": 4026532000}}
    {"id": 2, "forgotten": true}
    {"id": 1, "undone": true}
    {"state": "up"}
    {"note": "fault", …}

A property that is withdrawn is *forgotten* first: it has no say in its key any more, but the key has yet to be set to
the value in force now. Once that is done the property is *undone*. So the journal lists at any moment every key that
may have a wrong value on the host, including keys that no owner sets any more.

Owners are ordered by their first line, and their properties of one key are folded in that order, however often a fault
changes its own.

A journal that has grown is *compacted*: what is in memory is written to a new file, which then takes the journal's name
(rename(2)), so a crash at any point leaves the old journal or the new one. Steps that were undone are left out, and the
notes of all but the latest ended faults. The first line of a compacted journal also has what the lines left out said of
later ones: the ``next`` id, the ``order`` of the owners, and how many ``faults`` had begun.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from testbed.core.plan import codec
from testbed.core.plan.step import Property, Step
from testbed.errors import LabError, StorageError
from testbed.host.linux.descriptor import write_all

VERSION = 3

COMPACT_BYTES: Final = 256 * 1024
"""A smaller journal is not compacted; nor is one that has not doubled since it was."""

KEPT_FAULTS: Final = 20
"""Ended faults whose notes outlive a compaction, for people."""

EMULATOR_DIED: Final = "emulator-died"
"""Owner of the cut that takes every fiber down once the emulator has died, or once no keeper watches it."""

FIBERS_DARK: Final = "the emulator died, so all fibers are dark"
"""What users are told about it."""

PROTECTED: Final = "protection "
"""Prefix of the owner of a link's protection Steps; the link's name follows."""

_OTHER_VERSION = "{path} was written by another version of the testbed; take the lab down with that version"


@dataclass
class Entry:
    """A Step that is in force, or was at least intended."""

    id: int
    owner: str
    step: Step
    done: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    line: bytes = field(default=b"", repr=False, compare=False)

    def written(self) -> bytes:
        """Return the journal's line about it, encoded once: a compaction that encoded thousands of Steps again would
        delay faults."""
        if not self.line:
            self.line = _line({"id": self.id, "owner": self.owner, "intend": codec.to_dict(self.step)})
        return self.line


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


class Journal:
    """The Steps of one lab that are in force on the host, and the file that records them."""

    def __init__(self, path: Path, lab: str, boot: str) -> None:
        self.path, self.lab, self.boot = path, lab, boot
        self.keeper: tuple[int, int] = (0, 0)
        self.state = "building"
        self.entries: dict[int, Entry] = {}
        """Steps that are in force, or were at least intended."""
        # The same by owner and by key, in the same order: a fault that is due waits for no walk over a whole lab.
        self._by_owner: dict[str, dict[int, Entry]] = {}
        self._by_key: dict[tuple[str, ...], dict[int, Entry]] = {}
        self._unwritten: dict[int, Entry] = {}
        """Entries in force that the disk has not taken yet: see :meth:`hold`."""
        self.forgotten: dict[int, Entry] = {}
        """Properties withdrawn from the journal whose keys may not have been reset on the host yet."""
        self.notes: list[dict[str, Any]] = []
        """All notes, except those of faults that had ended before the last compaction."""
        self.faults_begun = 0
        """How many faults have ever begun, whether or not their notes are left."""
        self._order: dict[str, int] = {}
        self._next = 1
        self._file: int | None = None
        self._torn_at: int | None = None
        self.compact_at = COMPACT_BYTES
        """The next write to a file of so many bytes compacts it first."""

    @classmethod
    def create(cls, path: Path, lab: str, boot: str, keeper: tuple[int, int]) -> Journal:
        """Create a journal on disk. Raises StorageError."""
        journal = cls(path, lab, boot)
        journal.keeper = keeper
        journal._write([_line({"journal": VERSION, "lab": lab, "boot": boot, "keeper": list(keeper)})])
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read the journal from disk; a torn last line (a crash in the middle of a write) is dropped.

        A line counts once its newline is there: before that no process has acted on it. A journal without any line is
        :attr:`empty`. Raises LabError if there is no journal, it is damaged, or an unknown version wrote it.
        """
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise LabError(f"no journal at {path}: {error.strerror}") from error
        journal = cls(path, "", "")
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
            journal._torn_at = sum(len(line) for line in lines)
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if number == 1 and isinstance(record, dict) and "journal" not in record:
                    # Without a boot id it would pass for a journal of an earlier boot, with nothing left of its lab.
                    raise LabError(f"{path}:1: not the first line of a journal")
                journal._replay(record, line)
            except (ValueError, TypeError, AttributeError, IndexError) as error:
                raise LabError(f"{path}:{number}: not a line of a journal") from error
            except KeyError as error:
                raise LabError(_OTHER_VERSION.format(path=path)) from error
        return journal

    @property
    def empty(self) -> bool:
        """Whether the journal lacks even its first line.

        Either the keeper died at once, and the host has nothing of the lab, or the file was emptied later, and the
        host may have any of it.
        """
        return not self.boot

    def _replay(self, record: Mapping[str, Any], line: bytes) -> None:
        if "journal" in record:
            if record["journal"] != VERSION:
                raise LabError(_OTHER_VERSION.format(path=self.path))
            self.lab, self.boot = record["lab"], record["boot"]
            self.keeper = (record["keeper"][0], record["keeper"][1])
            self._next, self._order = record.get("next", 1), dict(record.get("order", {}))
            self.faults_begun = record.get("faults", 0)
        elif "intend" in record:
            self._add([Entry(record["id"], record["owner"], codec.from_dict(record["intend"]), line=line)])
        elif "done" in record:
            self.entries[record["id"]].done = True
            self.entries[record["id"]].facts = record["done"]
        elif "forgotten" in record:
            self._forget([self.entries[record["id"]]])
        elif "undone" in record:
            self._drop([record["id"]])
        elif "state" in record:
            self.state = record["state"]
        elif "note" in record:
            self._add_notes([dict(record)])
        else:
            raise LabError(_OTHER_VERSION.format(path=self.path))

    def intend(self, owner: str, plan: Iterable[Step]) -> list[Entry]:
        """Record a plan in one write, before any of it is applied."""
        return self.exchange(owner, (), plan)

    def intend_all(self, plans: Mapping[str, Iterable[Step]]) -> list[Entry]:
        """Record the plans of several owners in one write."""
        owned = [(owner, step) for owner, plan in plans.items() for step in plan]
        fresh = [Entry(number, owner, step) for number, (owner, step) in enumerate(owned, self._next)]
        self._write(entry.written() for entry in fresh)
        self._add(fresh)
        return fresh

    def exchange(self, owner: str, old: Iterable[Entry], plan: Iterable[Step]) -> list[Entry]:
        """Forget the properties ``old`` and record ``plan`` in their place, in one write: a crash leaves one of them,
        never neither."""
        withdrawn = list(old)
        fresh = [Entry(number, owner, step) for number, step in enumerate(plan, self._next)]
        self._write(
            [
                *(entry.written() for entry in fresh),
                *(_line({"id": entry.id, "forgotten": True}) for entry in withdrawn),
            ]
        )
        self._add(fresh)
        self._forget(withdrawn)
        return fresh

    def hold(self, owner: str, plan: Iterable[Step]) -> list[Entry]:
        """Add a plan in memory, for a disk that has refused it; the next write that succeeds records it first."""
        fresh = [Entry(number, owner, step) for number, step in enumerate(plan, self._next)]
        self._add(fresh)
        self._unwritten |= {entry.id: entry for entry in fresh}
        return fresh

    def _add(self, fresh: Iterable[Entry]) -> None:
        for entry in fresh:
            self.entries[entry.id] = entry
            self._by_owner.setdefault(entry.owner, {})[entry.id] = entry
            if isinstance(entry.step, Property):
                self._by_key.setdefault(entry.step.key, {})[entry.id] = entry
            self._order.setdefault(entry.owner, entry.id)
            self._next = max(self._next, entry.id + 1)

    def properties(self, keys: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], list[tuple[str, Property]]]:
        """Return the (owner, property) in force for each of ``keys``, in the order in which the owners began.

        One of each owner, its newest: a crash between two phases may leave both. Safe from any thread.
        """
        by_key: dict[tuple[str, ...], list[tuple[str, Property]]] = {}
        for key in keys:
            newest: dict[str, Entry] = {}
            for entry in list(self._by_key.get(key, {}).values()):
                if entry.id >= newest.setdefault(entry.owner, entry).id:
                    newest[entry.owner] = entry
            ordered = sorted(newest.values(), key=self.precedence)
            by_key[key] = [(entry.owner, cast(Property, entry.step)) for entry in ordered]
        return by_key

    def precedence(self, entry: Entry) -> tuple[int, int]:
        """Return the rank of an entry among those of its key: by when its owner began."""
        return self._order[entry.owner], entry.id

    def done(self, entries: Iterable[Entry]) -> None:
        """Record that these are in force, with the facts that undoing them needs. Raises StorageError."""
        entries = list(entries)
        self._write(_line({"id": entry.id, "done": entry.facts}) for entry in entries)
        for entry in entries:
            entry.done = True

    def forget(self, entries: Iterable[Entry]) -> None:
        """Withdraw these properties. On a full disk they are forgotten in memory only: undoing twice is no error."""
        entries = list(entries)
        with contextlib.suppress(StorageError):
            self._write(_line({"id": entry.id, "forgotten": True}) for entry in entries)
        self._forget(entries)

    def _forget(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._remove(entry.id)
            self.forgotten[entry.id] = entry

    def undone(self, entries: Iterable[Entry]) -> None:
        """Record that these are gone from the host. On a full disk as :meth:`forget`."""
        entries = list(entries)
        with contextlib.suppress(StorageError):
            self._write(_line({"id": entry.id, "undone": True}) for entry in entries)
        self._drop(entry.id for entry in entries)

    def _drop(self, ids: Iterable[int]) -> None:
        for number in ids:
            if number in self.entries:
                self._remove(number)
            self.forgotten.pop(number, None)
            self._unwritten.pop(number, None)

    def _remove(self, number: int) -> None:
        """Remove an entry that is in force from all that lists it."""
        entry = self.entries.pop(number)
        _take(self._by_owner, entry.owner, number)
        if isinstance(entry.step, Property):
            _take(self._by_key, entry.step.key, number)

    def set_state(self, state: str) -> None:
        """Record the state of the lab. Raises StorageError."""
        self._write([_line({"state": state})])
        self.state = state

    def note(self, kind: str, **content: Any) -> None:
        """Record what must survive a crash and is not a Step (a fault's times). Raises StorageError."""
        self.note_all(kind, [content])

    def note_all(self, kind: str, contents: Iterable[Mapping[str, Any]]) -> None:
        """Record several notes in one write. Raises StorageError."""
        records = [{"note": kind, **content} for content in contents]
        self._write(map(_line, records))
        self._add_notes(records)

    def _add_notes(self, records: Iterable[dict[str, Any]]) -> None:
        for note in records:
            self.notes.append(note)
            self.faults_begun += note["note"] == "fault"

    def owned(self, owner: str) -> list[Entry]:
        """Return the entries of ``owner``. Safe from any thread while the engine's thread writes."""
        # list() copies in one step; iterating over the dict itself fails when it changes meanwhile.
        return list(self._by_owner.get(owner, {}).values())

    def forgotten_by(self, owner: str) -> list[Entry]:
        """Return the properties that ``owner`` has withdrawn and whose keys are still to be set."""
        return [entry for entry in list(self.forgotten.values()) if entry.owner == owner]

    def _write(self, lines: Iterable[bytes]) -> None:
        """Append all of ``lines`` or none: half a line would make the following ones unreadable."""
        data = b"".join(lines)
        if not data:
            return
        try:
            if self._file is None:
                self._file = _open(self.path)
                if self._torn_at is not None:
                    os.ftruncate(self._file, self._torn_at)
            before = os.fstat(self._file).st_size
            if before >= self.compact_at:
                # Now, because what is in memory has been written and nothing else has.
                before = self._compact(before)
            held = b"".join(entry.written() for entry in self._unwritten.values())
            try:
                _append(self._file, held + data)
            except OSError:
                os.ftruncate(self._file, before)
                raise
            self._unwritten.clear()
        except OSError as error:
            raise StorageError(f"cannot write the journal {self.path}: {error.strerror}") from error

    def _compact(self, size: int) -> int:
        """Replace the file by one without what is over; return its size. If that fails, keep the file, and try again
        once it has grown as much again."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        lines = self._lines()
        file = -1
        try:
            fresh.unlink(missing_ok=True)  # of a process that died while it wrote this
            file = _open(fresh)
            _append(file, b"".join(lines))
            fresh.rename(self.path)
        except OSError:
            if file >= 0:
                os.close(file)
                with contextlib.suppress(OSError):
                    fresh.unlink()
            self.compact_at = size + COMPACT_BYTES
            return size
        if self._file is not None:
            os.close(self._file)
        self._file = file
        self._unwritten.clear()
        size = sum(map(len, lines))
        self.compact_at = max(COMPACT_BYTES, 2 * size)
        return size

    def _lines(self) -> list[bytes]:
        """Drop the notes of faults that are over; return the lines of a journal that says what this one does."""
        ended = [note["id"] for note in self.notes if note["note"] == "fault-ended"]
        over = set(ended) - set(ended[-KEPT_FAULTS:])
        self.notes = [
            note for note in self.notes if note["note"] not in ("fault", "fault-ended") or note["id"] not in over
        ]
        listed = sorted((*self.entries.values(), *self.forgotten.values()), key=lambda entry: entry.id)
        present = {entry.owner for entry in listed}
        # An owner keeps its place even while it owns nothing: a fault between two phases comes back to it.
        self._order = {owner: first for owner, first in self._order.items() if owner in present or owner not in over}
        header = {
            "journal": VERSION,
            "lab": self.lab,
            "boot": self.boot,
            "keeper": list(self.keeper),
            "next": self._next,
            "order": self._order,
            "faults": self.faults_begun - sum(note["note"] == "fault" for note in self.notes),
        }
        return [
            _line(header),
            *(entry.written() for entry in listed),
            *(_line({"id": entry.id, "done": entry.facts}) for entry in listed if entry.done and entry.facts),
            *(_line({"id": entry.id, "forgotten": True}) for entry in self.forgotten.values()),
            *([] if self.state == "building" else [_line({"state": self.state})]),
            *map(_line, self.notes),
        ]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _take(index: dict[Any, dict[int, Entry]], name: object, number: int) -> None:
    """Remove an entry from one place of an index, and the place once it is empty: ended faults must leave nothing."""
    del index[name][number]
    if not index[name]:
        del index[name]


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _append(file: int, data: bytes) -> None:
    # No fsync: an event that loses the page cache ends the namespaces and processes too.
    write_all(file, data)
