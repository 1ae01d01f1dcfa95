"""The fork server's end, whatever is known of its process."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

import pytest
from builders.tables import table

from testbed.host.fork_server import ForkServer, start
from testbed.host.linux import process


def test_one_whose_start_time_could_not_be_read_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of descriptors, /proc cannot be read; the process is a child all the same."""
    monkeypatch.setattr(process, "started", lambda pid: 0)
    gone = threading.Event()
    server = ForkServer(
        tmp_path / "log",
        lambda event: gone.set() if event["event"] == "gone" else None,
        start([sys.executable, "-c", "import time; time.sleep(600)"]),
    )
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    assert gone.wait(5)


@table("status, end", {"killed": (137, {"signal": 9}), "failed": (3, {"code": 3}), "done": (0, {"code": 0})})
def test_one_in_a_container_tells_signals_as_a_shell_does(tmp_path: Path, status: int, end: dict[str, int]) -> None:
    events: queue.Queue[dict[str, object]] = queue.Queue()
    child = start([sys.executable, "-c", f"import sys; sys.exit({status})"])
    ForkServer(tmp_path / "log", events.put, child, elsewhere=True)
    event = events.get(timeout=10)
    assert {key: value for key, value in event.items() if key in ("signal", "code")} == end
