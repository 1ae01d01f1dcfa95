"""Close a connection whose peer is silent, also one that leads through another host.

TCP_USER_TIMEOUT sees the cable of the first host on the way alone: one after it may be dark while that host goes on to
acknowledge. paramiko's keepalive asks for no answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import paramiko

__all__ = ["HeardStream", "watch"]

_ASKS_EVERY_S: Final = 5.0
_LOOKS_EVERY_S: Final = 1.0


class HeardStream:
    """The stream below an SSH connection; ``byte_count`` is how much has arrived."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.byte_count = 0

    def recv(self, count: int) -> bytes:
        piece: bytes = self._stream.recv(count)
        self.byte_count += len(piece)
        return piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def watch(transport: paramiko.Transport, heard: HeardStream, silence_s: float) -> None:
    """Close the connection once nothing has arrived for ``silence_s``, though the peer is asked for an answer."""
    for work in (lambda: _ask(transport), lambda: _look(transport, heard, silence_s)):
        threading.Thread(target=work, daemon=True, name="peer watch").start()


def _ask(transport: paramiko.Transport) -> None:
    with contextlib.suppress(Exception):  # paramiko raises many kinds where the connection is closed meanwhile
        while transport.is_active():
            transport.global_request("keepalive@openssh.com", wait=True)  # refused, which is an answer
            time.sleep(_ASKS_EVERY_S)


def _look(transport: paramiko.Transport, heard: HeardStream, silence_s: float) -> None:
    # Looks are counted, not seconds: this process may have been stopped, and has not read yet what arrived meanwhile.
    before, silent = -1, 0
    while transport.is_active() and silent * _LOOKS_EVERY_S < silence_s:
        time.sleep(_LOOKS_EVERY_S)
        silent = silent + 1 if heard.byte_count == before else 0
        before = heard.byte_count
    transport.close()
