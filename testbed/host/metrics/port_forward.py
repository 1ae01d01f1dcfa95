"""A port of this host that leads to an address inside a network namespace, as `kubectl port-forward` does it."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from pathlib import Path
from typing import Final

from testbed.errors import HostError, NotAllowed, UserError
from testbed.host.linux import namespace

__all__ = ["LOOPBACK", "Forwarder"]

LOOPBACK: Final = "127.0.0.1"
"""The only address that is listened on: whoever may log in here may look, nobody else."""

CONNECT_BOUND_S: Final = 5.0
CHUNK: Final = 1 << 16
AT_ONCE: Final = 64
"""Connections that are led at a time: each takes two threads and two descriptors. More wait to be taken."""

RETRY_S: Final = 0.1


class Forwarder:
    """Connections to ``port`` of 127.0.0.1 go on to ``address`` (host, port) in the namespace at ``netns``. Close it.

    ``port`` 0 takes any that is free; :attr:`port` tells which. A connection that cannot be made is closed at once. The
    calling process stays where it is: only sockets are made inside.
    """

    def __init__(self, netns: Path, address: tuple[str, int], port: int) -> None:
        """Raises UserError for a port that cannot be had."""
        self._netns, self._address = netns, address
        try:
            self._listener = socket.create_server((LOOPBACK, port))
        except OverflowError as error:
            raise UserError(f"{port} is no port: 0 (any that is free) to 65535") from error
        except PermissionError as error:
            raise NotAllowed(f"port {port} is for root: choose a higher one with --port") from error
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
            raise UserError(f"port {port} of {LOOPBACK} {why}; choose another with --port (0: any)") from error
        self.port: int = self._listener.getsockname()[1]
        self._closed = False
        self._room = threading.BoundedSemaphore(AT_ONCE)
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more connections; those that there are end with whoever talks over them, or with us."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            self._room.acquire()
            try:
                ours, _ = self._listener.accept()
            except OSError:
                self._room.release()
                if not self._closed:  # no descriptor is free: those who wait are taken when there is one
                    time.sleep(RETRY_S)
                continue
            threading.Thread(target=self._take, args=(ours,), name="forward", daemon=True).start()

    def _take(self, ours: socket.socket) -> None:
        try:
            self._lead(ours)
        finally:
            self._room.release()

    def _lead(self, ours: socket.socket) -> None:
        with ours:
            try:
                theirs = namespace.inside(
                    self._netns, lambda: socket.create_connection(self._address, timeout=CONNECT_BOUND_S)
                )
            except (OSError, HostError):
                return  # nobody is there: whoever asked sees the connection closed
            with theirs:
                theirs.settimeout(None)
                back = threading.Thread(target=_copy, args=(theirs, ours), name="forward", daemon=True)
                back.start()
                _copy(ours, theirs)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """All that comes, until there is no more; the other direction may go on."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
