"""Ask a lab's keeper over the socket in the lab's folder (``protocol.py``)."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from testbed.errors import LabError
from testbed.host import lab_owner
from testbed.host.lab_folder import LabFolder
from testbed.keeper import protocol
from testbed.keeper.protocol import Hello, Request, Subscribe, Update

A = TypeVar("A")

PATIENCE_S = 60.0
"""How long a keeper may take for one answer before it counts as stuck."""


class Connection:
    """A connection to a lab's keeper. Raises LabError when there is none.

    What belongs to a connection ends with it: a build, scheduled faults, a job's wait.
    """

    def __init__(self, lab: LabFolder, patience_s: float = PATIENCE_S) -> None:
        self._lab, self._patience_s = lab, patience_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(patience_s)
        try:
            self._socket.connect(str(lab.socket))
        except OSError as error:
            self._socket.close()
            lab.refuse_foreign()
            lab.refuse_gone()
            raise LabError(f"the keeper of lab {lab.name} does not answer; {lab_owner.or_down(lab)}") from error
        self._stream = self._socket.makefile("rwb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor: readable while nothing is asked means that the keeper has ended."""
        return self._socket.fileno()

    def interrupt(self) -> None:
        """End the connection from another thread: what waits for an answer gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def ask(self, request: Request[A], notice: Callable[[str], None] | None = None) -> A:
        """Return the keeper's answer; notices before it go to ``notice``. Errors of the keeper are raised here."""
        with self._translated(request):
            self._send(request)
            while (text := protocol.decode_notice(message := self._message(request))) is not None:
                if notice is not None:
                    notice(text)
        return protocol.decode_answer(request, message)

    def updates(self, request: Subscribe) -> Iterator[Update]:
        """Yield what the keeper pushes, until the connection ends, which is an error; ask nothing else over it.

        Raises LabError also where no update comes for the connection's patience.
        """
        with self._translated(request):
            self._send(request)
        while True:
            with self._translated(request):
                message = self._message(request)
            if (update := protocol.decode_update(message)) is not None:
                yield update
            else:
                protocol.decode_answer(request, message)

    def pushed(self) -> Iterator[Update]:
        """Yield what the keeper pushes over this connection by itself, however rarely, until the connection ends."""
        self._socket.settimeout(None)
        with contextlib.suppress(OSError, ValueError):  # its end, from either side
            while (line := self._stream.readline()).endswith(b"\n"):
                if (update := protocol.decode_update(json.loads(line))) is not None:
                    yield update

    def _send(self, request: Request[Any]) -> None:
        self._stream.write(json.dumps(protocol.encode_request(request)).encode() + b"\n")
        self._stream.flush()

    def _message(self, request: Request[Any]) -> dict[str, Any]:
        line = self._stream.readline()
        if not line.endswith(b"\n"):  # nothing, or a line whose rest will never come
            raise ConnectionResetError(request.verb)
        message: dict[str, Any] = json.loads(line)
        return message

    @contextlib.contextmanager
    def _translated(self, request: Request[Any]) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise LabError(
                f"the keeper of lab {self._lab.name} did not answer '{request.verb}' within {self._patience_s:g} s"
            ) from error
        except OSError as error:
            self._lab.refuse_gone()
            raise LabError(f"the keeper of lab {self._lab.name} ended while it handled '{request.verb}'") from error


def ask(lab: LabFolder, request: Request[A]) -> A:
    """Return the keeper's answer to one request, over a connection of its own."""
    with Connection(lab) as connection:
        return connection.ask(request)


def answers(lab: LabFolder) -> bool:
    """Return whether the lab has a keeper that answers."""
    try:
        ask(lab, Hello())
    except LabError:
        return False
    return True
