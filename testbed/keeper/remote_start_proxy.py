"""The keeper's child that starts programs in nodes for programs in other nodes (``host/remote_starts.py``)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed.host import remote_starts
from testbed.host.lab_folder import LabFolder

__all__ = ["RemoteStartProxy"]


class RemoteStartProxy:
    """Runs from the first request on until the keeper ends. Not thread-safe: use it in the engine's thread, which lives
    as long as the process (PDEATHSIG)."""

    def __init__(self, lab: LabFolder) -> None:
        self._lab = lab
        self._child: subprocess.Popen[bytes] | None = None

    def ensure(self) -> Path:
        """Start the proxy unless it runs; return the program that asks it. Raises HostError, StorageError."""
        if self._child is None or self._child.poll() is not None:
            self._child = remote_starts.start(self._lab)
        return remote_starts.program(self._lab)

    def stop(self) -> None:
        """End the proxy, and so what it has started."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
