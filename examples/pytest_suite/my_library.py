"""A collective library in place of yours: sums vectors over a ring of TCP connections. Standard library only."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import threading
import time


class Ring:
    """One rank of the ring, configured by torchrun's variables. A wait longer than ``timeout_s`` is a TimeoutError."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._timeout_s = timeout_s
        own = self._listen()
        addresses = self._meet(own.getsockname()[1])
        following = (self.rank + 1) % self.size
        self._right = self._connect(tuple(addresses[following]))
        self._left, _ = own.accept()
        self._left.settimeout(timeout_s)
        own.close()

    def all_reduce(self, values: list[float]) -> list[float]:
        """Return the sum over all ranks: every vector goes once around, P - 1 times its bytes over each connection."""
        total, passing = array.array("d", values), array.array("d", values)
        for _ in range(self.size - 1):
            passing = self._exchange(passing)
            total = array.array("d", (a + b for a, b in zip(total, passing, strict=True)))
        return total.tolist()

    def _exchange(self, vector: array.array[float]) -> array.array[float]:
        """Send ours to the right and receive from the left at the same time, or all ranks would deadlock."""
        sending = threading.Thread(target=self._give, args=(vector.tobytes(),))
        sending.start()
        try:
            (length,) = struct.unpack("!Q", self._take(8))
            return array.array("d", self._take(length))
        finally:
            sending.join(self._timeout_s)

    def _give(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the receiving side reports it
            self._right.sendall(struct.pack("!Q", len(data)) + data)

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._left.recv(min(count - len(data), 1 << 20))
            if not part:
                raise ConnectionError(f"rank {(self.rank - 1) % self.size} has closed its connection")
            data += part
        return data

    def _meet(self, port: int) -> list[tuple[str, int]]:
        """Return where each rank listens; rank 0 collects the addresses and sends them to all."""
        master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if self.rank:
            with self._connect(master) as line, line.makefile("rw") as stream:
                stream.write(json.dumps([self.rank, line.getsockname()[0], port]) + "\n")
                stream.flush()
                return json.loads(stream.readline())
        with socket.create_server(master) as server, contextlib.ExitStack() as stack:
            server.settimeout(self._timeout_s)
            addresses, lines = {0: (master[0], port)}, []
            while len(addresses) < self.size:
                stream = stack.enter_context(stack.enter_context(server.accept()[0]).makefile("rw"))
                rank, address, theirs = json.loads(stream.readline())
                addresses[rank] = (address, theirs)
                lines.append(stream)
            found = [addresses[rank] for rank in range(self.size)]
            for stream in lines:
                stream.write(json.dumps(found) + "\n")
                stream.flush()
            return found

    def _listen(self) -> socket.socket:
        own = socket.create_server(("", 0))
        own.settimeout(self._timeout_s)
        return own

    def _connect(self, where: tuple[str, int]) -> socket.socket:
        """Connect, retrying while the peer does not listen yet."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return socket.create_connection(where, self._timeout_s)
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *exception: object) -> None:
        self._right.close()
        self._left.close()
