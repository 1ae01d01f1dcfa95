"""The keeper's side of its socket: one JSON object a line, one answer each, a thread per connection."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.keeper.event_log import log

__all__ = ["Call", "Notice", "Service"]

BUSY_S = 0.05
"""Pause before the next try where a connection could not be taken."""

Notice = Callable[[str], None]
"""Something to be shown while an answer takes its time."""

Call = Callable[[str, dict[str, Any], socket.socket, Notice], Any]
"""(verb, arguments, connection, notice) to what is answered; what it raises becomes an error at the other end."""


class Service:
    """Listens at ``path``, for its owner alone. ``closed`` is called when the other end of a connection is gone."""

    def __init__(self, path: Path, call: Call, closed: Callable[[socket.socket], None]) -> None:
        self._call, self._closed = call, closed
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
                time.sleep(BUSY_S)  # out of file descriptors, for now: whoever asks waits in the backlog
                continue
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        # An answer in the making holds the interpreter: a fault that is due would wait until it gets a core again.
        use_realtime_priority()
        with connection, connection.makefile("rwb") as stream:

            def say(message: dict[str, Any]) -> None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

            def notice(text: str) -> None:
                with contextlib.suppress(OSError, ValueError):
                    say({"notice": text})

            with contextlib.suppress(OSError, ValueError):
                for line in stream:
                    say(self._answer(json.loads(line), connection, notice))
            self._closed(connection)

    def _answer(self, request: dict[str, Any], connection: socket.socket, notice: Notice) -> dict[str, Any]:
        verb = ""
        try:
            verb = request.pop("call", "")
            return {"ok": self._call(verb, request, connection, notice)}
        except TestbedError as error:
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            log(f"{verb} failed: {error!r}")
            return {"error": f"the keeper could not do '{verb}': {error!r}", "kind": "LabError"}
