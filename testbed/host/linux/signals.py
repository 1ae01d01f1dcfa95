"""Handlers of signals for the time of a block."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType
from typing import Final, TypeAlias

__all__ = ["ENDING", "Handler", "handled"]

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a user or the system ends a command: Ctrl-C, kill(1), a closed terminal."""

Handler: TypeAlias = Callable[[int], object] | signal.Handlers


@contextlib.contextmanager
def handled(
    handlers: Mapping[signal.Signals, Handler], *, unless_ignored: Collection[signal.Signals] = (signal.SIGHUP,)
) -> Iterator[None]:
    """Handle signals while the body runs; does nothing outside of the main thread, which alone receives signals.

    Processes that begin meanwhile have the default action of a signal with a handler, even if this process ignored it.

    Args:
        handlers: called with the number of the signal; or SIG_IGN.
        unless_ignored: signals that stay ignored if this process ignores them: nohup(1) ignores SIGHUP.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number for number in unless_ignored if signal.getsignal(number) is signal.SIG_IGN}
    before = {
        number: signal.signal(number, _of_frames(handler)) for number, handler in handlers.items() if number not in kept
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _of_frames(handler: Handler) -> Callable[[int, FrameType | None], object] | signal.Handlers:
    if isinstance(handler, signal.Handlers):
        return handler
    return lambda number, frame: handler(number)
