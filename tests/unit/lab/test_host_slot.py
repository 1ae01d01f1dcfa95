"""The host's slot, with holders that are processes of their own."""

from __future__ import annotations

import signal
import subprocess
import threading

import pytest
from builders.held_slot import holder

from testbed.errors import HostBusy
from testbed.lab import own_lab
from testbed.lab.progress import Silent

__all__ = ["holder"]  # a fixture


class Phases(Silent):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.waits = threading.Event()

    def phase(self, name: str, detail: str = "") -> None:
        self.seen.append(f"{name} {detail}")
        self.waits.set()


def test_second_holder_is_refused_with_the_name_of_the_first(holder: subprocess.Popen[str]) -> None:
    message = rf"found run metro-40km in lab first \(pid {holder.pid}\), since 20.*; wait for its end with --wait"
    with pytest.raises(HostBusy, match=message) as refused, own_lab.held("run x", "second", Silent()):
        pass
    assert refused.value.exit_code == 3


def test_slot_is_free_however_its_holder_ends(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert own_lab.holder() is None
    with own_lab.held("run x", "second", Silent()):
        assert str(own_lab.holder()).startswith("run x in lab second (pid ")
        with pytest.raises(HostBusy), own_lab.held("run y", "third", Silent()):
            pass
    assert own_lab.holder() is None


def test_waiting_for_the_slot_names_the_holder_and_ends_with_it(holder: subprocess.Popen[str]) -> None:
    progress = Phases()
    threading.Thread(target=lambda: holder.kill() if progress.waits.wait(20) else None, daemon=True).start()
    with own_lab.held("run x", "second", progress, wait=True):
        pass
    assert [phase.partition(", since")[0] for phase in progress.seen] == [
        f"wait for run metro-40km in lab first (pid {holder.pid})"
    ]
