"""A timing test that fails while the host stalls this machine is skipped, with the share of time that was lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

from testbed.errors import TestbedError

MOST_STALLED = 0.25

FAILURES_BY_STALLS = (AssertionError, OSError, subprocess.SubprocessError, TestbedError)
"""Exceptions that stalls may cause; others are defects of the test."""

# A separate process at real-time priority: only the host delays it, not programs of this machine.
SLEEPER = """
import os, select, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))
print("ready", flush=True)
began = before = time.monotonic()
stalled = 0.0
while not select.select([0], [], [], 0.002)[0]:
    now = time.monotonic()
    if now - before > 0.004:
        stalled += now - before - 0.002
    before = now
print(stalled / (time.monotonic() - began))
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("timing") is None:
        return (yield)
    sleeper = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert sleeper.stdout is not None and sleeper.stdout.readline() == "ready\n"
    try:
        return (yield)
    except FAILURES_BY_STALLS as error:
        stalled = float(sleeper.communicate()[0])
        if stalled <= MOST_STALLED:
            raise
        figures = str(error).partition("\n")[0] or "failed"
        pytest.skip(
            f"the host stalled this machine for {stalled:.0%} of {item.name}, over {MOST_STALLED:.0%}: {figures}"
        )
    finally:
        sleeper.communicate()
