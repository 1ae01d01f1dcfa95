"""Steps of outer optimizers: twice the same exchange is a mistake, two exchanges at the end of a job are none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.checkers.codecs import outer_steps
from testbed.core.records.operation_record import OuterStep

STEP = OuterStep(
    attempt=1,
    step=20,
    name="outer.1",
    at=(3, 5),
    before=(1.0, 2.0),
    momentum_before=(0.0, 0.0),
    gradient=(0.5, -0.25),
    after=(0.5, 2.25),
    momentum_after=(0.5, -0.25),
    rate=1.0,
    momentum=0.0,
    before_crc32="a",
    after_crc32="b",
    restarted=True,
)


def _texts(*steps: OuterStep) -> list[str]:
    records: Any = SimpleNamespace(outer={0: steps})
    return [it.text for it in outer_steps(records).findings]


def test_outer_steps_of_the_same_gradient_twice_are_an_exchange_applied_twice() -> None:
    again = replace(STEP, before=STEP.after, after=(0.0, 2.5), before_crc32="b", after_crc32="c", restarted=False)
    assert _texts(STEP, again) == ["outer.1: rank 0: an exchange was applied twice"]
    assert _texts(STEP, replace(again, step=21)) == []


def test_outer_steps_at_the_end_may_be_followed_by_a_last_exchange() -> None:
    crcs: Any = {"before_crc32": "b", "after_crc32": "c"}
    last = replace(STEP, before=STEP.after, gradient=(0.25, 0.25), after=(0.25, 2.0), restarted=False, **crcs)
    assert _texts(STEP, last) == []
    text = "outer.1: rank 0: the outer state is not the one that step 20 left"
    assert _texts(STEP, replace(last, before_crc32="x")) == [text]


# The second of two pushes, N = 2, c = 0.25, of which the momentum is the mean of both: active = 1 - 0.5 + 0.25.
DELAYED = replace(
    STEP,
    momentum=0.5,
    momentum_before=(0.0, 1.0),
    gathered_before=(1.0, 0.5),
    gathered_after=(0.0, 0.0),
    momentum_after=(0.75, 0.5 + 0.125),
    after=(1.0 - 0.75 * 0.5 * 0.75 - 0.25, 2.0 - 0.75 * 0.5 * 0.625 + 0.125),
    delay=2,
    activation=0.25,
    number=2,
)


def test_outer_steps_of_delayed_nesterov_are_recomputed() -> None:
    assert _texts(DELAYED) == []
    between = replace(
        DELAYED,
        number=3,
        momentum_after=DELAYED.momentum_before,
        gathered_after=(1.5, 0.25),
        after=(1.0 - 0.25, 2.0 - 0.25 * 0.5 * 1.0 + 0.125),
    )
    assert _texts(between) == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"after": (1.0, 2.0)}, "the outer parameter of element 3 became 1, expected 0.46875"),
        ({"momentum_after": (1.5, 1.0)}, "the outer momentum of element 3 became 1.5, expected 0.75"),
        ({"gathered_after": (1.5, 0.25)}, "the sum of pushes of element 3 became 1.5, expected 0"),
    ],
)
def test_outer_steps_of_delayed_nesterov_that_are_wrong_are_found(wrong: dict[str, Any], text: str) -> None:
    assert _texts(replace(DELAYED, **wrong)) == [f"outer.1: rank 0: {text}"]


def test_outer_steps_of_delayed_nesterov_are_numbered_without_a_gap() -> None:
    after = replace(DELAYED, step=21, number=4, before_crc32="b", restarted=False)
    assert _texts(DELAYED, after) == ["outer.1: rank 0: step 4 of the outer optimizer follows its step 2"]
