"""Real-time scheduling of the calling thread (sched(7))."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

__all__ = ["PRIORITY", "use_raised_priority", "use_realtime_priority"]

PRIORITY: Final = 30
"""SCHED_FIFO priority of the threads that begin and end faults: above every rank, below fiberd (40), whose packets go
first."""

NICE: Final = -10


def use_realtime_priority() -> None:
    """Give the calling thread priority over the ranks, so that a due fault does not wait for them.

    Uses SCHED_FIFO if permitted, else :func:`use_raised_priority`. Threads and processes that this thread starts have
    normal scheduling (SCHED_RESET_ON_FORK): ranks that inherited the priority would delay the faults.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except OSError:
        use_raised_priority()


def use_raised_priority() -> None:
    """Give the calling thread a larger share of the CPU (nice -10) if permitted; it starts others at normal priority.

    Not a real-time priority: the thread yields to every other one in turn, but is seldom interrupted by a rank in the
    moment in which it holds the interpreter's lock.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
