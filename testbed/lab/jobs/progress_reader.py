"""Read the steps of a launched program, wherever it reports them, while it runs.

Lines of output are handed over by the threads that copy it; files are looked at by one thread, and endpoints by one
thread per node. All of them end up in :class:`ProgressRecords`, one per rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from testbed.core.workload.members import Member
from testbed.core.workload.progress_source import Calls, CsvFile, Endpoint, EventFiles, LinePattern, Progress
from testbed.errors import TestbedError
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs.progress_endpoint import EndpointReader
from testbed.lab.jobs.progress_files import CallFile, EventSource, FileSource, TableFile
from testbed.lab.jobs.progress_output import ProgressOutput, StreamLines
from testbed.lab.jobs.progress_records import ProgressRecords

__all__ = ["Places", "ProgressReader"]

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
        first, _, rest = full.partition("/")
        if first == "$TESTBED_FOLDER":
            return self.of_rank(member), rest
        if first == "$TESTBED_SCRATCH":
            return self.scratch(member), rest
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
        told = self._progress.tokens_per_step
        self._records = {it.rank: ProgressRecords(places.run, it, len(members), told) for it in members}
        lines = self._progress if isinstance(self._progress, LinePattern) else None
        self._outputs = {
            it.rank: ProgressOutput(lines, self._records[it.rank], self._warn_once)
            for it in members
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
        works += [lambda it=it: it.run(self._stop) for it in self._endpoints]  # type: ignore[misc]
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
        errors = [it.error for it in self._records.values() if it.error]
        for records in self._records.values():
            records.close()
        if errors:
            return errors[0]
        if not self._asked or any(it.lines for it in self._records.values()):
            return ""
        troubles = [it.trouble for it in self._sources.values() if it.trouble]
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
        found: dict[int, FileSource] = {}
        known: set[tuple[Path, str]] = set()
        for member in self._members:
            match self._progress:
                case Calls():
                    found[member.rank] = CallFile(self._places.of_rank(member), _CALLS, t)
                case CsvFile(path=path) | EventFiles(path=path):
                    place = self._places.resolve(path, member)
                    if place in known:
                        continue
                    known.add(place)
                    if isinstance(self._progress, CsvFile):
                        found[member.rank] = TableFile(*place, self._progress, t)
                    else:
                        found[member.rank] = EventSource(*place, self._progress, t)
                case _:
                    return {}
        return found

    def _scrapers(self, endpoint: Endpoint) -> Iterable[EndpointReader]:
        by_node: dict[str, list[Member]] = {}
        for member in self._members:
            by_node.setdefault(member.node, []).append(member)
        for node, members in by_node.items():
            yield EndpointReader(self._places.netns(node), members, endpoint, self._take)
