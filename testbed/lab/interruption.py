"""Which parts of a run Ctrl-C, SIGTERM and a closed terminal may interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from testbed.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that it undoes everything and writes what was measured."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; everything was undone") from error
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ignore signals during an undo: it is bounded in time, and a partial undo would be worse."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
