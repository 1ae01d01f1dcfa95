"""Scrape metrics in Prometheus text format over HTTP, from many exporters side by side."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Scraped", "scrape_all"]

K = TypeVar("K")

REQUEST: Final = b"GET /metrics HTTP/1.0\r\n\r\n"
MOST_BYTES: Final = 1 << 20
"""A longer answer is malformed."""
CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class Scraped:
    """The answer of one exporter at ``t`` (CLOCK_MONOTONIC): samples by ``name{label="value"}``, labels sorted.

    ``why`` says why there is no answer: ``timeout``, ``refused``, ``malformed`` or an error of the network; empty with
    one.
    """

    t: float
    values: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


class _Exchange(Generic[K]):
    """One HTTP exchange on a socket that never blocks."""

    def __init__(self, key: K, address: tuple[str, int]) -> None:
        self.key = key
        self.received = bytearray()
        self.done: Scraped | None = None
        self._unsent = REQUEST
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        code = self.socket.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._fail(code)

    @property
    def events(self) -> int:
        return select.POLLOUT if self._unsent else select.POLLIN

    def proceed(self, names: Collection[str]) -> None:
        """Send or receive what is possible now."""
        try:
            if self._unsent:
                if code := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self._fail(code)
                    return
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
                return
            data = self.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error.errno or errno.EIO)
            return
        self.received += data
        if len(self.received) > MOST_BYTES:
            self.done = Scraped(time.monotonic(), why="malformed")
        elif not data:
            self.done = _read(bytes(self.received), names)

    def _fail(self, code: int) -> None:
        self.done = _failed(code)


def scrape_all(targets: Mapping[K, tuple[str, int]], bound_s: float, names: Collection[str] = ()) -> dict[K, Scraped]:
    """Scrape ``/metrics`` of all (address, port) at once; return after ``bound_s`` seconds at most, and never raise.

    ``names``: the metrics to keep, all others are skipped unread; none: keep all. Connects from the network namespace
    of the calling thread. Exporters must close the connection after their answer, as HTTP/1.0 has it.
    """
    until = time.monotonic() + bound_s
    scraped: dict[K, Scraped] = {}
    open_now: dict[int, _Exchange[K]] = {}
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        for key, address in targets.items():
            try:
                exchange = _Exchange(key, address)
            except OSError as error:  # no descriptor left
                scraped[key] = _failed(error.errno or errno.EIO)
                continue
            stack.callback(exchange.socket.close)
            if exchange.done is not None:
                scraped[key] = exchange.done
                continue
            open_now[exchange.socket.fileno()] = exchange
            poll.register(exchange.socket, exchange.events)
        while open_now and (left_s := until - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1e3):
                exchange = open_now[descriptor]
                exchange.proceed(names)
                if exchange.done is None:
                    poll.modify(descriptor, exchange.events)
                    continue
                scraped[exchange.key] = exchange.done
                poll.unregister(descriptor)
                del open_now[descriptor]
                exchange.socket.close()
    late = Scraped(time.monotonic(), why="timeout")
    return {key: scraped.get(key, late) for key in targets}


def _failed(code: int) -> Scraped:
    why = {errno.ECONNREFUSED: "refused"}.get(code) or os.strerror(code)
    return Scraped(time.monotonic(), why=why)


def _read(answer: bytes, names: Collection[str]) -> Scraped:
    """Return the samples of a whole HTTP answer."""
    t = time.monotonic()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    status = first.split()
    malformed = Scraped(t, why="malformed")
    if len(status) < 2 or not status[0].startswith(b"HTTP/") or status[1] != b"200":
        return malformed
    lengths = [
        value for name, _, value in (field.partition(b":") for field in fields) if name.lower() == b"content-length"
    ]
    if any(value.strip() != str(len(body)).encode() for value in lengths):
        return malformed  # the exporter ended meanwhile
    lines = body.decode(errors="replace").splitlines()
    if names:
        # Parsing costs 20 us a sample, and an exporter has a hundred.
        lines = [line for line in lines if line.partition("{")[0].partition(" ")[0] in names]
    try:
        values = {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines))
            for sample in family.samples
        }
    except Exception:  # the parser lets several kinds of error pass, and the text is another program's
        return malformed
    return Scraped(t, values)


def _series(name: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return name
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"
