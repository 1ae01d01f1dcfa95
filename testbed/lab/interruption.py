"""Which parts of a run Ctrl-C, SIGTERM and a closed terminal may interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from testbed.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that it undoes everything and writes what was measured.

    The first of them counts: a second Ctrl-C, however soon it comes, cannot cut the undo or the writing short.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _heard()}
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; everything was undone") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heard() -> list[signal.Signals]:
    """Return the signals to treat alike: those that raise KeyboardInterrupt now, and SIGTERM."""
    heard = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a program may have its own, or ignore it
        heard.append(signal.SIGINT)
    if callable(signal.getsignal(signal.SIGHUP)):  # nohup(1) ignores it
        heard.append(signal.SIGHUP)
    return heard


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


@contextlib.contextmanager
def further_interrupts(heard: Callable[[], object]) -> Iterator[None]:
    """Call ``heard`` for each Ctrl-C while the body runs; the body itself is not interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: heard())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
