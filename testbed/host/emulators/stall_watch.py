"""Stalls of the host's cores, as ``fiberd --stalls`` logs them (``testbed/fiberd/stalls.h``).

A core of a virtual machine stalls while another guest uses the hardware. Packets that pass a stalled core are late, and
ranks on it do not compute; neither is an effect of the emulated network.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Final

from testbed.errors import TestbedError
from testbed.host.emulators.fiberd import find_binary

__all__ = ["StallWatch"]

MOST_KEPT: Final = 200_000
"""Stalls kept in memory: an hour on a machine that loses a quarter of its time in bursts of a few milliseconds."""

END_S: Final = 2.0


class StallWatch:
    """Watches all cores from :meth:`start` to :meth:`stop`. Thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stalls: deque[tuple[int, float, float]] = deque(maxlen=MOST_KEPT)
        self._count = 0
        self._changing = threading.Lock()

    @property
    def watching(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, log_path: Path) -> None:
        """Start watching; do nothing if fiberd is not compiled or this process may not use real-time priority.

        The watch ends with the calling thread (PDEATHSIG). Its stderr goes to ``log_path``.
        """
        with contextlib.suppress(OSError, TestbedError), log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_binary()), "--stalls", "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
            threading.Thread(target=self._read, args=(self._process,), name="stalls", daemon=True).start()

    def stop(self) -> None:
        """Stop watching. Idempotent; the stalls logged so far are kept."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def since(self, number: int) -> tuple[int, list[tuple[int, float, float]]]:
        """Return the number of the next stall, and the stalls from ``number`` on that are still kept.

        A stall is (core, start in seconds of CLOCK_MONOTONIC, length in seconds). Numbers count from 0.
        """
        with self._changing:
            first = self._count - len(self._stalls)
            return self._count, list(islice(self._stalls, max(0, number - first), None))

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            next(lines, None)  # period and threshold
            for line in lines:
                core, due_ns, length_ns = map(int, line.split())
                with self._changing:
                    self._stalls.append((core, due_ns * 1e-9, length_ns * 1e-9))
                    self._count += 1
