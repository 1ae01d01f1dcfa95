"""Reliable messages between two ranks: a header and a tensor, delivered once and in order even if connections break.

gloo cannot serve a peer that is slow on purpose: a ``recv`` that times out while idle closes the pair for good. So
strategies whose sites do not step together use TCP connections of their own, on the ranks' addresses on the fabric.

A :class:`Channel` outlives its connections. Each message has a sequence number; the sender keeps it until the receiver
has acknowledged it, and after a break both send how many they have received, so the sender begins again with the first
one that is missing. A receiver hands a number to its owner only once: a message whose acknowledgement was lost is sent
again, and dropped. So no break of a connection loses a message, or applies one twice.

Each frame ends with a keyed BLAKE2b of its bytes. The key is the job's token, which the ranks exchange over their
process group; a frame of anyone else ends the connection. Lengths are checked against bounds before a frame is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["TOKEN_BYTES", "Channel", "Connector", "Header", "Listener", "MessageError"]

Header = Mapping[str, Any]
"""What a message has beside its tensor; must be JSON of at most ``MOST_HEADER_BYTES``."""

Received = Callable[[Header, Tensor], None]
"""Takes a message: its header and its bytes, (bytes,) uint8. Called by one thread at a time."""

TOKEN_BYTES = 32
MOST_HEADER_BYTES = 1 << 16
CONNECT_S = 2.0
"""Bound of one attempt to connect: long enough for any fiber on earth, short enough to try again soon after a cut."""
RECONNECT_S = 0.2
GREET_S = 5.0
"""Time for the first frame of a connection."""
SILENCE_MS = 5000
"""A connection whose peer acknowledges nothing for so long is given up, and made again. TCP alone would wait for its
own next retransmission, which comes later the longer a cut lasts."""
MOST_UNIDENTIFIED = 64
"""Connections whose channel is not known yet."""

_MAGIC = b"tbp1"
_HEAD = struct.Struct("!4sBQIQ")
"""Magic, kind, number, bytes of the header, bytes of the tensor."""
_MAC_BYTES = 16
_GREETING, _MESSAGE, _RECEIVED = 1, 2, 3


class MessageError(Exception):
    """A peer sent what no rank of this job sends; the message says what."""


@dataclass(frozen=True)
class _Frame:
    kind: int
    number: int
    header: bytes = b""
    payload: memoryview = field(default_factory=lambda: memoryview(b""))

    def write(self, connection: socket.socket, token: bytes) -> None:
        head = _HEAD.pack(_MAGIC, self.kind, self.number, len(self.header), len(self.payload)) + self.header
        mac = hashlib.blake2b(head, key=token, digest_size=_MAC_BYTES)
        mac.update(self.payload)
        connection.sendall(head)
        if self.payload:
            connection.sendall(self.payload)
        connection.sendall(mac.digest())

    @classmethod
    def read(cls, connection: socket.socket, token: bytes, most_bytes: int) -> _Frame:
        """Read a frame. Raises OSError when the connection ends, MessageError for a frame of anyone else."""
        head = _receive(connection, _HEAD.size)
        magic, kind, number, header_bytes, payload_bytes = _HEAD.unpack(head)
        if magic != _MAGIC or header_bytes > MOST_HEADER_BYTES or payload_bytes > most_bytes:
            raise MessageError(f"expected a message of at most {most_bytes} bytes, got one of {payload_bytes}")
        header, payload = _receive(connection, header_bytes), _receive(connection, payload_bytes)
        mac = hashlib.blake2b(head, key=token, digest_size=_MAC_BYTES)
        mac.update(header)
        mac.update(payload)
        if not hmac.compare_digest(mac.digest(), bytes(_receive(connection, _MAC_BYTES))):
            raise MessageError("expected a message of this job, got one with another token")
        return cls(kind, number, bytes(header), memoryview(payload))


class Channel:
    """One direction each way between this rank and a peer. ``name`` is the same at both, and unique among the peer's.

    ``most_bytes``: of a tensor that may be received. ``received`` takes the peer's messages, in order, once each.
    """

    def __init__(self, name: str, token: bytes, most_bytes: int, received: Received) -> None:
        self.name, self._token, self._most_bytes, self._take = name, token, most_bytes, received
        self.failure: BaseException | None = None
        """What ``received`` or the connecting thread raised; nothing is delivered after it."""
        self._changed = threading.Condition()
        self._serving = threading.Lock()
        self._connection: socket.socket | None = None
        self._newest: socket.socket | None = None
        """Of those that were made for this channel; only it may become ``_connection``."""
        self._waiting: deque[_Frame] = deque()
        """Not acknowledged yet, in order."""
        self._made = self._sent = self._received = self._acknowledged = 0
        """Numbers of the last message made, sent on this connection, received, and acknowledged to the peer."""
        self._disconnected_since: float | None = time.monotonic()
        self._closed = False

    def send(self, header: Header, tensor: Tensor | None = None) -> None:
        """Give a message away; returns at once. ``tensor``: contiguous, on the CPU, not changed afterwards."""
        written = json.dumps(header).encode()
        if len(written) > MOST_HEADER_BYTES:
            raise ValueError(f"expected a header of at most {MOST_HEADER_BYTES} bytes, got {len(written)}")
        payload = memoryview(b"") if tensor is None else memoryview(tensor.view(torch.uint8).numpy().data)
        with self._changed:
            self._made += 1
            self._waiting.append(_Frame(_MESSAGE, self._made, written, payload))
            self._changed.notify_all()

    @property
    def undelivered(self) -> int:
        """The number of messages that the peer has not acknowledged."""
        with self._changed:
            return len(self._waiting)

    @property
    def disconnected_s(self) -> float:
        """How long there has been no connection; 0 while there is one."""
        with self._changed:
            return 0.0 if self._disconnected_since is None else time.monotonic() - self._disconnected_since

    @property
    def closed(self) -> bool:
        with self._changed:
            return self._closed

    def close(self, disconnected_s: float | None = None) -> bool:
        """Deliver what is left, then end; return whether all was delivered. Idempotent.

        Gives up after ``disconnected_s`` without a connection; while there is one, the peer reads on. None: at once.
        """
        with self._changed:
            while not (done := self._closed or (not self._waiting and self._acknowledged == self._received)):
                if disconnected_s is None:
                    break
                if self._disconnected_since is None:
                    self._changed.wait()
                    continue
                left_s = self._disconnected_since + disconnected_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            self._closed = True
            self._drop()
        return done

    def fail(self, error: BaseException) -> None:
        """End at once, because of ``error``, which its owner will find in :attr:`failure`."""
        self.failure = error
        self.close()

    def run_connected(self, connection: socket.socket) -> None:
        """Use a connection that this side has made, until it breaks. Raises OSError or MessageError."""
        connection.settimeout(GREET_S)
        with self._changed:
            self._newest = connection
        with self._serving:
            self._greet(connection)
            greeting = _Frame.read(connection, self._token, 0)
            self._serve(connection, greeting)

    def run_accepted(self, connection: socket.socket, greeting: _Frame) -> None:
        """Use a connection that the peer has made, until it breaks. Raises OSError or MessageError.

        The connection that it replaces is ended first, so that nothing is still being received from it. One that the
        peer has replaced meanwhile is not used: over a cut fiber nothing shows that its other end is gone.
        """
        with self._changed:
            self._newest = connection
            self._drop()
        with self._serving:
            if self._newest is not connection:
                return
            self._greet(connection)
            self._serve(connection, greeting)

    def _greet(self, connection: socket.socket) -> None:
        header = json.dumps({"channel": self.name}).encode()
        _Frame(_GREETING, self._received, header).write(connection, self._token)
        self._acknowledged = self._received

    def _serve(self, connection: socket.socket, greeting: _Frame) -> None:
        if greeting.kind != _GREETING:
            raise MessageError(f"expected a greeting, got a frame of kind {greeting.kind}")
        connection.settimeout(None)
        with self._changed:
            if self._closed or self._newest is not connection:
                return
            self._forget(greeting.number)
            self._sent = greeting.number
            self._connection, self._disconnected_since = connection, None
            self._changed.notify_all()
        writer = threading.Thread(target=self._write, args=(connection,), name=f"messages-{self.name}", daemon=True)
        writer.start()
        try:
            self._read(connection)
        finally:
            with self._changed:
                if self._connection is connection:
                    self._drop()
            writer.join()

    def _read(self, connection: socket.socket) -> None:
        while True:
            frame = _Frame.read(connection, self._token, self._most_bytes)
            with self._changed:
                if self._connection is not connection:
                    return
            if frame.kind == _RECEIVED:
                with self._changed:
                    self._forget(frame.number)
                    self._changed.notify_all()
            elif frame.kind != _MESSAGE or frame.number > self._received + 1:
                raise MessageError(f"expected message {self._received + 1}, got {frame.number}")
            elif frame.number == self._received + 1:  # else it was delivered, and its acknowledgement was lost
                self._deliver(frame)

    def _deliver(self, frame: _Frame) -> None:
        payload = (
            torch.frombuffer(frame.payload, dtype=torch.uint8) if frame.payload else torch.empty(0, dtype=torch.uint8)
        )
        try:
            self._take(json.loads(frame.header), payload)
        except BaseException as error:
            self.fail(error)
            raise MessageError(f"cannot use a message of {self.name}: {error}") from error
        with self._changed:
            self._received += 1
            self._changed.notify_all()

    def _write(self, connection: socket.socket) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._connection is not connection or self._has_news())
                    if self._connection is not connection:
                        return
                    number, frame = self._received, self._next()
                if self._acknowledged < number:
                    _Frame(_RECEIVED, number).write(connection, self._token)
                    with self._changed:
                        self._acknowledged = number
                        self._changed.notify_all()
                if frame is not None:
                    frame.write(connection, self._token)
                    with self._changed:
                        self._sent = frame.number
        except OSError:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the reader

    def _has_news(self) -> bool:
        return self._acknowledged < self._received or self._sent < self._made

    def _next(self) -> _Frame | None:
        return next((frame for frame in self._waiting if frame.number > self._sent), None)

    def _forget(self, number: int) -> None:
        """Forget messages up to ``number``, which the peer has received. Raises MessageError for one not made yet."""
        if number > self._made:
            raise MessageError(f"expected an acknowledgement of at most {self._made}, got {number}")
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection, self._disconnected_since = None, time.monotonic()
        self._changed.notify_all()


class Connector:
    """Keeps a channel connected to a peer's :class:`Listener`, from the address ``own``, until the channel is closed.

    It also ends with the thread that made it: a trainer that failed must not go on sending.
    """

    def __init__(self, channel: Channel, own: str, peer: tuple[str, int]) -> None:
        self._channel, self._own, self._peer = channel, own, peer
        self._owner = threading.current_thread()
        threading.Thread(target=self._run, name=f"connect-{channel.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self._channel.closed and self._owner.is_alive():
                with (
                    contextlib.suppress(OSError, MessageError),
                    socket.create_connection(self._peer, CONNECT_S, (self._own, 0)) as connection,
                ):
                    _tune(connection)
                    self._channel.run_connected(connection)
                time.sleep(RECONNECT_S)
        except Exception as error:  # a bug, or no room for a thread: else no thread would connect again
            self._channel.fail(error)


class Listener:
    """Listens on ``own``, an address on the fabric, for the peers of registered channels. ``port`` is any free one."""

    def __init__(self, own: str, token: bytes) -> None:
        self._token = token
        self._channels: dict[str, Channel] = {}
        self._owner = threading.current_thread()
        self._unidentified = threading.BoundedSemaphore(MOST_UNIDENTIFIED)
        self._closed = False
        self._listener = socket.create_server((own, 0), family=socket.AF_INET6 if ":" in own else socket.AF_INET)
        self._listener.settimeout(0.5)
        self.port: int = self._listener.getsockname()[1]

    def add(self, channel: Channel) -> Channel:
        """Register a channel before :meth:`open`."""
        self._channels[channel.name] = channel
        return channel

    def open(self) -> None:
        """Begin to accept connections."""
        threading.Thread(target=self._run, name="listener", daemon=True).start()

    def close(self) -> None:
        self._closed = True

    def _run(self) -> None:
        with self._listener:
            while self._owner.is_alive() and not self._closed:
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:  # of one connection, or no room for its descriptor
                    time.sleep(RECONNECT_S)
                    continue
                if not self._unidentified.acquire(blocking=False):
                    connection.close()
                    continue
                try:
                    threading.Thread(
                        target=self._identify, args=(connection,), name="listener-peer", daemon=True
                    ).start()
                except RuntimeError:  # no room for a thread; the peer connects again
                    self._unidentified.release()
                    connection.close()

    def _identify(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, MessageError, ValueError, KeyError, TypeError):
            try:
                _tune(connection)
                connection.settimeout(GREET_S)
                greeting = _Frame.read(connection, self._token, 0)
                channel = self._channels[json.loads(greeting.header)["channel"]]
            finally:
                self._unidentified.release()
            channel.run_accepted(connection, greeting)


def _tune(connection: socket.socket) -> None:
    """Send small frames at once, and give a silent peer up."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)


def _receive(connection: socket.socket, count: int) -> bytearray:
    """Read exactly ``count`` bytes. Raises OSError when the connection ends before."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        # Over a slow fiber data arrives in small pieces. The kernel collects them, so that not every piece takes the
        # GIL from the trainer.
        count = connection.recv_into(view, len(view), socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        view = view[count:]
    return data
