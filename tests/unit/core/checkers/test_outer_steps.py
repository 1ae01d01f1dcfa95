"""Steps of outer optimizers: twice the same exchange is a mistake, two exchanges at the end of a job are none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

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
