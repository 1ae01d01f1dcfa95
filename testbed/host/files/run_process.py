"""The process that makes a run, as its ``process.json`` tells: whether it still is there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from testbed.core.fields import integer, text
from testbed.host.linux import process

__all__ = ["PROCESS", "is_there", "this"]

PROCESS = "process.json"


def this() -> dict[str, object]:
    """Return the record of this process; ``began`` is its start in clock ticks since the boot ``boot``."""
    pid = os.getpid()
    return {
        "pid": pid,
        "began": process.started(pid),
        "boot": process.boot_id(),
        "since_unix_s": time.time(),
        "ended": "",
    }


def is_there(record: Mapping[str, object]) -> bool:
    """Return whether the recorded process still is there; not if the record is of another host, or damaged."""
    pid, began = integer(record, "pid"), integer(record, "began")
    if pid is None or began is None or text(record, "boot") != process.boot_id():
        return False
    return process.is_same(pid, began)
