"""The keeper's end of its socket: a thread per connection, one answer per line (``protocol.py``)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import LabError, TestbedError
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper import protocol
from testbed.keeper.event_log import log

__all__ = ["Answer", "Caller", "Service"]

BUSY_S = 0.05
"""Pause before the next attempt to accept a connection after one failed."""


@dataclass(frozen=True, eq=False)
class Caller:
    """The connection that a request came over. Its identity owns what ends with the connection: a build, a schedule, a
    job's wait.

    ``notice`` sends progress ahead of the answer; a connection that is gone is ignored.
    """

    notice: Callable[[str], None]


Answer = Callable[[object, Caller], Any]
"""(message, caller) to the answer; an exception becomes an error at the other end."""


class Service:
    """Listens at ``path``, for its owner alone. ``closed`` is called when the other end of a connection is gone."""

    def __init__(self, path: Path, answer: Answer, closed: Callable[[Caller], None]) -> None:
        self._answer, self._closed = answer, closed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(BUSY_S)  # out of file descriptors for now: clients wait in the backlog
                continue
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        # Building an answer holds the interpreter's lock: at normal priority it would delay a fault that is due until
        # this thread gets a core again.
        use_realtime_priority()
        with connection, connection.makefile("rwb") as stream:

            def send(message: dict[str, Any]) -> None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

            def notice(text: str) -> None:
                with contextlib.suppress(OSError, ValueError):
                    send(protocol.noticed(text))

            caller = Caller(notice)
            try:
                with contextlib.suppress(OSError, ValueError):
                    for line in stream:
                        send(self._reply(line, caller))
            finally:
                self._closed(caller)

    def _reply(self, line: bytes, caller: Caller) -> dict[str, Any]:
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            return protocol.refused(LabError(f"expected one JSON object per line: {error}"))
        try:
            return protocol.answered(self._answer(message, caller))
        except TestbedError as error:
            return protocol.refused(error)
        except Exception as error:
            verb = message.get("call", "") if isinstance(message, dict) else ""
            log(f"{verb} failed: {error!r}")
            return protocol.refused(LabError(f"the keeper could not do '{verb}': {error!r}"))
