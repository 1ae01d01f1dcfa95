"""An exclusive lock between processes, by flock(2).

Not by filelock: that makes the missing parent folder of a lock, and the folder of a removed lab must not come back.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final

__all__ = ["FileLock"]

POLL_S: Final = 0.02


class FileLock:
    """Acquire the lock of ``path``, a file that is made where it is missing; held until :meth:`release`.

    The kernel releases the lock when the process ends, however it ends. Raises TimeoutError if another holder kept it
    for ``timeout_s`` seconds, FileNotFoundError if the folder of ``path`` does not exist.
    """

    def __init__(self, path: Path, timeout_s: float = math.inf) -> None:
        until = time.monotonic() + timeout_s
        while True:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A file without a name was removed by its former holder: the next one locks another file.
                if os.fstat(self._descriptor).st_nlink:
                    return
            os.close(self._descriptor)
            if time.monotonic() > until:
                raise TimeoutError(f"{path} is locked by another process")
            time.sleep(POLL_S)

    def release(self) -> None:
        """Release the lock; a second call does nothing, since the descriptor may be another file's by then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
