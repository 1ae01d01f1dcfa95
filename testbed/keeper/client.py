"""Call the keeper of a lab over the socket in the lab's folder: each call of a method of ``KeeperApi`` is a request."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from testbed.errors import LabError
from testbed.host import lab_owner
from testbed.host.lab_folder import LabFolder
from testbed.keeper import protocol
from testbed.keeper.protocol import Update

if TYPE_CHECKING:
    from testbed.keeper.keeper_api import KeeperApi

__all__ = ["PATIENCE_S", "Connection", "answers", "keeper"]

PATIENCE_S = 60.0
"""How long a keeper may take for one answer before it counts as stuck."""


class Connection(contextlib.AbstractContextManager["Connection"]):
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
        self.keeper = cast("KeeperApi", _Requests(self._call))
        """Each call of a method is a request over this connection. Errors of the keeper are raised by the call."""
        self.on_notice: Callable[[str], object] = lambda text: None
        """Receives the notices before an answer."""

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's descriptor: readable between requests means that the keeper has ended."""
        return self._socket.fileno()

    def interrupt(self) -> None:
        """End the connection from another thread: a pending request gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def updates(self, since: int | None) -> Iterator[Update]:
        """Subscribe, and yield what the keeper pushes, until the connection ends, which is an error; send no other
        request over it.

        Raises LabError also where no update comes for the connection's patience.
        """
        for message in self._messages("subscribe", {"since": since}):
            if "update" in message:
                yield message["update"]
            else:
                protocol.decode_answer(message)

    def pushed(self) -> Iterator[Update]:
        """Yield what the keeper pushes over this connection by itself, however rarely, until the connection ends."""
        self._socket.settimeout(None)
        with contextlib.suppress(OSError, ValueError):  # its end, from either side
            while (line := self._stream.readline()).endswith(b"\n"):
                if "update" in (message := json.loads(line)):
                    yield message["update"]

    def _call(self, verb: str, arguments: dict[str, Any]) -> Any:
        messages = self._messages(verb, arguments)
        while "notice" in (message := next(messages)):
            self.on_notice(message["notice"])
        return protocol.decode_answer(message)

    def _messages(self, verb: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request, and yield what comes back, without end."""
        try:
            self._stream.write(protocol.encode({"call": verb, **arguments}))
            self._stream.flush()
            while (line := self._stream.readline()).endswith(b"\n"):  # else the end, perhaps within a line
                yield json.loads(line)
            raise ConnectionResetError(verb)
        except TimeoutError as error:
            raise LabError(
                f"the keeper of lab {self._lab.name} did not answer '{verb}' within {self._patience_s:g} s"
            ) from error
        except OSError as error:
            self._lab.refuse_gone()
            raise LabError(f"the keeper of lab {self._lab.name} ended while it handled '{verb}'") from error


class _Requests:
    """Turns the call of any method into a request."""

    def __init__(self, call: Callable[[str, dict[str, Any]], Any]) -> None:
        self._call = call

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda **arguments: self._call(verb, arguments)


def keeper(lab: LabFolder) -> KeeperApi:
    """Return the lab's keeper; each call of a method is a request over a connection of its own."""

    def call(verb: str, arguments: dict[str, Any]) -> Any:
        with Connection(lab) as connection:
            return connection._call(verb, arguments)

    return cast("KeeperApi", _Requests(call))


def answers(lab: LabFolder) -> bool:
    """Return whether the lab has a keeper that answers."""
    try:
        keeper(lab).hello()
    except LabError:
        return False
    return True
