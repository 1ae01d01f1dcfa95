"""Read and write run directories; no other module does. docs/design.md, "Run directory", has their layout.

Whole files are written under a temporary name and renamed, so a reader never sees a partial file. JSON lines are
appended with one ``write`` each, so a crash tears at most the last line, which readers skip. A full disk or an
unwritable folder is a ``StorageError``.

Until a run has ended everything belongs to root, except what each rank writes (:meth:`RunDirectory.admit`): programs
run as the user who called sudo, and must not rewrite what the testbed has measured. Then it is given to that user.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.certification.certificate import Certificate
from testbed.core.fields import number, text
from testbed.core.records.check_record import read_checks
from testbed.core.records.event import read_events
from testbed.core.records.rank_log import RankLog, read_rank
from testbed.core.records.run_info import RunInfo
from testbed.core.records.run_record import RunData
from testbed.core.records.samples import read_metrics
from testbed.core.records.stalls import Stall, read_stalls
from testbed.core.remote.leash_frames import RUN_LIST
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.errors import StorageError, UnknownName
from testbed.host import strategy_packages
from testbed.host.files import beneath
from testbed.host.linux.process import ProcessRecord
from testbed.host.linux.program_user import caller

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = [
    "NEEDED_BYTES",
    "STALLS",
    "RunDirectory",
    "RunState",
    "build_report",
    "check_writable",
    "detached_log",
    "list_runs",
    "read_state",
    "read_summary",
    "save_report",
    "take_log",
    "wait_for_maker",
    "write_report",
    "write_whole",
]

NEEDED_BYTES = 50_000_000
"""Free space that a run requires before its lab is built: an hour of records and metrics, logs, and the report."""

VALIDATION = "validate.json"
"""The result file in a run directory of ``testbed validate``; see :mod:`testbed.host.files.validations`."""

PROCESS = "process.json"
"""Which process makes the run."""

STALLS = "stalls.jsonl"
"""The host's stalls; see :mod:`testbed.core.records.stalls`."""

DETACHED_LOG = "output.log"
"""What the process of ``run`` or ``validate --detach`` shows."""

_RESERVED, _RESERVED_BYTES = tuple(f".reserve-{index}" for index in range(4)), 128 * 1024
"""Files that become run.json where the disk is full, until the run has ended: without them, how it ended would be lost.
They are written in place: space that is freed would go to the process that writes first."""

_RANK_FILE = re.compile(r"rank-(\d{1,6})\.jsonl")
_OUTPUT_FILE = re.compile(r"rank-(\d{1,6})\.log")
_OUTPUT_BYTES = 128 * 1024
_CHECKS_FILE = re.compile(r"rank-(\d{1,6})\.checks\.jsonl")


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def _make_folder(path: Path) -> None:
    """``mkdir -p``; each new level is given to the user who called sudo."""
    beneath.make_path(path, caller())


def write_whole(path: Path, content: str) -> None:
    """Replace ``path`` atomically and durably: after a power failure it is the old or the new file, never a part."""
    # A user's path may lead through links to its folder; a run directory has none (RunDirectory.write_text).
    beneath.replace(path.parent.resolve(), path.name, _encoded(content), caller())


def _list(run: Path) -> None:
    """Tell the client of another host, if there is one, that a run was created (testbed.host.remote.leash)."""
    if run_list := os.environ.get(RUN_LIST):
        with contextlib.suppress(OSError), Path(run_list).open("a") as stream:
            stream.write(f"{run.absolute()}\n")


def _document(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _encoded(content: str) -> bytes:
    return content.encode(errors="replace")


def check_writable(folder: Path, need_bytes: int = NEEDED_BYTES) -> None:
    """Check, before a lab is built, that a run can be stored in ``folder``; create the folder if it is missing.

    Raises:
        StorageError: it cannot be created or written, or has less than ``need_bytes`` bytes free.
    """
    with _translated(folder):
        _make_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
        free = shutil.disk_usage(folder).free
    if free < need_bytes:
        raise StorageError(f"{folder}: {free / 1e6:.0f} MB free, a run needs {need_bytes / 1e6:.0f} MB")


class _Held:
    """An open folder, closed with this object."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self.descriptor)


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk. ``path`` is a folder, not a link: ranks that write into it could have replaced it.

    A new run's folder is kept open, and files are found from there: the folder above may be the user's, whose programs
    could put another one in its place.
    """

    path: Path
    _held: _Held | None = field(default=None, repr=False, compare=False)

    @property
    def _top(self) -> beneath.Folder:
        return self._held.descriptor if self._held is not None else self.path

    @classmethod
    def create(cls, root: Path, name: str) -> RunDirectory:
        """Create ``root/name``, or ``root/name-2``, ``-3``, … if that name is taken, with its ``ranks/``."""
        with _translated(root / name):
            _make_folder(root)
            for count in itertools.count(1):
                path = root / (name if count == 1 else f"{name}-{count}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    break
            run = cls(path, _Held(path))
            beneath.make_folder(run._top, "ranks")
        run.write_json(PROCESS, {**asdict(ProcessRecord.of_this_process()), "ended": ""})
        _list(path)
        return run

    def admit(self, user: tuple[int, int], ranks: int, *, records: bool = True) -> None:
        """Make what each rank writes, and give that, and no more, to its user: files for its records, checks and
        output and a folder for checkpoints, or without ``records`` a folder ``ranks/rank-<r>`` for its own files.

        Raises:
            StorageError: they cannot be made.
        """
        with _translated(self.path):
            beneath.let_through(self._top)
            if records:
                beneath.make_folder(self._top, "ranks/checkpoints")
            for rank in range(ranks):
                if not records:
                    beneath.make_folder(self._top, f"ranks/rank-{rank}", user)
                    continue
                beneath.make_folder(self._top, f"ranks/checkpoints/rank-{rank}", user)
                for name in (f"rank-{rank}.jsonl", f"rank-{rank}.checks.jsonl", f"rank-{rank}.log"):
                    made = beneath.append(self._top, f"ranks/{name}")
                    try:
                        beneath.give(made, user)
                    finally:
                        os.close(made)

    def keep_scratch(self, nodes: Iterable[str], user: tuple[int, int]) -> dict[str, Path]:
        """Make and return the folder ``scratch/<node>`` of each node, which only ``user`` can read and write.

        Raises:
            StorageError: they cannot be made.
        """
        with _translated(self.path):
            beneath.make_folder(self._top, "scratch")
            for node in nodes:
                beneath.make_folder(self._top, f"scratch/{node}", user if os.geteuid() == 0 else None, 0o700)
        return {node: self.path / "scratch" / node for node in nodes}

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an existing run.

        Raises:
            UnknownName: there is no such directory, or it has no file of a run.
        """
        with _translated(path):
            written = ("run.json", VALIDATION, "events.jsonl", "ranks")
            is_run = path.is_dir() and any((path / name).exists() for name in written)
        if not is_run:
            raise UnknownName("run", path.name or str(path), [run.path.name for run in list_runs(path.parent)])
        return cls(path.resolve() if path.is_symlink() else path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def ranks(self) -> Path:
        """Folder of the ranks' records and output."""
        return self.path / "ranks"

    def write_json(self, name: str, value: object) -> None:
        """Replace the file ``name`` by ``value`` as JSON.

        Raises:
            StorageError: it cannot be written.
        """
        self.write_text(name, _document(value))

    def read_json(self, name: str) -> dict[str, object]:
        """Read a file written by :meth:`write_json`.

        Raises:
            StorageError: it is missing, or not a JSON object.
        """
        with _translated(self.path / name):
            try:
                value = json.loads(_bytes(self._top, name))
            except ValueError as error:
                raise StorageError(f"{self.path / name}: expected a JSON object; the file was changed") from error
        if not isinstance(value, dict):
            raise StorageError(f"{self.path / name}: expected a JSON object; the file was changed")
        return value

    def reserve(self) -> None:
        """Reserve space for :meth:`write_reserved`. Raises StorageError."""
        with _translated(self.path):
            for name in _RESERVED:
                handle = beneath.append(self._top, name)
                try:
                    os.posix_fallocate(handle, 0, _RESERVED_BYTES)
                finally:
                    os.close(handle)

    def free_reserve(self) -> None:
        """Free what is left of the reserved space. Never raises."""
        for name in _RESERVED:
            with contextlib.suppress(OSError):
                beneath.remove(self._top, name)

    def write_reserved(self, name: str, value: object) -> None:
        """As :meth:`write_json`; where the disk is full, in space reserved by :meth:`reserve`, each time less.

        Raises:
            StorageError: it cannot be written, and nothing is reserved (any more), or less than it needs.
        """
        content = _encoded(_document(value))
        try:
            with _translated(self.path / name):
                beneath.replace(self._top, name, content)
        except StorageError:
            for reserved in _RESERVED if len(content) <= _RESERVED_BYTES else ():
                with contextlib.suppress(OSError):
                    beneath.replace_by(self._top, reserved, name, content)
                    return
            raise

    def record_end(self, state: str) -> None:
        """Record how a run without run.json ended: finished, interrupted or failed. Raises StorageError."""
        self.write_json(PROCESS, {**self.read_json(PROCESS), "ended": state})

    def write_text(self, name: str, content: str) -> None:
        with _translated(self.path / name):
            beneath.replace(self._top, name, _encoded(content))

    def append(self, name: str, value: object) -> None:
        """Append ``value`` to ``name`` as one JSON line; several processes may append to one file.

        Raises:
            StorageError: it cannot be written.
        """
        line = (json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n").encode()
        with _translated(self.path / name):
            handle = beneath.append(self._top, name)
            try:
                written = os.write(handle, line)
            finally:
                os.close(handle)
        if written < len(line):
            raise StorageError(f"{self.path / name}: No space left on device")

    def open_log(self, rank: int) -> IO[bytes]:
        """Open the output of a rank for appending.

        Raises:
            StorageError: it cannot be written, or is not a regular file.
        """
        return self._opened(f"ranks/rank-{rank}.log")

    def open_records(self, rank: int) -> IO[bytes]:
        """Open the records of a rank, which the testbed writes for it, for appending.

        Raises:
            StorageError: they cannot be written, or are not a regular file.
        """
        return self._opened(f"ranks/rank-{rank}.jsonl")

    def _opened(self, name: str) -> IO[bytes]:
        with _translated(self.path / name):
            return os.fdopen(beneath.append(self._top, name), "ab", buffering=0)

    def offer(self, name: str, content: bytes) -> Path:
        """Write a file for programs to read, as ``name`` (``a/b``) in the run's folder; return its path.

        Raises:
            StorageError: it cannot be written.
        """
        with _translated(self.path / name):
            for level in reversed(PurePosixPath(name).parents[:-1]):
                beneath.make_folder(self._top, str(level))
            beneath.replace(self._top, name, content)
        return self.path / name

    def give_to_caller(self) -> None:
        """Give a run that has ended to the user who called sudo; without sudo, to the owner of its folder, so that it
        takes back what ranks have written."""
        with _translated(self.path):
            beneath.give_all(self._top, caller() or (beneath.owner(self._top) if os.geteuid() == 0 else None))

    def read(self) -> RunData:
        """Read the whole run; tolerates everything that a crash leaves behind: missing, empty and torn files."""
        strategy_packages.register()
        malformed: dict[str, int] = {}
        missing: list[str] = []

        def whole(name: str) -> Mapping[str, object]:
            value, exists = _read_json(self._top, name)
            if not exists:
                missing.append(name)
            elif not isinstance(value, Mapping):
                malformed[name] = 1
            return value if isinstance(value, Mapping) else {}

        def lines(name: str) -> list[object]:
            decoded, bad, exists = _read_lines(self._top, name)
            if not exists:
                missing.append(name)
                return []
            malformed[name] = malformed.get(name, 0) + bad
            return decoded

        def topology_as_run() -> Topology | None:
            fields = whole("topology.json")
            try:
                return topology_from_dict(fields) if fields else None
            except ValueError:
                malformed["topology.json"] = 1
                return None

        with _translated(self.path):
            info = RunInfo.from_dict(whole("run.json"))
            topology = topology_as_run()
            certificate = whole("certificate.json")
            events, bad_events = read_events(lines("events.jsonl"))
            metrics, bad_metrics = read_metrics(lines("metrics.jsonl"))
            watched, stalls = self._stalls(malformed)
            malformed["events.jsonl"] = malformed.get("events.jsonl", 0) + bad_events
            malformed["metrics.jsonl"] = malformed.get("metrics.jsonl", 0) + bad_metrics
            logs = []
            for rank, name in self._files_of_ranks(_RANK_FILE):
                log, bad = read_rank(rank, lines(name))
                malformed[name] = malformed.get(name, 0) + bad
                logs.append(log)
            checks = []
            for rank, name in self._files_of_ranks(_CHECKS_FILE):
                check_log, bad = read_checks(rank, lines(name))
                malformed[name] = malformed.get(name, 0) + bad
                checks.append(check_log)
            # Only to suggest how the steps of a program can be read that reports none.
            programs = "command" in info.workload and not any(log.progress for log in logs)
            output = {rank: self._output(name) for rank, name in self._files_of_ranks(_OUTPUT_FILE) if programs}
        if not logs:
            missing.append("ranks/rank-*.jsonl")
        return RunData(
            info=info,
            topology=topology,
            certificate=Certificate.from_dict(certificate) if certificate else None,
            events=events,
            fibers=metrics.fibers,
            rank_samples=metrics.ranks,
            hosts=metrics.hosts,
            nodes=metrics.nodes,
            stalls=stalls,
            tcp_timeouts=metrics.tcp_timeouts,
            watched=watched,
            ranks=tuple(logs),
            checks=tuple(checks),
            output=output,
            malformed={name: count for name, count in malformed.items() if count},
            missing=tuple(missing),
        )

    def stall_log(self) -> StallLog:
        """Read only the host's stalls so far. Raises StorageError."""
        with _translated(self.path):
            watched, stalls = self._stalls({})
            metrics, _ = read_metrics(_read_lines(self._top, "metrics.jsonl", having=b'"tcp_timeouts"')[0])
        return StallLog(stalls, metrics.tcp_timeouts, watched)

    def _stalls(self, malformed: dict[str, int]) -> tuple[bool, tuple[Stall, ...]]:
        """Read the stall log: (whether there is one, its stalls). A run without it is not incomplete."""
        decoded, bad, exists = _read_lines(self._top, STALLS)
        stalls, bad_lines = read_stalls(decoded)
        malformed[STALLS] = bad + bad_lines
        return exists, stalls

    def rank_logs(self) -> tuple[RankLog, ...]:
        """Read what the ranks have recorded so far, as :meth:`read` does."""
        with _translated(self.path):
            names = self._files_of_ranks(_RANK_FILE)
            return tuple(read_rank(rank, _read_lines(self._top, name)[0])[0] for rank, name in names)

    def _output(self, name: str) -> tuple[str, ...]:
        """Return the last lines of a rank's output, after some of its first ones."""
        with contextlib.suppress(OSError), os.fdopen(beneath.open_file(self._top, name), "rb") as stream:
            head = stream.read(_OUTPUT_BYTES)
            stream.seek(max(len(head), stream.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
            tail = stream.read(_OUTPUT_BYTES)
            written = (head + tail).decode(errors="replace")
            return tuple(re.split(r"[\r\n]+", written))
        return ()

    def _files_of_ranks(self, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
        try:
            names = beneath.names(self._top, "ranks")
        except OSError as error:
            if error.errno not in _NONE:
                raise
            return []
        matches = ((pattern.fullmatch(name), name) for name in names)
        return sorted((int(match[1]), f"ranks/{name}") for match, name in matches if match)


_NONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL})
"""Errors that mean "no such file of a run": it is missing, a link, or not a regular file."""


def _bytes(folder: beneath.Folder, name: str) -> bytes:
    with os.fdopen(beneath.open_file(folder, name), "rb") as stream:
        return stream.read()


def _read_json(folder: beneath.Folder, name: str) -> tuple[object, bool]:
    """Return (value, whether the file exists); the value is None if it is not JSON."""
    try:
        return json.loads(_bytes(folder, name)), True
    except (ValueError, RecursionError):
        return None, True
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return None, False


def _read_lines(folder: beneath.Folder, name: str, having: bytes = b"") -> tuple[list[object], int, bool]:
    """Return (decoded lines, number of lines that are not JSON, whether the file exists), of lines with ``having``.

    A last line torn by a crash counts as neither.
    """
    decoded: list[object] = []
    bad = 0
    try:
        descriptor = beneath.open_file(folder, name)
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return [], 0, False
    with os.fdopen(descriptor, "rb") as stream:
        for line in stream:
            if not line.strip() or having not in line:
                continue
            try:
                decoded.append(json.loads(line))
            except (ValueError, RecursionError):
                bad += line.endswith(b"\n")
    return decoded, bad, True


def list_runs(*roots: Path, begun: bool = False) -> list[RunDirectory]:
    """Return all runs under ``roots``, the latest first; a missing folder has none.

    ``begun``: also those that have only begun, and have no results yet.

    Raises:
        StorageError: they cannot be listed: one of ``roots`` is a file or not readable.
    """
    runs = []
    for root in roots:
        with _translated(root):
            try:
                folders = list(root.iterdir())
            except FileNotFoundError:
                continue
            for folder in folders:
                for name in ("run.json", VALIDATION, *([PROCESS] if begun else ())):
                    with contextlib.suppress(OSError):  # one damaged entry must not hide the others
                        runs.append(((folder / name).stat().st_mtime, folder))
                        break
    return [RunDirectory(path) for _, path in sorted(runs, reverse=True)]


def build_report(run: RunDirectory) -> Report:
    """Build the report from the run directory's current content; writes nothing. Raises StorageError."""
    from testbed.core.report.run_report import build  # takes 0.1 s; a keeper and `up` do not need it

    return build(run.read())


def write_report(run: RunDirectory) -> Report:
    """Build the report from the run directory alone and write report.json, index.html and report.md into it.

    Raises:
        StorageError: the run cannot be read, or the report cannot be written.
    """
    report = build_report(run)
    for name, content in _report_files(report).items():
        run.write_text(name, content)
    if report.run.status != "running":  # until its end it is root's, and ranks write into it
        run.give_to_caller()
    return report


def save_report(report: Report, folder: Path) -> None:
    """Write report.json, index.html and report.md into ``folder``, which is created if missing."""
    save_files(folder, _report_files(report))


def save_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write each file atomically into ``folder``, which is created if missing. Raises StorageError."""
    with _translated(folder):
        _make_folder(folder)
        for name, content in files.items():
            write_whole(folder / name, content)


def save_beneath(root: Path, folder: str, files: Mapping[str, str]) -> None:
    """Write each file atomically into ``folder`` (``a/b``) below ``root``, which exists; missing levels are created.

    No component below ``root`` may be a link: with sudo, programs of earlier runs can write there, and root would
    write where the link leads. Raises StorageError.
    """
    top, owner = root.resolve(), caller()
    with _translated(root / folder):
        for level in reversed((PurePosixPath(folder), *PurePosixPath(folder).parents[:-1])):
            beneath.make_folder(top, str(level), owner)
        for name, content in files.items():
            beneath.replace(top, f"{folder}/{name}", _encoded(content), owner)


def _report_files(report: Report) -> dict[str, str]:
    from testbed.core.report import html_page, run_page
    from testbed.core.report.document import to_json
    from testbed.core.report.markdown import markdown

    page = run_page.page(report)
    return {
        "report.json": _document(to_json(report)),
        "report.md": markdown(page),
        "index.html": html_page.render(page),
    }


def save_text(path: Path, content: str) -> None:
    """Write a file that the user named, atomically. Raises StorageError."""
    with _translated(path):
        write_whole(path, content)


@dataclass(frozen=True)
class RunState:
    """``word`` is running, finished, interrupted, failed, or lost: its process ended before it recorded the end.

    ``pid`` is the process of a running one, and ``since_unix_s`` when the run began, if that is recorded.
    """

    word: str
    pid: int | None
    since_unix_s: float | None


def read_state(run: RunDirectory) -> RunState:
    """Return the state of a run of this host, by its small files and its process. Raises StorageError."""
    with _translated(run.path):
        info, exists = _read_json(run.path, "run.json")
        record, recorded = _read_json(run.path, PROCESS)
        validated = _read_json(run.path, VALIDATION)[1]
    fields = record if isinstance(record, dict) else {}
    since = number(fields, "since_unix_s")
    ended = text(info, "status") if isinstance(info, dict) else text(fields, "ended")
    if ended not in ("", "running"):
        return RunState(ended, None, since)
    if validated and not exists and not recorded:  # of a version that recorded no process
        return RunState("finished", None, since)
    process = ProcessRecord.read(fields)
    if process is not None and process.is_there():
        return RunState("running", process.pid, since)
    return RunState("lost", None, since)


def detached_log(run: RunDirectory) -> Path | None:
    """Return the file that has what the process of a detached run shows; None for any other run."""
    path = run.path / DETACHED_LOG
    return path if os.path.isfile(path) else None  # noqa: PTH113 (Path.is_file raises where it may not look)


def take_log(run: RunDirectory, log: Path) -> Path:
    """Move the log of a detached run, which is beside the run, into it; return where it is. Raises StorageError."""
    with _translated(run.path / DETACHED_LOG):
        beneath.move(log.parent.resolve(), log.name, run._top, DETACHED_LOG)
    return run.path / DETACHED_LOG


def wait_for_maker(run: RunDirectory, bound_s: float) -> bool:
    """Wait until the process of a detached run, which shows its result last, has ended; False after ``bound_s``."""
    record, _ = _read_json(run.path, PROCESS)
    process = ProcessRecord.read(record) if isinstance(record, dict) else None
    return process is None or process.wait_gone(bound_s)


def read_summary(run: RunDirectory) -> tuple[tuple[float, str], str]:
    """Return ((start in unix seconds, topology's name), verdict) of a run, from its small files only."""
    validation, exists = _read_json(run.path, VALIDATION)
    if exists:
        read = validation if isinstance(validation, dict) else {}
        return (number(read, "started_unix_s") or 0.0, text(read, "topology", "?")), text(read, "verdict", "unknown")
    info, _ = _read_json(run.path, "run.json")
    topology, _ = _read_json(run.path, "topology.json")
    report, exists = _read_json(run.path, "report.json")
    started = number(info, "started_unix_s") if isinstance(info, dict) else None
    name = text(topology, "name", "?") if isinstance(topology, dict) else "?"
    verdict = text(report, "verdict", "unknown") if isinstance(report, dict) else "unknown" if exists else "no report"
    return (started or 0.0, name), verdict
