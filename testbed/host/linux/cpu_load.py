"""Load of all cores between two moments (/proc/stat, proc_stat(5)), and a bounded wait until cores are free."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psutil

__all__ = ["FREE_BUSY", "Load", "LoadMeter", "wait_until_free"]

FREE_BUSY: Final = 0.25
"""Load of all cores, 0..1, up to which a measurement that needs them in turn for microseconds is not held up."""

WINDOW_S: Final = 0.25
"""Duration over which the load is read: 25 ticks of the kernel's clock for each core."""


@dataclass(frozen=True)
class Load:
    """Load of all cores, 0..1: ``busy`` includes what was ``stolen``, which other machines of the host took."""

    busy: float
    stolen: float


class LoadMeter:
    """Measure the load since the meter was made, or since it was last read."""

    def __init__(self) -> None:
        self._latest: Any = psutil.cpu_times()

    def read(self) -> Load:
        before, after = self._latest, psutil.cpu_times()
        self._latest = after
        passed = max(1e-9, sum(after) - sum(before))
        idle = (after.idle - before.idle) + (getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0))
        stolen = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
        return Load(min(1.0, max(0.0, 1.0 - idle / passed)), min(1.0, max(0.0, stolen / passed)))


def wait_until_free(most_s: float, read: Callable[[], Load] | None = None) -> Load:
    """Return the load once it is at most :data:`FREE_BUSY` for :data:`WINDOW_S`, or after ``most_s`` seconds."""
    read = read or LoadMeter().read
    until = time.monotonic() + most_s
    while True:
        time.sleep(WINDOW_S)
        load = read()
        if load.busy <= FREE_BUSY or time.monotonic() >= until:
            return load
