"""Processes: known by when they began, and how they ended in words."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import host_stalls
import pytest
from builders.processes import Child, python
from builders.tables import table

from testbed.host.linux import process


@table(
    "code, text",
    {
        "well": ("pass", "ended with status 0"),
        "with a status": ("raise SystemExit(3)", "ended with status 3"),
        "by a signal": ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    },
)
def test_how_a_process_ended(code: str, text: str) -> None:
    assert process.how_ended(subprocess.call([sys.executable, "-S", "-c", code])) == text


def test_a_signal_without_a_name() -> None:
    assert process.how_ended(-40) == "was killed by signal 40"


def test_another_process_of_the_same_pid_is_not_it() -> None:
    with Child("sleep", 60) as child:
        began = process.started(child.pid)
        assert process.is_same(child.pid, began)
        assert not process.is_same(child.pid, began + 1)
        assert process.end(child.pid, began + 1, bound_s=0.1), "what is not there is gone"
        assert child.poll() is None
        asked = time.monotonic()
        assert process.end(child.pid, began)
        assert host_stalls.elapsed_s(asked) < 5
        assert child.wait() == -9


def test_a_process_whose_start_time_is_unknown_gets_no_signal() -> None:
    """Its pid may be another's by now: that of whoever is there."""
    with Child("sleep", 60) as child:
        assert process.end(child.pid, 0, bound_s=0.1), "nothing is known to be left"
        assert process.end_all([(child.pid, 0)], grace_s=0.1, bound_s=0.1) == []
        process.send(child.pid, 0, signal.SIGKILL)
        process.send(child.pid, process.started(child.pid) + 1, signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        process.send(child.pid, process.started(child.pid), signal.SIGTERM)
        assert child.wait(5) == -signal.SIGTERM


@pytest.mark.parametrize(("soft", "hard", "then"), [(64, 256, 256), (256, 256, 256), (64, 1 << 20, 65_536)])
def test_as_many_files_as_the_hard_limit_allows(soft: int, hard: int, then: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and hard > most:
        pytest.skip(f"the hard limit here is {most}")
    code = "import resource as r; from testbed.host.linux import process; process.allow_many_files()"
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    with python(f"{code}; print(*r.getrlimit(r.RLIMIT_NOFILE))", preexec_fn=limit) as child:
        assert child.read_line() == f"{then} {hard}"
        assert child.wait() == 0


def test_a_recorded_process_is_known_by_its_boot_and_beginning() -> None:
    script = (
        "import json, dataclasses; from testbed.host.linux.process import ProcessRecord\n"
        "print(json.dumps(dataclasses.asdict(ProcessRecord.of_this_process())), flush=True); input()"
    )
    with python(script) as child:
        fields = json.loads(child.read_line())
        assert fields["pid"] == child.pid
        assert fields["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = process.ProcessRecord.read(fields)
        assert record.is_there()
        assert not record.wait_gone(0.05)
        for change in ({"boot": "another"}, {"began": fields["began"] + 1}):
            other = process.ProcessRecord.read(fields | change)
            assert not other.is_there()
            assert other.wait_gone(0.0)
        child.kill()
        assert record.wait_gone(10.0)
        assert not record.is_there()


@pytest.mark.parametrize("fields", [{}, {"pid": "x", "began": 1}, {"pid": 1}])
def test_a_damaged_record_is_of_no_process(fields: dict[str, object]) -> None:
    assert process.ProcessRecord.read(fields) is None
