"""Ask a lab's keeper over the socket in the lab's folder (``protocol.py``)."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from testbed.errors import LabError
from testbed.host.lab_folder import LabFolder
from testbed.keeper import protocol
from testbed.keeper.protocol import Hello, Request

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
            raise LabError(
                f"the keeper of lab {lab.name} does not answer; take it down with: testbed down {lab.name}"
            ) from error
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

    def ask(self, request: Request[A], notice: Callable[[str], None] | None = None) -> A:
        """Return the keeper's answer; notices before it go to ``notice``. Errors of the keeper are raised here."""
        try:
            self._stream.write(json.dumps(protocol.encode_request(request)).encode() + b"\n")
            self._stream.flush()
            while True:
                line = self._stream.readline()
                if not line:
                    self._lab.refuse_gone()
                    raise LabError(f"the keeper of lab {self._lab.name} ended while it handled '{request.verb}'")
                message = json.loads(line)
                if (text := protocol.decode_notice(message)) is None:
                    break
                if notice is not None:
                    notice(text)
        except TimeoutError as error:
            raise LabError(
                f"the keeper of lab {self._lab.name} did not answer '{request.verb}' within {self._patience_s:g} s"
            ) from error
        except OSError as error:
            self._lab.refuse_gone()
            raise LabError(f"the keeper of lab {self._lab.name} ended while it handled '{request.verb}'") from error
        return protocol.decode_answer(request, message)


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
