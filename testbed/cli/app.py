"""Entry point of ``testbed``. Each module ``*_verbs`` is a thin layer over ``testbed.lab.api``."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import (
    audit_verb,
    capture_verb,
    console,
    container_verbs,
    fault_verbs,
    host_verb,
    inspect_verbs,
    job_verbs,
    lab_verbs,
    on_host,
    predict_verb,
    run_verbs,
    streams,
    validate_verb,
    verb,
)
from testbed.cli.options import Quiet, Verbose
from testbed.cli.streams import OutputError
from testbed.errors import HostError
from testbed.version import __version__

__all__ = ["app", "main"]

app = verb.app
_VERBS = (
    run_verbs,
    job_verbs,
    validate_verb,
    lab_verbs,
    fault_verbs,
    inspect_verbs,
    capture_verb,
    audit_verb,
    predict_verb,
    host_verb,
    container_verbs,
)  # importing these modules registers their verbs
_JOB_VERBS = ("compare", "run", "launch", "report", "fetch", "train", "jobs", "stop", "attach", "validate")
"""In the order of ``testbed --help``; the other verbs come as they were imported."""


def _position(name: str | None, panel: str | None) -> tuple[int, int]:
    return verb.PANELS.index(str(panel)), _JOB_VERBS.index(str(name)) if name in _JOB_VERBS else 0


app.registered_commands.sort(key=lambda command: _position(command.name, str(command.rich_help_panel)))


def _print_version(wanted: bool) -> None:
    if wanted:
        console.show_line(f"testbed {__version__}")
        raise typer.Exit


@app.callback(epilog=verb.examples_of("Get started", ("testbed doctor", "testbed run metro-40km")))
def _testbed(
    context: typer.Context,
    quiet: Quiet = False,
    verbose: Verbose = False,
    on: on_host.On = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """AI training across sites: real collectives over emulated fiber that is measured before it is trusted."""
    console.configure(quiet=quiet, verbose=verbose)
    context.obj = on


def _terminate(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the undo that the first one started.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _program() -> str:
    """Return the words of "Usage:" and "Try": those that call this program here. Completion is for the name alone."""
    completes = "_TESTBED_COMPLETE" in os.environ or any(argument.endswith("-completion") for argument in sys.argv[1:])
    return invocation.NAME if completes else invocation.word()


def _command_line() -> int:
    try:
        app(standalone_mode=True, prog_name=_program())
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    else:
        status = 0
    try:
        streams.flush()
    except OutputError:
        if not status:
            raise
        streams.discard_output()  # the exit status reports the first failure, an interruption above all
    return status


def main() -> None:
    """Run the command line and exit.

    Exit status: 0 success, 1 measured and bad, 2 invalid input, 3 the host or lab failed, 130 interrupted.
    """
    streams.install()
    if os.environ.get("COLUMNS", "1").strip("0") == "":
        del os.environ["COLUMNS"]  # with zero columns the drawing libraries would show nothing
    if sys.platform != "linux":
        console.error(
            "the testbed requires Linux (it uses network namespaces); run it on a Linux host or virtual machine"
        )
        sys.exit(HostError.exit_code)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) sets SIG_IGN
            signal.signal(number, _terminate)
    status = verb.guarded(_command_line)
    gc.freeze()  # otherwise Python spends 0.05 s at exit on a search for cycles in all imported modules
    sys.exit(status)


if __name__ == "__main__":
    main()
