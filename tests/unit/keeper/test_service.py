"""The keeper's socket: every line gets an answer, and whoever comes later does too."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import host_stalls
import pytest
from oracles import oracle

from testbed.errors import LabError
from testbed.keeper.service import Caller, Service

WAIT_S = 10.0


def answer(message: Any, caller: Caller) -> object:
    verb = message.pop("call")
    if verb == "refuse":
        raise LabError("not today")
    caller.notice("on it")
    return {"verb": verb, **message}


@pytest.fixture
def closed() -> threading.Event:
    return threading.Event()


@pytest.fixture
def path(tmp_path: Path, closed: threading.Event) -> Iterator[Path]:
    service = Service(tmp_path / "socket", answer, lambda caller: closed.set())
    yield tmp_path / "socket"
    service.close()


def ask(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    """What is said until each line has its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        with connection.makefile("rwb") as stream:
            said: list[dict[str, Any]] = []
            for line in lines:
                stream.write(line + b"\n")
                stream.flush()
                said.append(json.loads(stream.readline()))
                while "notice" in said[-1]:
                    said.append(json.loads(stream.readline()))
            return said


def test_an_answer_and_what_is_said_before_it(path: Path) -> None:
    assert ask(path, b'{"call": "cut", "link": "north"}') == [
        {"notice": "on it"},
        {"ok": {"verb": "cut", "link": "north"}},
    ]


def test_a_refusal_keeps_its_kind_and_the_connection(path: Path) -> None:
    refused, *_, answered = ask(path, b'{"call": "refuse"}', b'{"call": "go"}')
    assert refused == {"error": "not today", "kind": "LabError"}
    assert answered == {"ok": {"verb": "go"}}


def test_what_is_no_request_is_answered_and_the_end_is_noticed(path: Path, closed: threading.Event) -> None:
    (said,) = ask(path, b"[1, 2]")
    assert said["kind"] == "LabError"
    assert closed.wait(WAIT_S)


def test_a_line_that_is_not_json_ends_the_connection_and_nothing_else(path: Path, closed: threading.Event) -> None:
    with contextlib.suppress(json.JSONDecodeError):
        ask(path, b"{")
    assert closed.wait(WAIT_S)
    assert ask(path, b'{"call": "go"}')[-1] == {"ok": {"verb": "go"}}


def test_a_lack_of_file_descriptors_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed: threading.Event
) -> None:
    accept, tries = socket.socket.accept, []

    def flaky(self: socket.socket) -> tuple[socket.socket, Any]:
        tries.append(self)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", flaky)
    service = Service(tmp_path / "socket", answer, lambda caller: closed.set())
    assert ask(tmp_path / "socket", b'{"call": "go"}')[-1] == {"ok": {"verb": "go"}}
    service.close()


@pytest.mark.parametrize("line", [b"{", b"\xff\xfe", b"[" * 100_000, b""])
def test_a_line_that_is_no_json_is_refused_and_the_next_one_is_answered(path: Path, line: bytes) -> None:
    refused, *_, answered = ask(path, line, b'{"call": "go"}')
    assert refused["kind"] == "LabError"
    assert refused["error"].startswith("expected one JSON object per line: ")
    assert answered == {"ok": {"verb": "go"}}


# ---- threads and their priority


class Scheduled:
    """Notes which thread decodes and which one answers, and how the kernel schedules it (proc_pid_stat(5))."""

    def __init__(self) -> None:
        self.decoded, self.answered = list[tuple[int, int]](), list[tuple[int, int]]()
        self.hold = threading.Event()

    def decode(self, message: object) -> object:
        self.decoded.append(self._me())
        return message

    def answer(self, message: Any, caller: Caller) -> object:
        self.answered.append(self._me())
        if message["call"] == "wait":
            self.hold.wait(WAIT_S)
        return {}

    @staticmethod
    def _me() -> tuple[int, int]:
        """(thread, scheduling policy), as the kernel says."""
        thread = threading.get_native_id()
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return thread, int(fields[41 - 3])


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[tuple[Path, Scheduled]]:
    made = Scheduled()
    service = Service(tmp_path / "socket", made.answer, lambda caller: None, made.decode)
    yield tmp_path / "socket", made
    made.hold.set()
    service.close()


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


def test_requests_are_decoded_before_anything_has_real_time_priority(scheduled: tuple[Path, Scheduled]) -> None:
    path, made = scheduled
    for _ in range(50):
        ask(path, b'{"call": "go"}')
    assert {policy for _, policy in made.decoded} == {os.SCHED_OTHER}
    assert {thread for thread, _ in made.decoded}.isdisjoint({thread for thread, _ in made.answered})
    if may_be_realtime():
        assert {policy for _, policy in made.answered} == {os.SCHED_FIFO}


def test_no_thread_is_begun_per_call(scheduled: tuple[Path, Scheduled], monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = scheduled
    ask(path, b'{"call": "go"}')
    begun: list[object] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (begun.append(thread), start(thread))[1])
    for _ in range(100):  # a connection each, one after the other
        ask(path, b'{"call": "go"}', b'{"call": "go"}')
    assert begun == []
    assert len({thread for thread, _ in made.answered}) <= 2


def test_a_request_that_waits_holds_up_no_other(scheduled: tuple[Path, Scheduled]) -> None:
    path, made = scheduled
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        for connection in waiting:
            connection.settimeout(WAIT_S)
            connection.connect(str(path))
            connection.sendall(b'{"call": "wait"}\n')
        oracle.until(lambda: len(made.answered) == 20, WAIT_S, "all wait")
        assert ask(path, b'{"call": "go"}') == [{"ok": {}}]
        made.hold.set()
        for connection in waiting:
            assert connection.makefile("rb").readline() == b'{"ok": {}}\n'


# ---- what the system refuses


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


def test_without_more_threads_requests_wait_for_those_there_are(
    full: threading.Event, scheduled: tuple[Path, Scheduled]
) -> None:
    path, made = scheduled
    full.set()
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(5)]
        for connection in waiting:
            connection.settimeout(WAIT_S)
            connection.connect(str(path))
            connection.sendall(b'{"call": "wait"}\n')
        oracle.until(lambda: len(made.decoded) == 5, WAIT_S, "all are heard")
        made.hold.set()
        for connection in waiting:
            assert connection.makefile("rb").readline() == b'{"ok": {}}\n'
    assert ask(path, b'{"call": "go"}', b'{"call": "go"}') == [{"ok": {}}] * 2
    assert len({thread for thread, _ in made.answered}) == 2


def test_threads_that_were_refused_are_begun_later(full: threading.Event, scheduled: tuple[Path, Scheduled]) -> None:
    path, made = scheduled
    full.set()
    with contextlib.ExitStack() as stack:
        for number in range(5):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(path))
            connection.sendall(b'{"call": "wait"}\n')
            oracle.until(lambda heard=number + 1: len(made.decoded) == heard, WAIT_S, "it is heard")
        full.clear()
        assert ask(path, b'{"call": "go"}') == [{"ok": {}}], "beside five that wait"
        oracle.until(lambda: len(made.answered) == 6, WAIT_S, "and those that had waited for a thread have one")
        made.hold.set()


def test_without_any_thread_a_request_is_refused_and_its_end_is_noticed(
    full: threading.Event, tmp_path: Path, closed: threading.Event
) -> None:
    full.set()
    service = Service(tmp_path / "socket", answer, lambda caller: closed.set())
    refused, again = ask(tmp_path / "socket", b'{"call": "go"}', b'{"call": "go"}')
    assert (
        refused
        == again
        == {"error": "the keeper cannot answer: the system lets it begin no thread"} | {"kind": "LabError"}
    )
    assert closed.wait(WAIT_S)
    full.clear()
    assert ask(tmp_path / "socket", b'{"call": "go"}')[-1] == {"ok": {"verb": "go"}}
    service.close()


@pytest.mark.parametrize("broken", ["_receive", "_look", "_begin", "_want"])
def test_a_connection_that_fails_is_closed_and_no_other_one(
    monkeypatch: pytest.MonkeyPatch, path: Path, closed: threading.Event, broken: str
) -> None:
    work, failed = getattr(Service, broken), list[object]()

    def once(service: Service, connection: Any, *more: Any) -> Any:
        if not failed:
            failed.append(connection)
            raise MemoryError("no memory for this one")
        return work(service, connection, *more)

    monkeypatch.setattr(Service, broken, once)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for connection in (first, second):
            connection.settimeout(WAIT_S)
            connection.connect(str(path))
        first.sendall(b'{"call": "go"}\n')
        said = b""
        with contextlib.suppress(ConnectionResetError):  # of a socket that is closed with a request unread
            while data := first.recv(4096):
                said += data
        assert b"error" not in said
        assert closed.wait(WAIT_S), "what belongs to it is released"
        second.sendall(b'{"call": "go"}\n')
        assert [json.loads(it) for it in read_lines(second, 2)][-1] == {"ok": {"verb": "go"}}


def read_lines(connection: socket.socket, number: int) -> list[bytes]:
    with connection.makefile("rb") as stream:
        return [stream.readline() for _ in range(number)]


def test_an_error_of_the_selector_ends_nothing(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    select, failed = selectors.DefaultSelector.select, list[object]()

    def twice(selector: Any, timeout: float | None = None) -> Any:
        if len(failed) < 2:
            failed.append(selector)
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return select(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", twice)
    for _ in range(3):
        assert ask(path, b'{"call": "go"}')[-1] == {"ok": {"verb": "go"}}
    assert len(failed) == 2


# ---- what a client may do to it


def test_requests_sent_at_once_are_answered_in_their_order(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        connection.sendall(b"".join(b'{"call": "%d"}\n' % number for number in range(200)))
        with connection.makefile("rb") as stream:
            said = [json.loads(stream.readline()) for _ in range(400)]
    assert [it["ok"]["verb"] for it in said if "ok" in it] == [str(number) for number in range(200)]


def test_a_request_in_pieces_and_one_of_megabytes(path: Path) -> None:
    long = b'{"call": "go", "plan": "%s"}' % (b"x" * 5_000_000)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        for piece in (b'{"ca', b'll": "go"', b"}\n"):
            connection.sendall(piece)
            assert ask(path, b'{"call": "other"}')[-1] == {"ok": {"verb": "other"}}
        connection.sendall(long + b"\n")
        with connection.makefile("rb") as stream:
            said = [json.loads(stream.readline()) for _ in range(4)]
    assert said[1] == {"ok": {"verb": "go"}}
    assert said[3] == {"ok": {"verb": "go", "plan": "x" * 5_000_000}}


def test_one_that_reads_nothing_holds_up_no_other(path: Path, closed: threading.Event) -> None:
    long = b'{"call": "go", "plan": "%s"}\n' % (b"x" * 1_000_000)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.setblocking(False)
        deaf.connect(str(path))
        with contextlib.suppress(BlockingIOError):
            for _ in range(1000):
                deaf.send(long)
        assert ask(path, b'{"call": "go"}')[-1] == {"ok": {"verb": "go"}}
        closed.clear()
    assert closed.wait(WAIT_S), "its end is noticed"


def test_one_that_is_gone_in_the_middle_of_its_request(tmp_path: Path) -> None:
    """Its answer goes nowhere; what belongs to it is released after the request, not during it."""
    order: list[str] = []
    hold = threading.Event()

    def answer(message: Any, caller: Caller) -> None:
        hold.wait(WAIT_S)
        order.append("answered")

    service = Service(tmp_path / "socket", answer, lambda caller: order.append("closed"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "socket"))
        connection.sendall(b'{"call": "build"}\n')
    hold.set()
    oracle.until(lambda: order == ["answered", "closed"], WAIT_S, "it is released")
    service.close()


def test_a_subscriber_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    callers: list[Caller] = []
    gone = threading.Event()
    service = Service(tmp_path / "socket", lambda message, caller: callers.append(caller), lambda caller: gone.set())
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.settimeout(WAIT_S)
        deaf.connect(str(tmp_path / "socket"))
        deaf.sendall(b'{"call": "subscribe"}\n')
        oracle.until(lambda: callers, WAIT_S, "it is heard")
        update: Any = {"t": 1.0, "events": [{"t": 1.0, "event": "note", "text": "x" * 100_000}]}
        began = time.monotonic()
        for _ in range(200):
            callers[0].push(update)
        assert host_stalls.elapsed_s(began) < WAIT_S, "a push never waits"
        assert gone.wait(WAIT_S)
    service.close()
