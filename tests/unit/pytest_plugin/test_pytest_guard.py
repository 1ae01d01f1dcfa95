"""The guard of pytest-testbed: what it is told, also after it was ended itself."""

from __future__ import annotations

import io
import json
import subprocess
from typing import Any

import pytest

from testbed.pytest_plugin import guard


class Child:
    """In place of the guard's process."""

    def __init__(self) -> None:
        self.stdin: Any = io.BytesIO()
        self.ended: int | None = None

    def poll(self) -> int | None:
        return self.ended

    @property
    def messages(self) -> list[str]:
        """The messages, such as ``remember a /state``."""
        messages = map(json.loads, self.stdin.getvalue().splitlines())
        return [f"{message['do']} {message['name']} {message['state']}" for message in messages]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    begun: list[Child] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: begun.append(Child()) or begun[-1])  # type: ignore[func-returns-value]
    return begun


@pytest.fixture
def remembering(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> guard.Guard:
    """A guard of the labs a and b."""
    ours = guard.Guard()
    monkeypatch.setenv("TESTBED_STATE", "/state")
    ours.remember("a")
    monkeypatch.delenv("TESTBED_STATE")
    ours.remember("b")
    return ours


def test_one_guard_is_sent_every_lab(children: list[Child], remembering: guard.Guard) -> None:
    remembering.forget("a")
    (child,) = children
    assert child.messages == ["remember a /state", "remember b None", "forget a None"]


def test_the_next_guard_is_sent_what_the_last_one_had(children: list[Child], remembering: guard.Guard) -> None:
    remembering.forget("b")
    children[0].ended = -9
    remembering.remember("c")
    assert children[1].messages == ["remember a /state", "remember c None"]


def test_a_guard_that_is_gone_breaks_no_test(children: list[Child], remembering: guard.Guard) -> None:
    class Gone(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    children[0].stdin = Gone()
    remembering.remember("d")
    children[0].ended = -9
    remembering.remember("c")
    assert [message.split()[1] for message in children[1].messages] == ["a", "b", "d", "c"]
