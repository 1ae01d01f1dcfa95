"""What the command ``testbed`` starts: its entry point, with Ctrl-C silent while it is being imported."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """As :func:`testbed.cli.app.main`. Importing that takes 0.2 s and more, in which there is nothing to undo: Ctrl-C
    ends the process as it ends any program that does not care (status 130 of a shell), without a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else whoever started us wants it ignored, as for a job of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from testbed.cli.app import main as testbed

    signal.signal(signal.SIGINT, handler)
    testbed()


if __name__ == "__main__":
    main()
