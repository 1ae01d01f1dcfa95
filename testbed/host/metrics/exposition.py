"""Serve metrics over HTTP from inside a network namespace (Prometheus text format 0.0.4)."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from testbed.errors import HostError
from testbed.host.linux import namespace

__all__ = ["CONTENT_TYPE", "Exposition"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_PATIENCE_S: Final = 2.0


class Exposition(http.server.ThreadingHTTPServer):
    """Serves ``/metrics`` at an address inside a namespace, without moving the process there.

    ``text`` returns the answer; calls are serialised. Must be closed: the socket keeps the namespace alive.
    """

    daemon_threads = True

    def __init__(self, netns: Path, address: str, port: int, text: Callable[[], bytes]) -> None:
        """Raises HostError if the address cannot be bound."""
        super().__init__((address, port), _Handler, bind_and_activate=False)
        self.socket.close()
        try:
            self.socket = namespace.inside(netns, lambda: socket.create_server((address, port)))
        except OSError as error:
            raise HostError(f"cannot serve metrics at {address}:{port}: {error.strerror}") from error
        self._text = text
        self._one_at_a_time = threading.Lock()
        self._closing = False
        threading.Thread(target=self._serve, name="exporter", daemon=True).start()

    def answer(self) -> bytes:
        """Return the current metrics. Raises HostError after :meth:`close`."""
        with self._one_at_a_time:
            if self._closing:
                raise HostError("the lab is being taken down")
            return self._text()

    def close(self) -> None:
        """Stop serving; afterwards ``text`` is not called again, and what it reads may be closed. Idempotent."""
        with self._one_at_a_time:
            self._closing = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the waiting thread at once
        self.server_close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                self.handle_request()
            except (OSError, ValueError):  # closed while waiting
                return

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None  # the client disconnected before it got the answer


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = CLIENT_PATIENCE_S
    server: Exposition

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        try:
            text = self.server.answer()
        except Exception as error:
            self.send_error(500, "no metrics now", repr(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        return None  # a line per scrape would fill the keeper's log
