"""The first of several signals ends the work; the others cut nothing short."""

from __future__ import annotations

import os
import signal

import pytest

from testbed.errors import Interrupted
from testbed.lab.interruption import defer_interrupts, further_interrupts, interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_does_not_cut_short_what_the_first_has_begun(
    first: signal.Signals, second: signal.Signals
) -> None:
    before = {it: signal.getsignal(it) for it in (*SIGNALS, signal.SIGHUP)}
    done: list[str] = []
    with pytest.raises(Interrupted), interruptible():
        try:
            os.kill(os.getpid(), first)
            done.append("worked on")
        except KeyboardInterrupt:
            os.kill(os.getpid(), second)  # between the first one and the part that defers signals
            with defer_interrupts():
                os.kill(os.getpid(), second)
                done.append("written")
            os.kill(os.getpid(), second)
            raise
        finally:
            done.append("undone")
    assert done == ["written", "undone"]
    assert {it: signal.getsignal(it) for it in before} == before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_program_that_answers_ctrl_c_itself_keeps_its_handler() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_further_interrupts_are_heard_within_an_undo_and_interrupt_nothing() -> None:
    heard: list[str] = []
    with pytest.raises(Interrupted), interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            with defer_interrupts():
                with further_interrupts(lambda: heard.append("next")):
                    os.kill(os.getpid(), signal.SIGINT)
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                heard.append("undone")
    assert heard == ["next", "next", "undone"]
