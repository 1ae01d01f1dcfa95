"""Read the steps of a launched program, wherever it reports them, while it runs.

Lines of output are handed over by the threads that copy it; files are looked at by one thread, and endpoints by one
thread per node. All of them end up in :class:`ProgressRecords`, one per rank.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from testbed.core.workload.members import Member
from testbed.core.workload.progress_call_lines import CallReader
from testbed.core.workload.progress_csv import CsvReader
from testbed.core.workload.progress_source import Calls, CsvFile, Endpoint, EventFiles, LinePattern, Progress
from testbed.errors import TestbedError
from testbed.host.files.store import RunDirectory
from testbed.host.linux import namespace
from testbed.host.metrics.scrape import scrape_all
from testbed.host.progress.event_folder import EventFolder
from testbed.host.progress.file_tail import LAST_BOUND_S, FileTail, monotonic
from testbed.lab.jobs.progress_output import ProgressOutput, ProgressRecords, Reading, StreamLines

__all__ = ["CallFile", "EventSource", "FileSource", "Places", "ProgressReader", "TableFile", "numbers"]


class FileSource(Protocol):
    """A file, or a folder of files, that one rank's steps are read from."""

    def read(self, *, last: bool) -> Iterator[Reading]:
        """Yield what is new; ``last``: nothing will come any more."""

    @property
    def trouble(self) -> str:
        """Why nothing can be read of it; empty as long as it can."""


class TableFile:
    """A CSV file; what it has before the job is skipped. ``began_t``: no line can be from before."""

    def __init__(self, folder: Path, name: str, file: CsvFile, began_t: float) -> None:
        self._file, self._name, self._began_t = file, name, began_t
        self._tail = FileTail(folder, name, skip=True)
        self._reader = CsvReader(file)
        self._reader.begin(self._tail.head)
        self._exists = False

    @property
    def trouble(self) -> str:
        if not self._exists:
            return f"{self._name}: no such file, or it is not a regular file"
        return f"{self._name}: no column {self._reader.missing!r}" if self._reader.missing else ""

    def read(self, *, last: bool) -> Iterator[Reading]:
        until_t = time.monotonic() + LAST_BOUND_S
        while (grown := self._tail.read()) is not None:
            self._exists = True
            if grown.anew:
                self._reader = CsvReader(self._file)
            for unix_s, values in self._reader.read(grown.data):
                t = grown.t if unix_s is None else monotonic(unix_s)
                yield max(self._began_t, min(t, time.monotonic())), values
            if not grown.has_unread or not last or time.monotonic() >= until_t:
                return


class EventSource:
    """TensorBoard's files below a folder."""

    def __init__(self, folder: Path, name: str, events: EventFiles, began_t: float) -> None:
        self._name, self._folder = name, EventFolder(folder, name, events, began_t)
        self._found = False

    @property
    def trouble(self) -> str:
        tags = "" if self._found else f"{self._name}: no event file with a scalar that was asked for"
        return self._folder.damage or tags

    def read(self, *, last: bool) -> Iterator[Reading]:
        for reading in self._folder.read(last=last):
            self._found = True
            yield reading


class CallFile:
    """What calls of ``testbed_agents.step`` wrote, in the rank's own folder."""

    trouble = ""

    def __init__(self, folder: Path, name: str, began_t: float) -> None:
        self._tail, self._reader, self._began_t = FileTail(folder, name), CallReader(), began_t

    def read(self, *, last: bool) -> Iterator[Reading]:
        until_t = time.monotonic() + LAST_BOUND_S
        while (grown := self._tail.read()) is not None:
            if grown.anew:
                self._reader = CallReader()
            for t, values in self._reader.read(grown.data):
                yield max(self._began_t, min(grown.t if t is None else t, time.monotonic())), values
            if not grown.has_unread or not last or time.monotonic() >= until_t:
                return


INTERVAL_S: Final = 0.25
BOUND_S: Final = 0.2
"""How long an endpoint may take to answer: less than the interval, so that each scrape ends before the next one."""

_LOOPBACK: Final = "127.0.0.1"


def numbers(endpoint: Endpoint, values: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers by field of one scrape, by ``name`` or ``name{label="value"}``.

    A name alone stands for its only series; where it has several, it is left out. So is what is no finite number, as a
    gauge that was never set may be.
    """
    by_field: dict[str, float] = {}
    for field, name in endpoint.sources.by_field().items():
        series = [name] if name in values else [labelled for labelled in values if labelled.partition("{")[0] == name]
        if len(series) == 1 and math.isfinite(values[series[0]]):
            by_field[field] = values[series[0]]
    return by_field


class EndpointReader:
    """Scrapes the ranks of one node every :data:`INTERVAL_S`. :attr:`answered`: whether one ever had its step."""

    def __init__(
        self,
        netns: Path,
        members: Sequence[Member],
        endpoint: Endpoint,
        take: Callable[[int, float, Mapping[str, float]], None],
    ) -> None:
        self._netns, self._endpoint, self._take = netns, endpoint, take
        self._targets = {member.rank: (_LOOPBACK, endpoint.port + member.local_rank) for member in members}
        self._names = frozenset(name.partition("{")[0] for name in endpoint.sources.by_field().values())
        self.answered = False

    def run(self, stop: threading.Event) -> None:
        """The calling thread enters the node's network namespace for good. Raises HostError."""
        namespace.enter(self._netns)
        due_t = time.monotonic()
        while not stop.is_set():
            for rank, scraped in scrape_all(self._targets, BOUND_S, self._names).items():
                values = numbers(self._endpoint, scraped.values)
                if "step" in values:
                    self.answered = True
                    self._take(rank, scraped.t, values)
            due_t = max(due_t + INTERVAL_S, time.monotonic())
            stop.wait(due_t - time.monotonic())


LOOK_S: Final = 0.1
"""How often files are looked at; what they say has times of its own, or the time at which the file was written."""
STOP_BOUND_S: Final = 5.0

_CALLS: Final = "testbed-progress.jsonl"


class Places:
    """Where ranks find and leave things: ``folder`` is the programs' working directory."""

    def __init__(
        self, folder: Path, run: RunDirectory, scratch: Callable[[Member], Path], netns: Callable[[str], Path]
    ) -> None:
        self.folder, self.run, self.scratch, self.netns = folder, run, scratch, netns

    def of_rank(self, member: Member) -> Path:
        return self.run.ranks / f"rank-{member.rank}"

    def resolve(self, path: str, member: Member) -> tuple[Path, str]:
        """Return (folder that exists, path below it) of a path as users write it for ``progress:``."""
        named = {"rank": member.rank, "local_rank": member.local_rank, "node": member.node, "site": member.site}
        full = path.format_map(named)
        first, _, below = full.partition("/")
        if first == "$TESTBED_FOLDER":
            return self.of_rank(member), below
        if first == "$TESTBED_SCRATCH":
            return self.scratch(member), below
        return self.folder, full


class ProgressReader:
    """Reads ``progress`` of all ``members``; None: calls of ``testbed_agents.step``, if the program makes any.

    ``warn`` receives a sentence when nothing more, or nothing at all, can be read.
    """

    def __init__(
        self, progress: Progress | None, members: Sequence[Member], places: Places, warn: Callable[[str], None]
    ) -> None:
        self._asked = progress is not None
        self._progress: Progress = Calls() if progress is None else progress
        self._members, self._places, self._warn = members, places, warn
        tokens_per_step = self._progress.tokens_per_step
        self._records = {
            member.rank: ProgressRecords(places.run, member, len(members), tokens_per_step) for member in members
        }
        lines = self._progress if isinstance(self._progress, LinePattern) else None
        self._outputs = {
            member.rank: ProgressOutput(lines, self._records[member.rank], self._warn_once)
            for member in members
            if lines is not None
        }
        self._sources: dict[int, FileSource] = {}
        self._endpoints: list[EndpointReader] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._warned = threading.Lock()

    # ---- before the ranks begin

    def variables(self, member: Member) -> dict[str, str]:
        """Return what the program's environment needs, so that it reports its steps."""
        if isinstance(self._progress, Calls):
            return {"TESTBED_PROGRESS": str(self._places.of_rank(member) / _CALLS)}
        return dict(self._progress.environment) if isinstance(self._progress, LinePattern) else {}

    def begin(self, t: float) -> None:
        """Begin to read; call it before the first rank begins, at ``t``."""
        for records in self._records.values():
            records.began_t = t
        self._sources = self._files(t)
        if isinstance(self._progress, Endpoint):
            self._endpoints = list(self._scrapers(self._progress))
        works: list[Callable[[], None]] = [self._look] if self._sources else []
        works += [lambda endpoint=endpoint: endpoint.run(self._stop) for endpoint in self._endpoints]  # type: ignore[misc]
        for work in works:
            thread = threading.Thread(target=self._guarded, args=(work,), name="progress", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stream(self, rank: int) -> StreamLines | None:
        """Return what the reader of a stream of a rank hands its bytes to; None: its output says nothing."""
        output = self._outputs.get(rank)
        return None if output is None else output.stream()

    # ---- after they have ended

    def end(self) -> str:
        """Read what is left and close the records; return why nothing could be read, empty if something was or nothing
        was asked for."""
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_BOUND_S)
        errors = [record.error for record in self._records.values() if record.error]
        for records in self._records.values():
            records.close()
        if errors:
            return errors[0]
        if not self._asked or any(record.lines for record in self._records.values()):
            return ""
        troubles = [source.trouble for source in self._sources.values() if source.trouble]
        if troubles:
            return f"no step was read: {troubles[0]}"
        if isinstance(self._progress, LinePattern):
            what = f"the preset {self._progress.preset}" if self._progress.preset else "the pattern of progress"
            return f"no step was read: no line of the output matched {what}"
        if isinstance(self._progress, Endpoint):
            step = self._progress.sources.step
            return f"no step was read: no rank answered on port {self._progress.port} with a metric {step}"
        if isinstance(self._progress, CsvFile | EventFiles):
            return f"no step was read: {self._progress.path} has none"
        return "no step was read: the program did not call testbed_agents.step"

    # ---- the threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (TestbedError, OSError) as error:
            self._warn_once(f"the program's steps cannot be read any more: {error}")

    def _warn_once(self, text: str) -> None:
        if self._warned.acquire(blocking=False):
            self._warn(text)

    def _look(self) -> None:
        while True:
            last = self._stop.wait(LOOK_S)
            for rank, source in self._sources.items():
                self._records[rank].take(source.read(last=last))
            if last:
                return

    def _take(self, rank: int, t: float, values: Mapping[str, float]) -> None:
        self._records[rank].take([(t, values)])

    def _files(self, t: float) -> dict[int, FileSource]:
        """Return the files to read, by the rank that their steps count as: of a shared one, the first that has it."""
        sources: dict[int, FileSource] = {}
        places: set[tuple[Path, str]] = set()
        for member in self._members:
            match self._progress:
                case Calls():
                    sources[member.rank] = CallFile(self._places.of_rank(member), _CALLS, t)
                case CsvFile(path=path) | EventFiles(path=path):
                    place = self._places.resolve(path, member)
                    if place in places:
                        continue
                    places.add(place)
                    if isinstance(self._progress, CsvFile):
                        sources[member.rank] = TableFile(*place, self._progress, t)
                    else:
                        sources[member.rank] = EventSource(*place, self._progress, t)
                case _:
                    return {}
        return sources

    def _scrapers(self, endpoint: Endpoint) -> Iterable[EndpointReader]:
        by_node: dict[str, list[Member]] = {}
        for member in self._members:
            by_node.setdefault(member.node, []).append(member)
        for node, members in by_node.items():
            yield EndpointReader(self._places.netns(node), members, endpoint, self._take)
