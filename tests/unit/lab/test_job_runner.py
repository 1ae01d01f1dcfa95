"""The process of a detached job: the signals that it heeds, and the exit status that it records."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders.tables import table

from testbed.errors import JobFailed, StorageError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.lab import job_runner
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.job_claim import JobClaim
from testbed.lab.jobs.program_job import ProgramJob

SCRIPT = """
import json, os, signal, subprocess, sys
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.lab import job_runner
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.job_claim import JobClaim
stop = job_runner.ignore_signals_but_sigterm()
for number in (signal.SIGHUP, signal.SIGINT):
    os.kill(os.getpid(), number)
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True)
before = stop.is_set()
os.kill(os.getpid(), signal.SIGTERM)
print(json.dumps({"status": child.stdout, "before": before, "after": stop.is_set()}))
"""


def test_runner_goes_on_after_sigint_and_sighup_which_its_programs_do_not_ignore() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["before"], result["after"]) == (False, True)
    (ignored,) = [int(line.split()[1], 16) for line in result["status"].splitlines() if line.startswith("SigIgn:")]
    inherited = [number for number in (signal.SIGHUP, signal.SIGINT) if ignored >> (number - 1) & 1]
    assert not inherited, "proc(5): signal n is bit n - 1"


class Program(ProgramJob):
    """A launched program that has ended with a status."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def failure(self) -> str:
        return f"exit status {self.status}" if self.status else ""

    def failed(self) -> JobFailed:
        return JobFailed(self.failure())

    @property
    def worst_status(self) -> int:
        return self.status


class Agents(Job):
    """A job of the testbed's agents that is over."""

    def __init__(self, why: str = "", was_stopped: bool = False) -> None:
        self.why, self.was_stopped = why, was_stopped

    def failure(self) -> str:
        return self.why

    def failed(self) -> JobFailed:
        return JobFailed(self.why)

    @property
    def stopped(self) -> bool:
        return self.was_stopped


STOPPED = "stopped by the process that ran it"


@table(
    "job, stop_why, report, released",
    {
        "pass is 0": (Agents(), "", "pass", ("finished", "", 0)),
        "fail is 1": (Agents(), "", "fail", ("finished", "", 1)),
        "unknown is 3": (Agents(), "", "unknown", ("finished", "", 3)),
        "a failed job has the status of its verdict": (Agents("rank 2"), "", "unknown", ("failed", "rank 2", 3)),
        "a stopped job is 130 whatever its verdict": (Agents(), "by user", "pass", ("stopped", "by user", 130)),
        "a job that its process stopped is 130": (Agents(was_stopped=True), "", "fail", ("stopped", STOPPED, 130)),
        "a program has its own status": (Program(), "", "fail", ("finished", "", 0)),
        "a program that failed has its own status": (Program(7), "", "pass", ("failed", "exit status 7", 7)),
        "a program that was stopped is 130": (Program(7), "by user", "pass", ("stopped", "by user", 130)),
        "a report that cannot be written fails": (Agents(), "", StorageError("full"), ("failed", "full", 3)),
        "a program's report that cannot be written fails": (
            Program(),
            "",
            StorageError("full"),
            ("failed", "full", 3),
        ),
        "a job that failed keeps its reason without a report": (
            Agents("rank 2"),
            "",
            StorageError("full"),
            ("failed", "rank 2", 1),
        ),
    },
)
def test_conclude_releases_the_slot_with_the_status_of_the_command(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    job: Any,
    stop_why: str,
    report: Any,
    released: tuple[object, ...],
) -> None:
    calls: list[tuple[object, ...]] = []

    def make_report() -> Any:
        if isinstance(report, Exception):
            raise report
        return SimpleNamespace(verdict=report)

    monkeypatch.setattr(
        client, "Connection", lambda lab: SimpleNamespace(pushed=list, updates=lambda since: [], close=lambda: None)
    )
    claim = JobClaim(LabFolder(tmp_path), client.Connection(LabFolder(tmp_path)), "j1")
    claim.stop_why = stop_why
    monkeypatch.setattr(claim, "release", lambda *how: calls.append(how))
    lab: Any = SimpleNamespace(report=make_report)
    job_runner.conclude(lab, job, claim)
    assert calls == [released]
