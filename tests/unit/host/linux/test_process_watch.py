"""Processes that are watched for their end, with real ones."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

from builders.processes import Child
from oracles import oracle

from testbed.host.linux.process_watch import ProcessWatch


def sleeper() -> Child:
    return Child("sleep", 60)


def watchers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "processes"}


def test_each_end_is_told_once_by_its_name() -> None:
    of_other_tests = watchers()
    heard: queue.Queue[str] = queue.Queue()
    with sleeper() as first, sleeper() as other, sleeper() as gone:
        gone.kill()
        gone.wait()
        watch = ProcessWatch({"first": first.pid, "other": other.pid, "gone": gone.pid}, heard.put)
        assert heard.get(timeout=10) == "gone"
        other.kill()
        assert heard.get(timeout=10) == "other"
        watch.stop()
        oracle.until(lambda: watchers() <= of_other_tests, 10, "it stops")
    assert heard.empty()


def test_stopping_what_has_stopped_by_itself_writes_into_nobody_elses_file(tmp_path: Path) -> None:
    """When all have ended its descriptors are closed, and the next file that is opened gets their numbers."""
    of_other_tests = watchers()
    heard: queue.Queue[str] = queue.Queue()
    with sleeper() as only:
        watch = ProcessWatch({"only": only.pid}, heard.put)
        only.kill()
        assert heard.get(timeout=10) == "only"
    oracle.until(lambda: watchers() <= of_other_tests, 10, "it stops")
    files = [os.open(tmp_path / str(number), os.O_WRONLY | os.O_CREAT) for number in range(8)]
    try:
        watch.stop()
        watch.stop()
    finally:
        for file in files:
            os.close(file)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 8
