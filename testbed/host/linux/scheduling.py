"""Real-time scheduling of the calling thread (sched(7))."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

__all__ = ["PRIORITY", "use_realtime_priority"]

PRIORITY: Final = 30
"""SCHED_FIFO priority of the threads that begin and end faults: above every rank, below fiberd (40), whose packets go
first."""


def use_realtime_priority() -> None:
    """Give the calling thread priority over the ranks, so that a due fault does not wait for them.

    Uses SCHED_FIFO if permitted, else the lowest permitted nice value. Threads and processes that this thread starts
    have normal scheduling (SCHED_RESET_ON_FORK): ranks that inherited the priority would delay the faults.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
    except OSError:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)
