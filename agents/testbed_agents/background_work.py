"""Background work of threads in torch: the end of the program waits for it.

Otherwise a rank that has nothing more to do ends with exchanges that its peers still wait for, which then fail; and a
thread that comes back from torch into a Python that is being finalised is ended inside C++, which may end the process
by SIGABRT ("terminate called without an active exception"). A thread that waits in Python for work is no trouble.
"""

from __future__ import annotations

import atexit
import threading

__all__ = ["begin", "end"]

_BOUND_S = 5.0
"""How long the end of a program waits: peers that are gone would let it wait for gloo's whole timeout."""

_changed = threading.Condition()
_begun = 0


def begin() -> None:
    """Count one more piece of work. Call it before the thread starts, so that no work is uncounted."""
    global _begun
    with _changed:
        _begun += 1


def end() -> None:
    """Count one less."""
    global _begun
    with _changed:
        _begun -= 1
        _changed.notify_all()


@atexit.register
def _wait() -> None:
    with _changed:
        _changed.wait_for(lambda: not _begun, _BOUND_S)
