"""Talking to a lab's keeper: one JSON object a line over the socket in the lab's folder."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any

from testbed import errors
from testbed.errors import LabError
from testbed.host.lab_folder import LabFolder

PATIENCE_S = 60.0
"""How long a keeper may take for one answer before it counts as stuck."""


class Connection:
    """One conversation. Raises LabError when there is no keeper."""

    def __init__(self, lab: LabFolder, patience_s: float = PATIENCE_S) -> None:
        self._lab = lab
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

    def call(self, verb: str, notice: Callable[[str], None] | None = None, **arguments: Any) -> Any:
        """The keeper's answer. Its errors are raised here as what they were there."""
        try:
            self._stream.write(json.dumps({"call": verb, **arguments}).encode() + b"\n")
            self._stream.flush()
            while True:
                line = self._stream.readline()
                if not line:
                    self._lab.refuse_gone()
                    raise LabError(f"the keeper of lab {self._lab.name} ended in the middle of '{verb}'")
                answer = json.loads(line)
                if "notice" in answer:
                    if notice is not None:
                        notice(answer["notice"])
                    continue
                break
        except TimeoutError as error:
            raise LabError(f"the keeper of lab {self._lab.name} is stuck in '{verb}'") from error
        except OSError as error:
            self._lab.refuse_gone()
            raise LabError(f"the keeper of lab {self._lab.name} ended in the middle of '{verb}'") from error
        if "error" in answer:
            raise _as_raised(answer["kind"], answer["error"])
        return answer["ok"]


def _as_raised(kind: str, message: str) -> errors.TestbedError:
    found = getattr(errors, kind, None)
    plain = isinstance(found, type) and issubclass(found, errors.TestbedError)
    if not plain or kind in ("FileMistakes", "UnknownName", "MissingTool"):
        # These take more than a message to make; their words are what matters here.
        error = LabError(message)
        error.exit_code = found.exit_code if plain else 3  # type: ignore[union-attr]
        return error
    assert isinstance(found, type) and issubclass(found, errors.TestbedError)
    return found(message)


def call(lab: LabFolder, verb: str, **arguments: Any) -> Any:
    """One question, one answer."""
    with Connection(lab) as connection:
        return connection.call(verb, **arguments)


def answers(lab: LabFolder) -> bool:
    """Whether there is a keeper to talk to."""
    try:
        call(lab, "hello")
    except LabError:
        return False
    return True
