"""The process of a detached job, which goes on after the signals of a terminal; its programs heed theirs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

SCRIPT = """
import json, os, signal, subprocess, sys
from testbed.lab import job_runner
stop = job_runner._heed_sigterm_alone()
for number in (signal.SIGHUP, signal.SIGINT):
    os.kill(os.getpid(), number)
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True)
before = stop.is_set()
os.kill(os.getpid(), signal.SIGTERM)
print(json.dumps({"status": child.stdout, "before": before, "after": stop.is_set()}))
"""


def test_it_goes_on_after_sigint_and_sighup_which_its_programs_do_not_ignore() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["before"], said["after"]) == (False, True)
    (ignored,) = [int(it.split()[1], 16) for it in said["status"].splitlines() if it.startswith("SigIgn:")]
    inherited = [it for it in (signal.SIGHUP, signal.SIGINT) if ignored >> (it - 1) & 1]
    assert not inherited, "proc(5): signal n is bit n - 1"
