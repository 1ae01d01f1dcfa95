"""Number of tries of a quantity, and waits for free cores between them."""

from __future__ import annotations

import pytest

from testbed.lab import packet_log
from testbed.lab.packet_log import TRIES, tries


def test_each_try_but_the_first_waits_for_free_cores_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    monkeypatch.setattr(packet_log, "wait_until_free", order.append)
    for attempt in tries(order.append):
        order.append(attempt)
    messages = [call for call in order if isinstance(call, str)]
    assert [call for call in order if not isinstance(call, str)] == [1, 1.0, 2, 3.0, 3]
    assert TRIES == 3
    assert messages == [f"waiting for free cores, at most {most} s" for most in (1, 3)]


def test_nothing_is_waited_for_where_the_first_try_was_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_log, "wait_until_free", lambda most_s: pytest.fail("waited"))
    assert next(iter(tries(pytest.fail))) == 1
