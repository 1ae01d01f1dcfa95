"""The keeper's socket: every line gets an answer, and whoever comes later does too."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
