"""Run functions and programs on all ranks of a lab; collect results and failures."""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.errors import UserError
from testbed.host import lab_nodes
from testbed.host.files.store import RunDirectory
from testbed.keeper import client
from testbed.lab.lab import Lab
from testbed.pytest_plugin import worker
from testbed.pytest_plugin.failures import RankFailure, RanksFailed

__all__ = ["RankJob", "Ranks"]

WITHIN_S: Final = 60.0
PATIENCE_S: Final = 10.0
"""Grace period after a job's timeout, at which ranks print their stacks and exit by themselves."""

SHOWN_LINES: Final = 30
"""Lines of output shown for a rank without a traceback."""


class Ranks:
    """Runs functions and programs once per rank, on the rank's node, with torchrun's environment; one job at a time."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        """``folder`` receives run directories, arguments and results."""
        self._lab, self._folder = lab, folder
        self._job: RankJob | None = None
        self._count = 0

    def __len__(self) -> int:
        return len(self._lab.topology.node_names)

    def __call__(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Call ``function(*arguments)`` on each rank; return the results, in rank order. Keywords as in :meth:`start`.

        Raises:
            RanksFailed: a rank raised, exited or took too long.
            UserError: another process cannot import the function, or an argument cannot be pickled.
        """
        __tracebackhide__ = True
        return self.start(function, *arguments, **keywords).results()

    def start(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        within_s: float = WITHIN_S,
        environment: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> RankJob:
        """Like a call, but return as soon as every rank is about to call the function; the test continues meanwhile.

        All keywords except ``within_s`` and ``environment`` (added to torchrun's) are passed to the function. A rank
        that has not returned after ``within_s`` seconds prints its stack and is ended.
        """
        __tracebackhide__ = True
        folder = self._next_folder()
        module = _write_call(folder, function, arguments, keywords, within_s)
        if module is not None and lab_nodes.driver(self._lab._folder).contained:
            self._show(module.parent)
        argv = [_python(self._lab), str(folder / "worker.py"), str(folder)]
        job = self._begin(RankJob(self._lab, argv, folder, within_s, environment or {}, returns=True))
        job._wait_until_ready()
        return job

    def program(
        self, *argv: str | Path, within_s: float = WITHIN_S, environment: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Run a program on each rank; return what each printed, in order. A path that ends with ``.py`` is run by the
        nodes' Python. Raises RanksFailed."""
        __tracebackhide__ = True
        return self.start_program(*argv, within_s=within_s, environment=environment).results()

    def start_program(
        self, *argv: str | Path, within_s: float = WITHIN_S, environment: Mapping[str, str] | None = None
    ) -> RankJob:
        """Like :meth:`program`, but return at once."""
        if not argv:
            raise UserError("missing program to run; write: ranks.program('train.py', '--steps', '10')")
        command = [os.fspath(argument) for argument in argv]
        if command[0].endswith(".py"):
            command = [_python(self._lab), *command]
        folder = self._next_folder()
        return self._begin(RankJob(self._lab, command, folder, within_s, environment or {}, returns=False))

    def _begin(self, job: RankJob) -> RankJob:
        self._job = job
        job._begin()
        return job

    def _next_folder(self) -> Path:
        __tracebackhide__ = True
        if self._job is not None and self._job.running:
            raise UserError("the ranks are still running a job; get its results() before starting another")
        self._count += 1
        folder = self._folder / f"ranks-{self._count}"
        folder.mkdir()
        if lab_nodes.driver(self._lab._folder).contained:
            folder.chmod(0o777)  # ranks are not root in containers; pytest's folder above keeps other users out
            self._show(folder)
        return folder

    def _show(self, folder: Path) -> None:
        """Make a folder visible inside containers, at the same path; without containers it already is."""
        client.keeper(self._lab._folder).share_folder(folder=str(folder))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._job is not None:
            self._job.end()


@dataclass
class RankJob:
    """A job on all ranks. As a context manager it is ended on exit, unless it has already ended."""

    lab: Lab
    argv: Sequence[str]
    folder: Path
    within_s: float
    environment: Mapping[str, str]
    returns: bool
    run: RunDirectory | None = None
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _news: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _lines: list[str] = field(default_factory=list, repr=False)
    _broken: BaseException | None = field(default=None, repr=False)
    _late: bool = field(default=False, repr=False)
    _until: float = field(default=0.0, repr=False)
    _shown: int = field(default=0, repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def output(self) -> tuple[str, ...]:
        """Lines of all ranks so far, each prefixed with its rank: ``[rank 2] step 10``."""
        with self._news:
            return tuple(self._lines)

    def wait_for(self, text: str, timeout_s: float = 30.0, *, of_all: bool = False) -> None:
        """Wait until a rank (``of_all``: each rank) has printed a line that contains ``text``.

        Raises:
            RanksFailed: the ranks ended first.
            TimeoutError: no such line within ``timeout_s`` seconds.
        """
        __tracebackhide__ = True
        wanted = len(self.lab.topology.node_names) if of_all else 1

        def seen() -> bool:
            return len({line.partition("]")[0] for line in self._lines if text in line.partition("] ")[2]}) >= wanted

        with self._news:
            until = time.monotonic() + timeout_s
            while not seen() and self.running and time.monotonic() < until:
                self._news.wait(0.05)
            if seen():
                return
        if not self.running:
            self.results()
            raise RanksFailed(f"all ranks returned, and {'not all' if of_all else 'none'} printed {text!r}", {}, {})
        raise TimeoutError(f"no line with {text!r} within {timeout_s:g} s; last: {' | '.join(self._lines[-3:])}")

    def results(self) -> tuple[Any, ...]:
        """Wait for the end; return what each rank returned (for a program: printed), in order.

        Raises:
            RanksFailed: a rank raised, exited or took too long.
        """
        __tracebackhide__ = True
        self._wait()
        if self._broken is not None:
            raise self._broken
        statuses = self._statuses()
        results: dict[int, Any] = {}
        failures: list[tuple[float, RankFailure]] = []
        for rank, node in enumerate(self.lab.topology.node_names):
            status = statuses[rank] if rank < len(statuses) else None
            result, at = self._found(rank)
            if status == 0 and (not self.returns or "value" in result):
                results[rank] = pickle.loads(result["value"]) if self.returns else self._printed(rank)
            else:
                failures.append((at, self._failure(rank, node, status, result)))
        if failures:
            failures.sort(key=lambda failure: failure[0])
            by_rank = {failure.rank: failure for _, failure in failures}
            raise RanksFailed(self._message(by_rank), by_rank, results)
        return tuple(results[rank] for rank in sorted(results))

    def end(self) -> None:
        """End all running ranks; return when they are gone."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> RankJob:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    # ---- how it is run

    def _begin(self) -> None:
        self._until = time.monotonic() + self.within_s + PATIENCE_S
        self._thread = threading.Thread(target=self._launch, name="ranks", daemon=True)
        self._thread.start()

    def _launch(self) -> None:
        try:
            job = self.lab.launch(
                self.argv,
                environment=self.environment,
                directory=self.folder,
                echo=self._hear,
                # As pytest is, which runs the same code: its temporary folders are root's alone, and it unpickles what
                # ranks return.
                as_root=not lab_nodes.driver(self.lab._folder).contained,
                read_only=True,  # their folder is another one
            )
            while not job.over():
                if self._stop.wait(0.02):
                    job.stop()
            job.exit_status()
        except BaseException as error:  # raised again in the thread of the test
            self._broken = error
        self.run = self.lab.run_directory
        with self._news:
            self._news.notify_all()

    def _hear(self, line: str) -> None:
        with self._news:
            self._lines.append(line)
            self._news.notify_all()

    def _wait(self) -> None:
        """Wait for the end in short steps, between which Ctrl-C is handled."""
        assert self._thread is not None
        while self._thread.is_alive():
            self._thread.join(0.02)
            if time.monotonic() > self._until and not self._stop.is_set():
                self._late = True
                self._stop.set()
        for line in self._lines[self._shown :]:
            print(line)  # pytest shows it with a test that fails
        self._shown = len(self._lines)

    def _wait_until_ready(self) -> None:
        count = len(self.lab.topology.node_names)
        while self.running and not all((self.folder / f"ready-{rank}").exists() for rank in range(count)):
            if time.monotonic() > self._until:
                return  # results() reports the failure
            time.sleep(0.01)

    # ---- what came of it

    def _statuses(self) -> list[int | None]:
        if self.run is None:
            return []
        workload = self.run.read_json("run.json").get("workload")
        statuses = workload.get("statuses") if isinstance(workload, dict) else None
        return statuses if isinstance(statuses, list) else []

    def _found(self, rank: int) -> tuple[dict[str, Any], float]:
        """Return what the rank wrote, and when."""
        path = self.folder / f"result-{rank}"
        try:
            return pickle.loads(path.read_bytes()), path.stat().st_mtime
        except FileNotFoundError:
            return {}, float("inf")

    def _printed(self, rank: int) -> str:
        prefix = f"[rank {rank}] "
        return "\n".join(line.removeprefix(prefix) for line in self._lines if line.startswith(prefix))

    def _failure(self, rank: int, node: str, status: int | None, result: Mapping[str, Any]) -> RankFailure:
        if "traceback" in result:
            error = pickle.loads(result["error"]) if result["error"] else None
            return RankFailure(rank, node, status, result["summary"], result["traceback"], error)
        printed = self._printed(rank)
        stacks = printed.rfind("Timeout (")  # faulthandler's first word
        hung = status == 1 and stacks >= 0
        last = "\n".join(printed[stacks:].splitlines() if hung else printed.splitlines()[-SHOWN_LINES:])
        how = "was ended because it took too long" if self._late else "was ended because others had failed"
        if status is not None:
            how = f"ended with status {status}" + (f" (signal {status - 128})" if status > 128 else "")
            how = f"took longer than {self.within_s:g} s" if hung else how
            how += " after its function had returned" if "value" in result else ""
        elif self._stop.is_set() and not self._late:
            how = "was ended by the test"
        return RankFailure(rank, node, status, how, last)

    def _message(self, failures: Mapping[int, RankFailure]) -> str:
        """Describe the failures: equal ones once, and ranks that were ended because others failed last."""
        own = [failure for failure in failures.values() if failure.status is not None or self._stop.is_set()]
        first = own[0] if own else next(iter(failures.values()))
        head = f"{len(own)} of {len(self.lab.topology.node_names)} ranks failed"
        parts = [f"{head}, first rank {first.rank} on {first.node}: {first.summary}"]
        by: dict[str, list[RankFailure]] = {}
        for failure in failures.values():
            by.setdefault(failure.summary, []).append(failure)
        for summary, alike in by.items():
            where = ", ".join(f"rank {failure.rank} on {failure.node}" for failure in alike)
            parts.append(f"{where}: {summary}")
            if alike[0].text:
                parts.append("\n".join(f"    {line}" for line in alike[0].text.rstrip().splitlines()))
        output = self.run.ranks if self.run is not None else self.folder
        parts.append(f"lab {self.lab.name}; output of the ranks: {output}")
        return "\n".join(parts)


def _python(lab: Lab) -> str:
    """Return the Python of the nodes: this interpreter, or in containers that of their image."""
    return lab_nodes.driver(lab._folder).python


def _write_call(
    folder: Path, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], within_s: float
) -> Path | None:
    """Write what the ranks need into ``folder``; return the file of the function's module."""
    __tracebackhide__ = True
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    module, name = getattr(inner, "__module__", None), getattr(inner, "__qualname__", "")
    if not module or "<" in name:
        raise UserError(
            f"ranks can only run a function that other processes can import, got {name or inner!r}; define it at the"
            " top level of the test's file, and pass what it needs as arguments"
        )
    try:
        data = pickle.dumps((function, tuple(arguments), dict(keywords)), protocol=4)
    except Exception as error:
        raise UserError(f"{name} and its arguments cannot be sent to the ranks: {error}") from error
    file = getattr(sys.modules.get(module), "__file__", None)
    call = {
        "module": module,
        "file": file,
        "path": [str(Path(folder).absolute()) if folder else str(Path.cwd()) for folder in sys.path],
        "python": list(sys.version_info[:2]),
        "within_s": within_s,
    }
    (folder / "call.json").write_text(json.dumps(call))
    (folder / "arguments.pickle").write_bytes(data)
    shutil.copyfile(worker.__file__, folder / "worker.py")
    return Path(file) if file is not None else None
