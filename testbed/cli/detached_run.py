"""``--detach`` of whole procedures (run, validate): the same command line in a process of its own session.

Its output goes to a log in its run directory. The command that was typed shows it until the run has its directory,
and so holds the host's slot and a lab: up to then every refusal and mistake is told, and Ctrl-C undone, as without
``--detach``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import testbed.host.linux.invocation as invocation
from testbed.cli.console import Note
from testbed.cli.verb import Result
from testbed.host.linux.signals import ENDING, handled

__all__ = ["begin", "is_this", "this_is_it"]

_LOOK_S: Final = 0.05

_state = {"is_this": False}


def is_this() -> bool:
    """Return whether this process is the detached one, which does the work."""
    return _state["is_this"]


def this_is_it() -> None:
    """Note that this process is the detached one."""
    _state["is_this"] = True


def begin(runs: Path | None) -> Result | int:
    """Do what was typed in a process of its own; return when it has begun, or with its status if it did not begin.

    ``runs`` is the folder of run directories that was named. Raises UserError, StorageError.
    """
    from testbed.core.remote.leash_frames import RUN_LIST
    from testbed.errors import StorageError
    from testbed.host.files import beneath, runs_folder, store
    from testbed.host.linux.program_user import caller

    root = runs_folder.ready(runs, 0)
    private = Path(tempfile.mkdtemp(prefix="testbed-detach-"))
    descriptor, name = tempfile.mkstemp(prefix="detached-", suffix=".log", dir=root)
    log = Path(name)
    # On a leash it is the leash's: it has the one run of this command, too.
    listed = Path(os.environ.get(RUN_LIST) or private / "runs")
    try:
        beneath.give(descriptor, caller())
        interruptions: list[int] = []
        with handled(dict.fromkeys(ENDING, interruptions.append)):
            child = subprocess.Popen(
                # -P: no module is taken from the working directory, as root.
                [sys.executable, "-P", "-c", "from testbed.cli.entry import detached; detached()", *sys.argv],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                env={**invocation.for_child(), RUN_LIST: str(listed)},
            )
            run = _shown_until_begun(child, log, listed, interruptions)
            if run is None:
                log.unlink(missing_ok=True)
                status = child.returncode
                return 128 - status if status < 0 else status
    finally:
        os.close(descriptor)
        shutil.rmtree(private, ignore_errors=True)
    kept = log
    with contextlib.suppress(StorageError):
        kept = store.take_log(store.RunDirectory(run), log)
    return Result(
        data=lambda: {"run": str(run), "log": str(kept), "pid": child.pid},
        tables=[
            run.name,
            Note(f"run directory: {run}"),
            Note(f"its output: {kept}"),
            Note(f"  {invocation.command('ls', 'runs')}    # running, until it has ended", "cyan"),
            Note(f"  {invocation.as_root(f'kill -INT {child.pid}')}    # end it; its report is written", "cyan"),
        ],
    )


def _shown_until_begun(
    child: subprocess.Popen[bytes], log: Path, listed: Path, interruptions: list[int]
) -> Path | None:
    """Show the log on stderr until the run has a directory, which is returned, or the process has ended: None.

    The process gets a SIGINT for each interruption in ``interruptions``, and undoes what it has begun.
    """
    with log.open("rb") as output:
        while True:
            while interruptions:
                interruptions.pop()
                child.send_signal(signal.SIGINT)
            over = child.poll() is not None  # before the last look, so that nothing is missed
            with contextlib.suppress(OSError):
                sys.stderr.write(output.read().decode(errors="replace"))
                sys.stderr.flush()
            with contextlib.suppress(OSError):
                if (runs := listed.read_text()).endswith("\n") and not over and not interruptions:
                    return Path(runs.splitlines()[-1])
            if over:
                return None
            time.sleep(_LOOK_S)
