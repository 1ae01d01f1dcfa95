"""The holder of a detached job: a process of the user's own that does what the command would do in the foreground.

:func:`start` starts it and returns once the job has begun. It survives the terminal and the command. It records,
measures, restarts and reports like them, and ends with its job: by itself, by `stop`, or by `down`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.core.report.answers import EXIT_CODES
from testbed.errors import Interrupted, LabError, StorageError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation
from testbed.host.remote.command_folder import CommandFolder
from testbed.keeper import protocol
from testbed.lab.jobs.job_claim import JobClaim
from testbed.lab.jobs.running_job import RunningJob
from testbed.lab.lab import Lab

__all__ = ["Started", "conclude", "ignore_signals_but_sigterm", "main", "start"]

START_BOUND_S: Final = 120.0
"""How long a job may take to begin: fresh ranks import torch on a busy machine."""

LOOK_S: Final = 0.1


@dataclass(frozen=True)
class Started:
    """A detached job that has begun."""

    job: str
    run: Path
    notes: tuple[str, ...] = ()
    """What is worth knowing before a program begins (``note`` of Lab.launch)."""


def start(
    lab: LabFolder,
    kind: str,
    arguments: Mapping[str, Any],
    *,
    strict: bool = False,
    allow_uncertified: bool = False,
) -> Started:
    """Start a job in a process of its own: ``train`` or ``launch`` of :class:`~testbed.lab.lab.Lab` with ``arguments``.

    Programs get this process's environment and working directory. ``runs`` among the arguments is the parent of the run
    directory. Raises what the method raises, LabError if the process does not begin in time.
    """
    request = {
        "lab": str(lab.path),
        "kind": kind,
        "folder": str(Path.cwd()),
        "arguments": dict(arguments),
        "strict": strict,
        "allow_uncertified": allow_uncertified,
    }
    try:
        with lab.jobs_log.open("ab") as log:
            # In the folder /, or Python would look for modules in the caller's working directory, as root.
            child = subprocess.Popen(
                [sys.executable, "-m", "testbed.lab.job_runner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env=invocation.for_child(),
            )
    except FileNotFoundError as error:
        raise lab.gone() from error
    except OSError as error:
        raise StorageError(f"cannot write {lab.jobs_log}: {error.strerror}") from error
    try:
        message = _answer(child, json.dumps(request).encode())
    except BaseException:
        child.terminate()  # it ends its job in order
        raise
    if "error" in message:
        protocol.decode_answer(message)
    return Started(message["job"], Path(message["run"]), tuple(message["notes"]))


def _answer(child: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:
        child.stdin.write(request)
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN)
    with child.stdout:
        if not poll.poll(START_BOUND_S * 1e3):
            raise LabError(f"the process of the job did not begin within {START_BOUND_S:g} s")
        line = child.stdout.readline()
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise LabError(f"the process of the job ended before the job began, status {child.wait()}") from error
    return answer


def main() -> int:
    """``python -m testbed.lab.job_runner``: the request is JSON on stdin, the answer one line of JSON on stdout."""
    request = json.loads(sys.stdin.buffer.read())
    stop = ignore_signals_but_sigterm()
    invocation.take_client_words()
    sent = CommandFolder.of_this_process()  # before the answer, after which the leash leaves it
    try:
        os.chdir(request["folder"])
        lab = Lab(LabFolder(Path(request["lab"])))
        lab.strict, lab.allow_uncertified = request["strict"], request["allow_uncertified"]
        arguments = dict(request["arguments"])
        with lab.claimed(request["kind"], arguments.pop("what"), detached=True) as claim:
            notes: list[str] = []
            job = _begin(lab, request["kind"], arguments, notes)
            assert lab.run_directory is not None
            _say({"job": claim.id, "run": str(lab.run_directory.path), "notes": notes})
            _follow(job, claim, stop)
            conclude(lab, job, claim)
    except (TestbedError, OSError) as error:
        _say(protocol.refused(error if isinstance(error, TestbedError) else LabError(str(error))))
        print(f"{time.strftime('%H:%M:%S')} job: {error}", file=sys.stderr, flush=True)
        return 3
    finally:
        if sent is not None:
            sent.leave()
    return 0


def ignore_signals_but_sigterm() -> threading.Event:
    """Have this process go on after other signals; return the event that SIGTERM sets.

    SIGINT and SIGHUP have a handler that does nothing: a signal that is ignored would be ignored by the job's programs
    too (execve(2)), and no Ctrl-C of theirs, or trap of a shell, would work. Python has SIGPIPE ignored, and restores
    it for programs.
    """
    stop = threading.Event()
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop


def _begin(lab: Lab, kind: str, arguments: dict[str, Any], notes: list[str]) -> RunningJob:
    runs = Path(folder) if (folder := arguments.pop("runs", None)) else None
    if kind == "launch":
        return lab.launch(arguments.pop("argv"), directory=runs, note=notes.append, **arguments)
    if runs is not None:
        lab.open_run(runs)
    return lab.train(**arguments)


_said = False


def _say(answer: Mapping[str, Any]) -> None:
    """Answer the process that waits for the job's beginning, once; nothing that comes later is read."""
    global _said
    if not _said:
        _said = True
        with contextlib.suppress(OSError):
            os.write(1, json.dumps(answer).encode() + b"\n")
        silent = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(silent, number)
        os.close(silent)


def _follow(job: RunningJob, claim: JobClaim, stop: threading.Event) -> None:
    """Return when the job is over. SIGTERM, and the end of the keeper, end it."""
    asked = False
    while not job.over():
        if not asked and (stop.is_set() or claim.lost.is_set()):
            asked = True
            claim.stop_why = claim.stop_why or ("SIGTERM" if stop.is_set() else "the lab's keeper has ended")
            with contextlib.suppress(TestbedError):
                job.stop_because(claim.stop_why)
        time.sleep(LOOK_S)


def conclude(lab: Lab, job: RunningJob, claim: JobClaim) -> None:
    """Write the report, and give the slot back with the status that the command would have had."""
    state, why, status = claim.outcome_of(job)
    try:
        verdict = lab.report().verdict
        if job.status_by_report and status != Interrupted.exit_code:
            status = EXIT_CODES[verdict]
    except TestbedError as error:
        state, why, status = ("failed", str(error), error.exit_code) if state == "finished" else (state, why, status)
    claim.release(state, why, status)


if __name__ == "__main__":
    sys.exit(main())
