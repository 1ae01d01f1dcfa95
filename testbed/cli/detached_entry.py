"""``python -m testbed.cli.detached_entry``: the process of ``--detach`` (detached_run.py)."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Do what was typed; the arguments are those of the process that was typed, its name included."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # silent during the imports, as in entry.py
    from testbed.cli import detached_run
    from testbed.cli.entry import main as testbed
    from testbed.host.remote.command_folder import CommandFolder

    del sys.argv[0]
    detached_run.this_is_it()
    sent = CommandFolder.of_this_process()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        testbed()
    finally:
        if sent is not None:
            sent.leave()


if __name__ == "__main__":
    main()
