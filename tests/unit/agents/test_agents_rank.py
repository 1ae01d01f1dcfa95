"""How a rank begins."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from testbed_agents import namespaces, rank


def test_a_rank_that_stays_who_it_is_has_the_variables_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "die_with", lambda parent: None)
    for name in ("TESTBED_SCRATCH", "TMPDIR"):
        monkeypatch.setenv(name, "before")
    message: dict[str, Any] = {"rank": 0, "node": "east-0", "site": "east", "namespaces": {}, "user": None}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message["metrics"] = taken.getsockname()  # so it begins, and no more
        for expected, said in (("before", {}), ("/x", {"TESTBED_SCRATCH": "/x", "TMPDIR": "/x"})):
            with pytest.raises(OSError, match="cannot serve /metrics"):
                rank.live({**message, "environment": said}, os.getpid(), taken)
            assert (os.environ["TESTBED_SCRATCH"], os.environ["TMPDIR"]) == (expected, expected)
