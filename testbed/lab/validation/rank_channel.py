"""The two ends of one rank program: operations out, answers in, as JSON lines; never blocks on the program."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import termios
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

__all__ = ["Lines"]

_LONGEST_LINE: Final = 1 << 20
"""A longer line is not part of the protocol: it goes to the log."""

_READ: Final = 1 << 16
_MOST_READ: Final = 4 * _READ
"""Bytes per call, more than a pipe holds: a flood from one program must not delay the others and the clock."""


class Log(Protocol):
    """Receives what is not part of the protocol."""

    def write(self, data: bytes, /) -> object: ...


class Lines:
    """``into`` and ``out`` are file descriptors, owned from now on. A line that is no JSON object goes to ``log``."""

    def __init__(self, into: int, out: int, log: Log) -> None:
        self._into, self.out, self._log = into, out, log
        self._rest = b""
        self.open = True
        """Whether more may come; False after the other end was closed."""
        for descriptor in (into, out):
            os.set_blocking(descriptor, False)

    def say(self, message: Mapping[str, Any]) -> bool:
        """Send a message; return False if the program has ended or does not read any more."""
        line = json.dumps(message).encode() + b"\n"
        try:
            return os.write(self._into, line) == len(line)
        except OSError:  # BlockingIOError too: the program is stopped and its pipe is full
            return False

    @property
    def unread(self) -> bool:
        """Whether the program has yet to read something that was sent (FIONREAD, pipe(7))."""
        left = array.array("i", [0])
        try:
            fcntl.ioctl(self._into, termios.FIONREAD, left)
        except OSError:
            return False
        return left[0] > 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have arrived, a part of them in a flood; call it when ``out`` is readable."""
        taken = 0
        while self.open and taken < _MOST_READ:
            try:
                data = os.read(self.out, _READ)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            taken += len(data)
            if not data:
                self.open = False
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                yield from self._parse(line)
            if len(self._rest) > _LONGEST_LINE:
                self._log.write(self._rest + b"\n")
                self._rest = b""
        if not self.open and self._rest:
            line, self._rest = self._rest, b""
            yield from self._parse(line)

    def close(self) -> None:
        """Close both ends: the program sees end of input."""
        for descriptor in (self._into, self.out):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._into = self.out = -1
        self.open = False

    def _parse(self, line: bytes) -> Iterator[dict[str, Any]]:
        value = None
        if line.lstrip().startswith(b"{"):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(line)
        if isinstance(value, dict):
            yield value
        elif line:
            self._log.write(line + b"\n")
