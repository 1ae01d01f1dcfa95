"""The keeper's end of its socket: requests are read and decoded by one thread at normal priority, and answered by
threads that have real-time priority (``protocol.py``).

Answering holds the interpreter's lock. At normal priority it would delay a fault that is due until the answering thread
gets a core again, so answers have the priority of faults. Reading has not: who sends a long or malformed line does
so at the cost of other commands, not of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from testbed.errors import LabError, TestbedError
from testbed.host.linux.scheduling import use_raised_priority, use_realtime_priority
from testbed.keeper import protocol
from testbed.keeper.event_log import log
from testbed.keeper.protocol import Update

__all__ = ["Answer", "Caller", "Decode", "Service"]

BUSY_S: Final = 0.05
"""Pause before the next attempt to accept a connection after one failed."""
CHUNK_BYTES: Final = 1 << 18
MOST_AHEAD_BYTES: Final = 1 << 20
"""How much is read ahead of a connection whose request is being answered."""
MOST_BEHIND_BYTES: Final = 1 << 23
"""A subscriber that leaves more than this unread is dropped: it is stopped, and its updates would fill the memory."""
FIRST_WORKERS: Final = 2
"""Threads begun at once: a command that waits for a fault must not delay the next command by the start of a thread."""


class Caller:
    """The connection that a request came over. Its identity owns what ends with the connection: a build, a schedule, a
    job's wait, a subscription.
    """

    def __init__(self, notice: Callable[[str], None], push: Callable[[Update], None] = lambda update: None) -> None:
        self.notice = notice
        """Sends progress ahead of the answer; a connection that is gone is ignored."""
        self.push = push
        """Sends an update without ever waiting; a connection that is gone is ignored."""


Answer = Callable[[Any, Caller], Any]
"""(decoded request, caller) to the answer; an exception becomes an error at the other end."""

Decode = Callable[[object], Any]
"""A message to a request. Raises LabError."""


class _Connection:
    """One connection. Only the thread that reads closes the socket; any thread may send."""

    def __init__(self, connected: socket.socket, wake: Callable[[_Connection], None]) -> None:
        connected.setblocking(False)
        self.socket, self._wake = connected, wake
        self.caller = Caller(self._notice, self._push)
        self.lock = threading.Lock()
        self.received = bytearray()
        self.searched = 0
        """Up to where ``received`` has no end of a line."""
        self.unsent = bytearray()
        self.answering = False
        self.ended = False
        """Whether the other end sends no more."""
        self.broken = False

    def send(self, message: dict[str, Any]) -> None:
        """Send now what the socket takes; the rest follows when it takes more."""
        line = protocol.encode(message)
        with self.lock:
            if self.broken:
                return
            if not self.unsent:
                try:
                    line = line[self.socket.send(line) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self.broken = True
                    line = b""
            if not line:
                return
            self.unsent += line
        self._wake(self)

    def flush(self) -> None:
        with self.lock:
            try:
                while self.unsent and not self.broken:
                    del self.unsent[: self.socket.send(memoryview(self.unsent)[:CHUNK_BYTES])]
            except BlockingIOError:
                pass
            except OSError:
                self.broken = True
            if self.broken:
                self.unsent.clear()

    def _notice(self, text: str) -> None:
        self.send({"notice": text})

    def _push(self, update: Update) -> None:
        if len(self.unsent) > MOST_BEHIND_BYTES:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # the reader sees its end
            return
        self.send({"update": update})


class _Workers:
    """Threads that answer requests at real-time priority: begun when all others are busy, kept for the next request.

    There are as many as there have ever been requests in hand at once; a connection has at most one in hand. Where the
    system refuses another thread (a limit of processes), work waits for those that there are.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        """Threads that wait, less the work that is queued for them: below 0 if the system refused threads."""
        self._begun = 0
        with self._lock:
            self._begin(FIRST_WORKERS)

    def submit(self, work: Callable[[], None]) -> None:
        """Have a thread do ``work``: at once, unless the system refuses a thread for it. Raises LabError if there is
        no thread at all."""
        with self._lock:
            self._begin(1)
            if not self._begun:
                raise LabError("the keeper cannot answer: the system lets it begin no thread")
            self._idle -= 1
        self._work.put(work)

    def _begin(self, wanted: int) -> None:
        """Begin threads until ``wanted`` are idle; also those that were refused earlier. Their creator has normal
        priority; each raises its own, once."""
        try:
            while self._idle < wanted:
                threading.Thread(target=self._run, name="answer", daemon=True).start()
                self._begun += 1
                self._idle += 1
        except RuntimeError as error:
            log(f"requests wait for one of {self._begun} threads: {error}")

    def _run(self) -> None:
        use_realtime_priority()
        while True:
            work = self._work.get()
            try:
                work()
            except Exception as error:
                log(f"a request failed: {error!r}")
            del work  # a closure would keep its connection until the next request
            with self._lock:
                self._idle += 1


class Service:
    """Listens at ``path``, for its owner alone. ``closed`` is called when the other end of a connection is gone."""

    def __init__(
        self,
        path: Path,
        answer: Answer,
        closed: Callable[[Caller], None],
        decode: Decode = lambda message: message,
    ) -> None:
        self._answer, self._closed, self._decode = answer, closed, decode
        self._workers = _Workers()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakes, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._look_at: set[_Connection] = set()
        """Connections whose state another thread has changed."""
        self._looking = threading.Lock()
        self._accept_again_t = 0.0
        self._closing = False
        threading.Thread(target=self._read, name="socket", daemon=True).start()

    def close(self) -> None:
        self._closing = True
        self._listener.close()
        self._wake_reader()

    # ---- the thread that reads

    def _read(self) -> None:
        use_raised_priority()
        while not self._closing:
            try:
                self._turn()
            except Exception as error:  # no error may end this thread: no other reads from connections
                if not self._closing:
                    log(f"the socket could not be read: {error!r}")
                    time.sleep(BUSY_S)

    def _turn(self) -> None:
        """Wait until something is ready, and attend to all that is."""
        resting_s = self._accept_again_t - time.monotonic()
        ready = self._selector.select(max(0.0, resting_s) if self._accept_again_t else None)
        if self._closing:
            return
        if self._accept_again_t and time.monotonic() >= self._accept_again_t:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._accept_again_t = 0.0
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._wakes:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakes, 4096)
                with self._looking:
                    waiting, self._look_at = self._look_at, set()
                for connection in waiting:
                    self._attend(connection, 0)
            else:
                self._attend(key.data, events)

    def _attend(self, connection: _Connection, events: int) -> None:
        """Receive, send and look; a connection where that fails is closed, and none of the others suffers."""
        try:
            if events & selectors.EVENT_READ:
                self._receive(connection)
            if events & selectors.EVENT_WRITE:
                connection.flush()
            self._look(connection)
        except Exception as error:
            log(f"a connection failed and is closed: {error!r}")
            with connection.lock:
                connection.broken = True
                connection.unsent.clear()
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(connection.socket)
            if not connection.answering:  # otherwise once it is answered: what belongs to it is released after that
                self._close(connection)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            if self._listener.fileno() >= 0:  # out of file descriptors for now: clients wait in the backlog
                self._selector.unregister(self._listener)
                self._accept_again_t = time.monotonic() + BUSY_S
            return
        try:
            self._selector.register(connected, selectors.EVENT_READ, _Connection(connected, self._wake))
        except OSError as error:
            log(f"a connection could not be accepted: {error!r}")
            connected.close()

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.received += data
        connection.ended = connection.ended or not data

    def _look(self, connection: _Connection) -> None:
        """Pass the next request on, if the last one is answered; close the connection if there will be none."""
        if connection.socket.fileno() < 0:
            return
        while not connection.answering and (not connection.unsent or connection.broken):
            if connection.broken or (line := self._line(connection)) is None:
                break
            self._begin(connection, line)
        over = connection.broken or (connection.ended and not connection.received and not connection.unsent)
        if over and not connection.answering:
            self._close(connection)
            return
        ahead = connection.answering and len(connection.received) > MOST_AHEAD_BYTES
        wanted = 0 if connection.ended or connection.broken or ahead else selectors.EVENT_READ
        wanted |= selectors.EVENT_WRITE if connection.unsent else 0
        self._want(connection, wanted)

    def _close(self, connection: _Connection) -> None:
        if connection.socket.fileno() < 0:
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.socket)
        with connection.lock:
            connection.broken = True
            connection.socket.close()

        def release() -> None:
            try:
                self._closed(connection.caller)
            except Exception as error:
                log(f"what belonged to a connection could not be released: {error!r}")

        try:
            self._workers.submit(release)
        except LabError:
            release()  # here: without any thread that answers, no client waits

    def _want(self, connection: _Connection, wanted: int) -> None:
        try:
            key = self._selector.get_key(connection.socket)
        except KeyError:
            if wanted:
                self._selector.register(connection.socket, wanted, connection)
            return
        if not wanted:
            self._selector.unregister(connection.socket)
        elif wanted != key.events:
            self._selector.modify(connection.socket, wanted, connection)

    @staticmethod
    def _line(connection: _Connection) -> bytes | None:
        """Return the next line; at the end of the connection also one without its end; None if there is none yet."""
        end = connection.received.find(b"\n", connection.searched)
        if end < 0:
            connection.searched = len(connection.received)
            if not (connection.ended and connection.received):
                return None
            end = len(connection.received)
        line = bytes(connection.received[:end])
        del connection.received[: end + 1]
        connection.searched = 0
        return line

    def _begin(self, connection: _Connection, line: bytes) -> None:
        try:
            request = self._decoded(line)
        except TestbedError as error:
            connection.send(protocol.refused(error))
            return
        connection.answering = True
        try:
            self._workers.submit(lambda: self._finish(connection, request))
        except LabError as error:
            connection.answering = False
            connection.send(protocol.refused(error))

    def _decoded(self, line: bytes) -> Any:
        try:
            message: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LabError(f"expected one JSON object per line: {error}") from error
        try:
            return self._decode(message)
        except TestbedError:
            raise
        except Exception as error:
            raise LabError(f"the keeper could not read the request: {error!r}") from error

    # ---- threads that answer

    def _finish(self, connection: _Connection, request: object) -> None:
        connection.send(self._reply(request, connection.caller))
        connection.answering = False
        # The reader must look where it holds something back: the next request, or the end.
        if connection.received or connection.ended or connection.broken:
            self._wake(connection)

    def _reply(self, request: object, caller: Caller) -> dict[str, Any]:
        try:
            return {"ok": self._answer(request, caller)}
        except TestbedError as error:
            return protocol.refused(error)
        except Exception as error:
            verb = getattr(request, "verb", "")
            log(f"{verb} failed: {error!r}")
            return protocol.refused(LabError(f"the keeper could not do '{verb}': {error!r}"))

    def _wake(self, connection: _Connection) -> None:
        with self._looking:
            self._look_at.add(connection)
        self._wake_reader()

    def _wake_reader(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")
