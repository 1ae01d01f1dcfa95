"""Which parts of a run Ctrl-C, SIGTERM and a closed terminal may interrupt."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from testbed.errors import Interrupted
from testbed.host.linux.signals import ENDING, handled


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that it undoes everything and writes what was measured.

    The first of them counts: a second Ctrl-C, however soon it comes, cannot cut the undo or the writing short.
    """
    is_interrupted = False

    def interrupt(number: int) -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt

    with handled(dict.fromkeys(_treated_alike(), interrupt)):
        try:
            yield
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; everything was undone") from error


def _treated_alike() -> list[signal.Signals]:
    """Return SIGTERM, and the signals that raise KeyboardInterrupt now."""
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a program may have its own, or ignore it
        numbers.append(signal.SIGINT)
    if callable(signal.getsignal(signal.SIGHUP)):  # nohup(1) ignores it
        numbers.append(signal.SIGHUP)
    return numbers


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ignore signals during an undo: it is bounded in time, and a partial undo would be worse."""
    with handled(dict.fromkeys(ENDING, signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def further_interrupts(interrupted: Callable[[], object]) -> Iterator[None]:
    """Call ``interrupted`` for each Ctrl-C while the body runs; the body itself is not interrupted."""
    with handled({signal.SIGINT: lambda number: interrupted()}):
        yield
