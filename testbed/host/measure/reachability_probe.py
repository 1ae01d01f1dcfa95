"""Probe which addresses answer: detects a cut that leaves the carrier up (a silent cut).

Opens a TCP connection to a port without a listener. The other kernel refuses it (RFC 9293, 3.10.7.1), which needs no
program there and proves that packets pass in both directions.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from testbed.errors import HostError
from testbed.host.linux import namespace

__all__ = ["BOUND_S", "answering"]

PORT: Final = 9
"""Discard (RFC 863): usually without a listener; an accepted connection counts as an answer too."""

BOUND_S: Final = 3.0
"""Longer than any round trip on Earth; an address without an answer by then is unreachable."""

AGAIN_S: Final = 0.3
"""Retry interval after a lost packet, shorter than TCP's own second."""


def answering(path: Path, addresses: Collection[str], bound_s: float = BOUND_S) -> frozenset[str]:
    """Return those of ``addresses`` (IPv4) that answer probes from the network namespace at ``path``.

    Returns as soon as all have answered, after ``bound_s`` at the latest. Raises HostError.
    """
    try:
        return namespace.inside(path, lambda: _ask(addresses, bound_s))
    except OSError as error:
        raise HostError(f"cannot probe reachability from {path.name}: {error.strerror}") from error


def _ask(addresses: Collection[str], bound_s: float) -> frozenset[str]:
    heard: set[str] = set()
    until = time.monotonic() + bound_s
    poll = select.poll()
    with contextlib.ExitStack() as opened:
        asked: dict[int, tuple[socket.socket, str]] = {}
        while len(heard) < len(set(addresses)) and (now := time.monotonic()) < until:
            for address in set(addresses) - heard:
                one = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                # An accepted connection is reset at once on close, without waiting for the other side.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                if _is_answer(status := one.connect_ex((address, PORT))):
                    heard.add(address)
                elif status == errno.EINPROGRESS:
                    asked[one.fileno()] = one, address
                    poll.register(one, select.POLLOUT)
            again = min(until, now + AGAIN_S)
            while set(addresses) - heard and (left := again - time.monotonic()) > 0:
                for number, _ in poll.poll(left * 1000):
                    poll.unregister(number)
                    one, address = asked.pop(number)
                    if _is_answer(one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                        heard.add(address)
    return frozenset(heard)


def _is_answer(status: int) -> bool:
    """Return whether the other host answered: accepted or refused. Other errors are local, or a router's."""
    return status in (0, errno.ECONNREFUSED, errno.ECONNRESET)
