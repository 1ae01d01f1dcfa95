"""The keeper's socket: each line gets an answer, and whoever comes later does too."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_stalls
import pytest
from builders.tables import table
from oracles import oracle

from testbed.errors import LabError
from testbed.keeper.service import Caller, Service

WAIT_S = 10.0
GO, WAIT = b'{"call": "go"}', b'{"call": "wait"}'
WENT = {"ok": {"verb": "go"}}
LONG = b'{"call": "go", "plan": "%s"}'


def thread_and_policy() -> tuple[int, int]:
    """Return this thread's id and its scheduling policy, as the kernel reports it (proc_pid_stat(5))."""
    thread = threading.get_native_id()
    fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return thread, int(fields[41 - 3])


class Server:
    """A service whose threads are recorded. ``wait`` is answered once ``hold`` is set."""

    def __init__(self, path: Path) -> None:
        self.path, self.closed, self.hold = path, threading.Event(), threading.Event()
        self.decoded, self.answered = list[tuple[int, int]](), list[tuple[int, int]]()
        self.service: Service | None = None

    def begin(self, answer: Callable[[Any, Caller], object] | None = None) -> None:
        self.service = Service(
            self.path, answer or self.answer, lambda caller: self.closed.set(), *([] if answer else [self.decode])
        )

    def decode(self, message: object) -> object:
        self.decoded.append(thread_and_policy())
        return message

    def until_decoded(self, count: int) -> None:
        oracle.until(lambda: len(self.decoded) == count, WAIT_S, f"{count} are decoded")

    def answer(self, message: Any, caller: Caller) -> object:
        self.answered.append(thread_and_policy())
        verb = message.pop("call")
        if verb == "refuse":
            raise LabError("not today")
        if verb == "wait":
            self.hold.wait(WAIT_S)
        if verb == "cut":
            caller.notice("on it")
        return {"verb": verb, **message}

    @contextlib.contextmanager
    def connected(self, *lines: bytes, count: int = 1) -> Iterator[Any]:
        """Connect ``count`` times and send the lines on each connection; yield one connection, or all of them."""
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
            for connection in connections:
                connection.settimeout(WAIT_S)
                connection.connect(str(self.path))
                connection.sendall(b"".join(line + b"\n" for line in lines))
            yield connections if count > 1 else connection

    def ask(self, *lines: bytes) -> list[dict[str, Any]]:
        """Send line after line; return all messages, until each line has its answer."""
        messages: list[dict[str, Any]] = []
        with self.connected() as connection, connection.makefile("rwb") as stream:
            for line in lines:
                stream.write(line + b"\n")
                stream.flush()
                messages.append(json.loads(stream.readline()))
                while "notice" in messages[-1]:
                    messages.append(json.loads(stream.readline()))
        return messages


def read(connection: socket.socket, count: int = 1) -> list[dict[str, Any]]:
    with connection.makefile("rb") as stream:
        return [json.loads(stream.readline()) for _ in range(count)]


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Server]:
    """A server that the test begins."""
    server = Server(tmp_path / "socket")
    yield server
    server.hold.set()
    assert server.service
    server.service.close()


@pytest.fixture
def server(idle: Server) -> Server:
    idle.begin()
    return idle


def test_an_answer_and_the_notices_before_it(server: Server) -> None:
    assert server.ask(b'{"call": "cut", "link": "north"}') == [
        {"notice": "on it"},
        {"ok": {"verb": "cut", "link": "north"}},
    ]


@table(
    "line, error",
    {
        "a refused request": (b'{"call": "refuse"}', "not today"),
        **{
            f"a line that is not JSON: {line[:2]!r}": (line, "expected one JSON object per line: .*")
            for line in (b"{", b"\xff\xfe", b"[" * 100_000, b"")
        },
    },
)
def test_an_error_keeps_its_kind_and_the_connection(server: Server, line: bytes, error: str) -> None:
    refused, answer = server.ask(line, GO)
    assert re.fullmatch(error, refused.pop("error"), re.DOTALL)
    assert refused == {"kind": "LabError"}
    assert answer == WENT


@pytest.mark.parametrize("line", [b"[1, 2]", b"{"])
def test_a_line_that_is_no_request_is_answered_and_the_end_is_noticed(server: Server, line: bytes) -> None:
    (message,) = server.ask(line)
    assert message["kind"] == "LabError"
    assert server.closed.wait(WAIT_S)
    assert server.ask(GO) == [WENT]


# ---- threads and their priority


def may_be_realtime() -> bool:
    done = []

    def attempt() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            done.append(True)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(done)


def test_requests_are_decoded_before_anything_has_real_time_priority(server: Server) -> None:
    for _ in range(50):
        server.ask(GO)
    assert {policy for _, policy in server.decoded} == {os.SCHED_OTHER}
    assert {thread for thread, _ in server.decoded}.isdisjoint({thread for thread, _ in server.answered})
    if may_be_realtime():
        assert {policy for _, policy in server.answered} == {os.SCHED_FIFO}


def test_no_thread_is_begun_per_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ask(GO)
    begun: Any = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (begun.append(thread), start(thread))[1])
    for _ in range(100):  # a connection each, one after the other
        server.ask(GO, GO)
    assert begun == []
    assert len({thread for thread, _ in server.answered}) <= 2


def test_a_request_that_waits_holds_up_no_other(server: Server) -> None:
    with server.connected(WAIT, count=20) as waiting:
        oracle.until(lambda: len(server.answered) == 20, WAIT_S, "all wait")
        assert server.ask(GO) == [WENT]
        server.hold.set()
        for connection in waiting:
            assert read(connection) == [{"ok": {"verb": "wait"}}]


# ---- what the system refuses


def test_a_lack_of_file_descriptors_passes(monkeypatch: pytest.MonkeyPatch, idle: Server) -> None:
    accept, tries = socket.socket.accept, []

    def flaky(self: socket.socket) -> tuple[socket.socket, Any]:
        tries.append(self)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", flaky)
    idle.begin()
    assert idle.ask(GO) == [WENT]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While set, the system refuses threads that answer, as at a limit of processes."""
    refused, start = threading.Event(), threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if refused.is_set() and thread.name == "answer":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return refused


def test_without_further_threads_requests_wait_for_those_there_are(server: Server, full: threading.Event) -> None:
    full.set()
    with server.connected(WAIT, count=5) as waiting:
        server.until_decoded(5)
        server.hold.set()
        for connection in waiting:
            assert read(connection) == [{"ok": {"verb": "wait"}}]
    assert server.ask(GO, GO) == [WENT] * 2
    assert len({thread for thread, _ in server.answered}) == 2


def test_threads_that_were_refused_are_begun_later(server: Server, full: threading.Event) -> None:
    full.set()
    with contextlib.ExitStack() as stack:
        for number in range(1, 6):
            stack.enter_context(server.connected(WAIT))
            server.until_decoded(number)
        full.clear()
        assert server.ask(GO) == [WENT], "beside five that wait"
        oracle.until(lambda: len(server.answered) == 6, WAIT_S, "and those that had waited for a thread have one")
        server.hold.set()


def test_without_any_thread_a_request_is_refused_and_its_end_is_noticed(full: threading.Event, idle: Server) -> None:
    full.set()
    idle.begin()
    refusal = {"error": "the keeper cannot answer: the system lets it begin no thread", "kind": "LabError"}
    assert idle.ask(GO, GO) == [refusal] * 2
    assert idle.closed.wait(WAIT_S)
    full.clear()
    assert idle.ask(GO) == [WENT]


@pytest.mark.parametrize("broken", ["_receive", "_look", "_begin", "_want"])
def test_a_connection_that_fails_is_closed_and_no_other_one(
    monkeypatch: pytest.MonkeyPatch, server: Server, broken: str
) -> None:
    work, failed = getattr(Service, broken), list[object]()

    def once(service: Service, connection: Any, *rest: Any) -> Any:
        if not failed:
            failed.append(connection)
            raise MemoryError("no memory for this one")
        return work(service, connection, *rest)

    monkeypatch.setattr(Service, broken, once)
    with server.connected(count=2) as (first, second):
        first.sendall(GO + b"\n")
        received = b""
        with contextlib.suppress(ConnectionResetError):  # of a socket that is closed with a request unread
            while data := first.recv(4096):
                received += data
        assert b"error" not in received
        assert server.closed.wait(WAIT_S), "what belongs to it is released"
        second.sendall(GO + b"\n")
        assert read(second) == [WENT]


def test_an_error_of_the_selector_ends_nothing(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    select, failed = selectors.DefaultSelector.select, list[object]()

    def twice(selector: Any, timeout: float | None = None) -> Any:
        if len(failed) < 2:
            failed.append(selector)
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", twice)
    for _ in range(3):
        assert server.ask(GO) == [WENT]
    assert len(failed) == 2


# ---- what a client may do to it


def test_requests_sent_at_once_are_answered_in_their_order(server: Server) -> None:
    with server.connected(*(b'{"call": "cut", "number": %d}' % number for number in range(200))) as connection:
        messages = read(connection, 400)
    assert messages[::2] == [{"notice": "on it"}] * 200
    assert [message["ok"]["number"] for message in messages[1::2]] == list(range(200))


def test_a_request_in_pieces_and_one_of_megabytes(server: Server) -> None:
    with server.connected() as connection:
        for piece in (b'{"ca', b'll": "go"', b"}\n"):
            connection.sendall(piece)
            assert server.ask(b'{"call": "other"}') == [{"ok": {"verb": "other"}}]
        connection.sendall(LONG % (b"x" * 5_000_000) + b"\n")
        assert read(connection, 2) == [WENT, {"ok": {"verb": "go", "plan": "x" * 5_000_000}}]


def test_one_that_reads_nothing_holds_up_no_other(server: Server) -> None:
    with server.connected() as deaf:
        deaf.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(1000):
                deaf.send(LONG % (b"x" * 1_000_000) + b"\n")
        assert server.ask(GO) == [WENT]
        server.closed.clear()
    assert server.closed.wait(WAIT_S), "its end is noticed"


def test_one_that_is_gone_in_the_middle_of_its_request(idle: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer goes nowhere; what belongs to it is released after the request, not during it."""
    order: Any = []
    monkeypatch.setattr(idle.closed, "set", lambda: order.append("closed"))
    idle.begin(lambda message, caller: (idle.hold.wait(WAIT_S), order.append("answered")))
    with idle.connected(b'{"call": "build"}'):
        pass
    idle.hold.set()
    oracle.until(lambda: order == ["answered", "closed"], WAIT_S, "it is released")


def test_a_subscriber_that_does_not_read_is_dropped(idle: Server) -> None:
    callers: list[Caller] = []
    idle.begin(lambda message, caller: callers.append(caller))
    with idle.connected(b'{"call": "subscribe"}'):
        oracle.until(lambda: callers, WAIT_S, "it is answered")
        update: Any = {"t": 1.0, "events": [{"t": 1.0, "event": "note", "text": "x" * 100_000}]}
        began_t = time.monotonic()
        for _ in range(200):
            callers[0].push(update)
        assert host_stalls.elapsed_s(began_t) < WAIT_S, "a push never waits"
        assert idle.closed.wait(WAIT_S)
