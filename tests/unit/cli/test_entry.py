"""The entry point of the command: what Ctrl-C does before there is anything to undo."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from testbed.cli import entry
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "testbed.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
sys.argv = ["testbed", "--version"]
entry.main()
"""


@pytest.mark.parametrize(("ignored", "status"), [(False, -signal.SIGINT), (True, 0)])
def test_ctrl_c_while_it_is_imported_says_nothing(ignored: bool, status: int) -> None:
    """And a job of a script that is to ignore it, as `sh` starts it with &, goes on."""
    before = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if ignored else ""
    done = subprocess.run([sys.executable, "-c", before + PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, "")
