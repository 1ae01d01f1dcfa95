"""Console script ``testbed``: keep Ctrl-C silent while the command line is being imported."""

from __future__ import annotations

import gc
import signal
import sys

__all__ = ["detached", "main"]


def main() -> None:
    """Run :func:`testbed.cli.app.main`.

    Its import takes 0.2 s or more, with nothing to undo yet: until then Ctrl-C ends the process by the signal's default
    action (status 130 in a shell), without a traceback.
    """
    gc.set_threshold(50_000)  # the default of 700 costs 0.04 s: imports create no garbage
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise the parent ignores SIGINT, as for a script's background job
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from testbed.host.linux import invocation

    invocation.take_client_words()  # before any module has help texts that name commands
    from testbed.cli.app import main as testbed

    signal.signal(signal.SIGINT, handler)
    testbed()


def detached() -> None:
    """Run the command line in the process of ``--detach``; the arguments are those that were typed, the program's name
    included (detached_run.py)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from testbed.host.linux import invocation

    invocation.take_client_words()
    from testbed.cli import detached_run
    from testbed.host.remote.command_folder import CommandFolder

    del sys.argv[0]
    detached_run.this_is_it()
    sent = CommandFolder.of_this_process()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    finally:
        if sent is not None:
            sent.leave()


if __name__ == "__main__":
    main()
