"""The journal of a lab: every Step is written down before it is applied.

One JSON object a line, append-only. A line names an *owner*: ``lab`` for the lab itself, a fault's id, a
certification. What a SIGKILL leaves behind is therefore always known: a Step that was intended may or may not be there,
and undoing what is not there is no error.

::

    {"journal": 2, "lab": "metro-40km", "boot": "…", "keeper": [pid, start time]}
    {"id": 1, "owner": "lab", "intend": {"step": "Namespace", …}}
    {"id": 1, "done": {"inode": 4026532000}}
    {"id": 2, "forgotten": true}
    {"id": 1, "undone": true}
    {"state": "up"}
    {"note": "fault", …}

A *setting* that stands no more is forgotten first: it has no say over its key from then on, but that key has yet to be
given the value that has. Only once it was given is the setting undone. So the journal tells at any moment which keys
may have another value than they must, also a key of which nothing says anything any more.

Owners have an order: that of their first line. Of two faults that set the same key the one that began later has the
say, however often the earlier one changes what it sets.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.core.plan import codec
from testbed.core.plan.step import Step
from testbed.errors import LabError, StorageError

VERSION = 2
"""1 did not know what is forgotten; it is read too."""

EMULATOR_DIED: Final = "emulator-died"
"""The owner of the cut that takes every fiber down when the emulator died, or when no keeper watches it any more."""

FIBERS_DARK: Final = "the emulator died, so all fibers are dark"
"""The sentence that tells a user of it."""

PROTECTED: Final = "protection "
"""The owner of what stands for the protection of a link: this and the link's name."""

_OTHER_VERSION = "{path} was written by another version of the testbed; take the lab down with that one"


@dataclass
class Entry:
    """One Step that stands, or was at least intended."""

    id: int
    owner: str
    step: Step
    done: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class Journal:
    """What stands on the host because of one lab, and the file that says so."""

    def __init__(self, path: Path, lab: str, boot: str) -> None:
        self.path, self.lab, self.boot = path, lab, boot
        self.keeper: tuple[int, int] = (0, 0)
        self.state = "building"
        self.entries: dict[int, Entry] = {}
        """What stands, or was at least intended."""
        self.forgotten: dict[int, Entry] = {}
        """Settings that stand no more, of whose keys it is not known that they have another value by now."""
        self.notes: list[dict[str, Any]] = []
        self._order: dict[str, int] = {}
        self._next = 1
        self._file: int | None = None
        self._torn_at: int | None = None

    @classmethod
    def create(cls, path: Path, lab: str, boot: str, keeper: tuple[int, int]) -> Journal:
        """A new journal on disk. Raises StorageError."""
        journal = cls(path, lab, boot)
        journal.keeper = keeper
        journal._write([{"journal": VERSION, "lab": lab, "boot": boot, "keeper": list(keeper)}])
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """The journal as it stands on disk; a torn last line (a crash in the middle of a write) is dropped.

        A line counts once its newline is there: before that nobody had begun to act on it. Without any it is
        :attr:`empty`. Raises LabError if there is none, it is damaged, or was written by a version that we do not know.
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
                    # Without its boot it would pass for that of another one, of which nothing stands any more.
                    raise LabError(f"{path}:1: not the first line of a journal")
                journal._replay(record)
            except (ValueError, TypeError, AttributeError, IndexError) as error:
                raise LabError(f"{path}:{number}: not a line of a journal") from error
            except KeyError as error:
                raise LabError(_OTHER_VERSION.format(path=path)) from error
        return journal

    @property
    def empty(self) -> bool:
        """Whether it does not even say of which boot it is. Its keeper died at once, and nothing stands; or somebody
        emptied it, and everything may."""
        return not self.boot

    def _replay(self, record: Mapping[str, Any]) -> None:
        if "journal" in record:
            if record["journal"] not in (1, VERSION):
                raise LabError(_OTHER_VERSION.format(path=self.path))
            self.lab, self.boot = record["lab"], record["boot"]
            self.keeper = (record["keeper"][0], record["keeper"][1])
        elif "intend" in record:
            entry = Entry(record["id"], record["owner"], codec.from_dict(record["intend"]))
            self._stand([entry])
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
            self.notes.append(dict(record))
        else:
            raise LabError(_OTHER_VERSION.format(path=self.path))

    def intend(self, owner: str, plan: Iterable[Step]) -> list[Entry]:
        """Write down a plan, all of it in one write, before any of it is applied."""
        return self.exchange(owner, (), plan)

    def intend_all(self, plans: Mapping[str, Iterable[Step]]) -> list[Entry]:
        """Write down the plans of several owners, all of them in one write."""
        owned = [(owner, step) for owner, plan in plans.items() for step in plan]
        fresh = [Entry(number, owner, step) for number, (owner, step) in enumerate(owned, self._next)]
        self._write({"id": it.id, "owner": it.owner, "intend": codec.to_dict(it.step)} for it in fresh)
        self._stand(fresh)
        return fresh

    def exchange(self, owner: str, old: Iterable[Entry], plan: Iterable[Step]) -> list[Entry]:
        """Forget the settings ``old`` and write down ``plan`` in their place, in one write: a crash leaves either,
        never neither."""
        gone = list(old)
        fresh = [Entry(number, owner, step) for number, step in enumerate(plan, self._next)]
        self._write(
            [
                *({"id": it.id, "owner": owner, "intend": codec.to_dict(it.step)} for it in fresh),
                *({"id": it.id, "forgotten": True} for it in gone),
            ]
        )
        self._stand(fresh)
        self._forget(gone)
        return fresh

    def _stand(self, fresh: Iterable[Entry]) -> None:
        for it in fresh:
            self.entries[it.id] = it
            self._order.setdefault(it.owner, it.id)
            self._next = it.id + 1

    def precedence(self, entry: Entry) -> tuple[int, int]:
        """Of two entries that set the same key, the one for which this is greater has the say."""
        return self._order[entry.owner], entry.id

    def done(self, entries: Iterable[Entry]) -> None:
        entries = list(entries)
        self._write({"id": it.id, "done": it.facts} for it in entries)
        for it in entries:
            it.done = True

    def forget(self, entries: Iterable[Entry]) -> None:
        """These settings have no say any more, from now on. Should the disk be full they are forgotten in memory only:
        undoing twice is no error."""
        entries = list(entries)
        with contextlib.suppress(StorageError):
            self._write({"id": it.id, "forgotten": True} for it in entries)
        self._forget(entries)

    def _forget(self, entries: Iterable[Entry]) -> None:
        for it in entries:
            del self.entries[it.id]
            self.forgotten[it.id] = it

    def undone(self, entries: Iterable[Entry]) -> None:
        """Nothing is left of them. On a full disk as :meth:`forget`."""
        entries = list(entries)
        with contextlib.suppress(StorageError):
            self._write({"id": it.id, "undone": True} for it in entries)
        self._drop(it.id for it in entries)

    def _drop(self, ids: Iterable[int]) -> None:
        for number in ids:
            self.entries.pop(number, None)
            self.forgotten.pop(number, None)

    def set_state(self, state: str) -> None:
        self._write([{"state": state}])
        self.state = state

    def note(self, kind: str, **content: Any) -> None:
        """Something to remember across a crash that is not a Step (a fault's times)."""
        self.note_all(kind, [content])

    def note_all(self, kind: str, contents: Iterable[Mapping[str, Any]]) -> None:
        """Several notes in one write."""
        records = [{"note": kind, **content} for content in contents]
        self._write(records)
        self.notes.extend(records)

    def owned(self, owner: str) -> list[Entry]:
        """What stands of ``owner``. Any thread may ask, while the engine's goes on writing."""
        # A copy, made in one piece: looking through the entries themselves fails when one comes or goes meanwhile.
        return [it for it in list(self.entries.values()) if it.owner == owner]

    def forgotten_by(self, owner: str) -> list[Entry]:
        """What ``owner`` has forgotten, and whose keys are still to be given their value."""
        return [it for it in list(self.forgotten.values()) if it.owner == owner]

    def _write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append all of ``records`` or none: half a line would make what follows it unreadable."""
        data = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
        if not data:
            return
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                if self._torn_at is not None:
                    os.ftruncate(self._file, self._torn_at)
            before = os.fstat(self._file).st_size
            try:
                while data:
                    # No fsync: namespaces and processes do not outlive what would lose the page cache.
                    data = data[os.write(self._file, data) :]
            except OSError:
                os.ftruncate(self._file, before)
                raise
        except OSError as error:
            raise StorageError(f"cannot write the journal {self.path}: {error.strerror}") from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
