"""The host's slot, with holders that are processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.errors import HostBusy
from testbed.lab import host_slot
from testbed.lab.progress import Silent

HOLDS = """
from testbed.lab import host_slot
from testbed.lab.progress import Silent
with host_slot.held("run metro-40km", "first", Silent()):
    print("held", flush=True)
    input()
"""


class Phases(Silent):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.waits = threading.Event()

    def phase(self, name: str, detail: str = "") -> None:
        self.seen.append(f"{name} {detail}")
        self.waits.set()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.communicate()


def test_a_second_holder_is_refused_with_the_first_ones_name(other: subprocess.Popen[str]) -> None:
    words = rf"found run metro-40km in lab first \(pid {other.pid}\), since 20.*; wait for its end with --wait"
    with pytest.raises(HostBusy, match=words) as refused, host_slot.held("run x", "second", Silent()):
        pass
    assert refused.value.exit_code == 3


def test_the_slot_is_free_however_its_holder_ends(other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert host_slot.holder() is None
    with host_slot.held("run x", "second", Silent()):
        assert str(host_slot.holder()).startswith("run x in lab second (pid ")
        with pytest.raises(HostBusy), host_slot.held("run y", "third", Silent()):
            pass
    assert host_slot.holder() is None


def test_waiting_names_the_holder_and_ends_with_it(other: subprocess.Popen[str]) -> None:
    progress = Phases()
    threading.Thread(target=lambda: progress.waits.wait(20) and other.kill(), daemon=True).start()
    with host_slot.held("run x", "second", progress, wait=True):
        pass
    assert [it.partition(", since")[0] for it in progress.seen] == [
        f"wait for run metro-40km in lab first (pid {other.pid})"
    ]
