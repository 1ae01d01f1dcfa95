"""A program that is visited through a leash: as if it ran here, and it ends however we end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

BOUND_S = 20.0
VISIT = """
import sys
from testbed.host import runner
sys.exit(runner.run_under_watchdog([sys.executable, "-m", "testbed_agents.watchdog", "--stdin", "--", *sys.argv[1:]]))
"""


def visit(*argv: str, **more: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", VISIT, *argv], stdout=subprocess.PIPE, bufsize=0, **more)  # type: ignore[call-overload, no-any-return]


def gone(pid: int) -> bool:
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_the_programs(script: str, status: int) -> None:
    with visit("sh", "-c", script, stdin=subprocess.DEVNULL) as ours:
        assert ours.wait(BOUND_S) == status


def test_our_stdin_is_its_own() -> None:
    with visit("wc", "-c", stdin=subprocess.PIPE) as ours:
        said, _ = ours.communicate(b"x" * 500_000, timeout=BOUND_S)
        assert int(said) == 500_000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_however_we_end(number: signal.Signals) -> None:
    with visit("sh", "-c", "echo $$; exec sleep 1000", stdin=subprocess.DEVNULL) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        ours.send_signal(number)
        ours.wait(BOUND_S)
    assert gone(pid)


def test_an_interrupt_is_the_programs_to_hear() -> None:
    """As `testbed exec` has it."""
    deaf = "import signal; signal.signal(signal.SIGINT, lambda *_: None)" + VISIT
    script = "trap 'echo heard; exit 9' INT; echo on; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [sys.executable, "-c", deaf, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"on\n"
        ours.send_signal(signal.SIGINT)
        assert ours.stdout.readline() == b"heard\n"
        assert ours.wait(BOUND_S) == 9
