"""Forward a port of this host to an address inside a network namespace, or of another host, like `kubectl
port-forward`."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from testbed.errors import HostError, NotAllowed, UserError
from testbed.host.linux import namespace

__all__ = ["CONNECT_BOUND_S", "LOOPBACK", "Connection", "Forwarder", "into_namespace"]

LOOPBACK: Final = "127.0.0.1"
"""The only address listened on: reachable by local users only."""

CONNECT_BOUND_S: Final = 5.0
CHUNK: Final = 1 << 16
AT_ONCE: Final = 64
"""Maximum number of concurrent connections, each with two threads and two descriptors. More wait in the backlog."""

RETRY_S: Final = 0.1


class Connection(Protocol):
    """What a forwarder needs of a connected socket, or of a channel of SSH; errors are OSError."""

    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


def into_namespace(netns: Path, address: tuple[str, int]) -> Callable[[], socket.socket]:
    """Return what connects to ``address`` (host, port) in the namespace at ``netns``.

    The calling process does not enter the namespace; only sockets are created inside.
    """

    def connect() -> socket.socket:
        theirs = namespace.inside(netns, lambda: socket.create_connection(address, timeout=CONNECT_BOUND_S))
        theirs.settimeout(None)
        return theirs

    return connect


class Forwarder:
    """Forwards connections to ``port`` of 127.0.0.1 to what ``connect`` connects to; it raises OSError or HostError.

    ``port`` 0 selects a free one; see :attr:`port`. If the target cannot be reached, the connection is closed at once.
    Must be closed.
    """

    def __init__(self, connect: Callable[[], Connection], port: int) -> None:
        """Raises UserError for a port that cannot be bound."""
        self._connect = connect
        try:
            self._listener = socket.create_server((LOOPBACK, port))
        except OverflowError as error:
            raise UserError(f"expected a port from 0 (any free port) to 65535, got {port}") from error
        except PermissionError as error:
            raise NotAllowed(f"port {port} needs root: choose a higher one with --port") from error
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error.strerror}"
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
        """Accept no more connections; existing ones end with their client or with this process."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the waiting thread
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            self._room.acquire()
            try:
                ours, _ = self._listener.accept()
            except OSError:
                self._room.release()
                if not self._closed:  # out of descriptors: retry until one is free
                    time.sleep(RETRY_S)
                continue
            threading.Thread(target=self._take, args=(ours,), name="forward", daemon=True).start()

    def _take(self, ours: socket.socket) -> None:
        try:
            self._forward(ours)
        finally:
            self._room.release()

    def _forward(self, ours: socket.socket) -> None:
        with ours:
            try:
                theirs = self._connect()
            except (OSError, HostError):
                return  # unreachable: the client sees the connection closed
            with contextlib.closing(theirs):
                back = threading.Thread(target=_copy, args=(theirs, ours), name="forward", daemon=True)
                back.start()
                _copy(ours, theirs)
                back.join()


def _copy(source: Connection, target: Connection) -> None:
    """Copy until EOF; the other direction may continue."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
