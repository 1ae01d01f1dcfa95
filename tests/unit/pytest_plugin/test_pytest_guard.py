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
    def told(self) -> list[tuple[str, str, str | None]]:
        said = map(json.loads, self.stdin.getvalue().splitlines())
        return [(it["do"], it["name"], it["state"]) for it in said]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    made: list[Child] = []

    def start(*words: object, **options: object) -> Child:
        made.append(Child())
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return made


def test_one_guard_hears_of_every_lab(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = guard.Guard()
    monkeypatch.setenv("TESTBED_STATE", "/state")
    ours.remember("a")
    monkeypatch.delenv("TESTBED_STATE")
    ours.remember("b")
    ours.forget("a")
    (child,) = children
    assert child.told == [("remember", "a", "/state"), ("remember", "b", None), ("forget", "a", None)]


def test_the_next_guard_hears_of_what_the_last_one_knew(children: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = guard.Guard()
    monkeypatch.setenv("TESTBED_STATE", "/state")
    ours.remember("a")
    monkeypatch.delenv("TESTBED_STATE")
    ours.remember("b")
    ours.forget("b")
    children[0].ended = -9
    ours.remember("c")
    assert children[1].told == [("remember", "a", "/state"), ("remember", "c", None)]


def test_a_guard_that_is_gone_breaks_no_test(children: list[Child]) -> None:
    class Gone(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    ours = guard.Guard()
    ours.remember("a")
    children[0].stdin = Gone()
    ours.remember("b")
    children[0].ended = -9
    ours.remember("c")
    assert [name for _, name, _ in children[1].told] == ["a", "b", "c"]
