"""A TCP connection between every two ranks, with messages that cannot be mistaken for one another.

Both ends of a connection are bound to their ranks' addresses of TESTBED_ADDRESSES, so it goes through the fiber. Each
message carries its call and its step within the call: a late one is an error, never a wrong answer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

HELLO = struct.Struct("<8sqq")  # magic, attempt, rank
MAGIC = b"tb-ring\0"
HEADER = struct.Struct("<qqq")  # call, step, bytes that follow
RETRY_S = 0.05


class MeshError(Exception):
    """A rank is unreachable, does not answer in time, or sends an unexpected message."""


@dataclass(frozen=True)
class Part:
    """A message of a call: bytes to, or room for bytes from, ``rank``. Both sides number it with the same ``step``."""

    rank: int
    step: int
    data: memoryview


class Mesh:
    """The connections of one attempt; ranks are the world's."""

    def __init__(self, rank: int, addresses: Sequence[str], port: int, attempt: int, deadline: float) -> None:
        """Connect to the lower ranks and accept the higher ones, until ``deadline`` (CLOCK_MONOTONIC)."""
        self._rank, self._attempt = rank, attempt
        self._peers: dict[int, socket.socket] = {}
        try:
            with socket.create_server((addresses[rank], port), backlog=len(addresses)) as server:
                for peer in range(rank):
                    self._peers[peer] = self._call(peer, addresses[rank], (addresses[peer], port), deadline)
                while len(self._peers) < len(addresses) - 1:
                    self._answer(server, len(addresses), deadline)
        except OSError as error:
            self.close()
            raise MeshError(f"rank {rank} cannot listen on {addresses[rank]}:{port}: {error.strerror}") from error
        except MeshError:
            self.close()
            raise
        for connection in self._peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def close(self) -> None:
        """Reset all connections, so that ranks that wait for this one notice at once."""
        for connection in self._peers.values():
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        self._peers.clear()

    def exchange(self, call: int, timeout_s: float, sent: Part | None, awaited: Part | None) -> None:
        """Send a part and, at the same time, receive one. Raises MeshError if nothing moves for ``timeout_s``."""
        pending: list[_Transfer] = []
        if sent:
            pending.append(_Outgoing(self._peer(sent.rank), call, sent))
        if awaited:
            pending.append(_Incoming(self._peer(awaited.rank), call, awaited))
        while pending := [transfer for transfer in pending if not transfer.advance()]:
            poller, masks = select.poll(), dict[int, int]()
            for transfer in pending:  # both may use the same connection
                number = transfer.connection.fileno()
                masks[number] = masks.get(number, 0) | transfer.awaits
            for number, mask in masks.items():
                poller.register(number, mask)
            if not poller.poll(timeout_s * 1000):
                raise MeshError(" and ".join(f"nothing {transfer.lacks} for {timeout_s:g} s" for transfer in pending))

    def _peer(self, rank: int) -> socket.socket:
        if rank not in self._peers:
            raise MeshError("the connections were closed after an error; join again")
        return self._peers[rank]

    def _call(self, peer: int, own: str, address: tuple[str, int], deadline: float) -> socket.socket:
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection = socket.create_connection(address, timeout=left, source_address=(own, 0))
                connection.sendall(HELLO.pack(MAGIC, self._attempt, self._rank))
                return connection
            except OSError:  # the peer does not listen yet, or the fiber is down
                time.sleep(max(0.0, min(RETRY_S, deadline - time.monotonic())))
        raise MeshError(f"rank {peer} cannot be reached at {address[0]}:{address[1]}")

    def _answer(self, server: socket.socket, size: int, deadline: float) -> None:
        missing = [rank for rank in range(self._rank + 1, size) if rank not in self._peers]
        try:
            server.settimeout(max(deadline - time.monotonic(), 1e-3))
            connection, _ = server.accept()
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            hello = connection.recv(HELLO.size, socket.MSG_WAITALL)
        except TimeoutError:
            raise MeshError(f"ranks {missing} did not connect") from None
        except ConnectionError:
            return
        if len(hello) == HELLO.size:
            magic, attempt, rank = HELLO.unpack(hello)
            if magic == MAGIC and attempt == self._attempt and rank in missing:
                self._peers[rank] = connection
                return
        connection.close()


class _Transfer(Protocol):
    """A message in transfer."""

    connection: socket.socket
    awaits: int
    lacks: str

    def advance(self) -> bool:
        """Move what can be moved without waiting; return whether the message is complete."""
        ...


class _Outgoing:
    awaits = select.POLLOUT

    def __init__(self, connection: socket.socket, call: int, part: Part) -> None:
        self.connection, self._peer = connection, part.rank
        self._left = [memoryview(HEADER.pack(call, part.step, part.data.nbytes)), part.data]
        self.lacks = f"went to rank {part.rank}"

    def advance(self) -> bool:
        while self._left:
            try:
                moved = self.connection.sendmsg(self._left)
            except BlockingIOError:
                return False
            except OSError as error:
                raise MeshError(f"rank {self._peer}: {error.strerror}") from error
            while self._left and moved >= self._left[0].nbytes:
                moved -= self._left.pop(0).nbytes
            if moved:
                self._left[0] = self._left[0][moved:]
        return True


class _Incoming:
    awaits = select.POLLIN

    def __init__(self, connection: socket.socket, call: int, part: Part) -> None:
        self.connection, self._call, self._part = connection, call, part
        self._header = bytearray(HEADER.size)
        self._left = memoryview(self._header)
        self._understood = False
        self.lacks = f"came from rank {part.rank}"

    def advance(self) -> bool:
        while True:
            while self._left.nbytes:
                try:
                    moved = self.connection.recv_into(self._left)
                except BlockingIOError:
                    return False
                except OSError as error:
                    raise MeshError(f"rank {self._part.rank}: {error.strerror}") from error
                if not moved:
                    raise MeshError(f"rank {self._part.rank} closed its connection")
                self._left = self._left[moved:]
            if self._understood:
                return True
            self._understand()
            self._left = self._part.data

    def _understand(self) -> None:
        is_there = HEADER.unpack(self._header)
        if is_there != (self._call, self._part.step, self._part.data.nbytes):
            raise MeshError(
                f"rank {self._part.rank}: expected (call, step, bytes) "
                f"{(self._call, self._part.step, self._part.data.nbytes)}, got {is_there}"
            )
        self._understood = True
