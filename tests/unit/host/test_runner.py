"""A program that is visited through a leash: as if it ran here, and it ends however we end."""

from __future__ import annotations

import signal
import subprocess

import pytest
from builders.processes import Child, python, until_ended
from builders.tables import table

BOUND_S = 20.0
VISIT = """
import sys
from testbed.host import runner
sys.exit(runner.run_under_watchdog([sys.executable, "-m", "testbed_agents.watchdog", "--stdin", "--", *sys.argv[1:]]))
"""


def visit(*argv: str, before: str = "", **options: object) -> Child:
    return python(before + VISIT, *argv, **{"stdin": subprocess.DEVNULL, **options})


@table("script, status", {"none": ("exit 0", 0), "its own": ("exit 7", 7), "a signal": ("kill -9 $$", 137)})
def test_the_status_is_the_programs(script: str, status: int) -> None:
    with visit("sh", "-c", script) as ours:
        assert ours.wait(BOUND_S) == status


def test_our_stdin_is_its_own() -> None:
    with visit("wc", "-c", stdin=subprocess.PIPE) as ours:
        output, _ = ours.communicate("x" * 500_000, timeout=BOUND_S)
        assert int(output) == 500_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_however_we_end(number: signal.Signals) -> None:
    with visit("sh", "-c", "echo $$; exec sleep 1000") as ours:
        pid = int(ours.read_line())
        ours.send_signal(number)
        ours.wait(BOUND_S)
    until_ended(pid)


def test_an_interrupt_is_the_programs_to_hear() -> None:
    """As `testbed exec` has it."""
    deaf = "import signal; signal.signal(signal.SIGINT, lambda *_: None)"
    script = "trap 'echo heard; exit 9' INT; echo on; while :; do sleep 0.05; done"
    with visit("sh", "-c", script, before=deaf) as ours:
        assert ours.read_line() == "on"
        ours.send_signal(signal.SIGINT)
        assert ours.read_line() == "heard"
        assert ours.wait(BOUND_S) == 9
