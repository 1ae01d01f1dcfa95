"""Patterns of progress that take too long are given up in time, whatever a program prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.core.workload.members import Member
from testbed.core.workload.progress_source import LinePattern
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs.progress_output import ProgressOutput, ProgressRecords


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"(?P<step>\d+).*.*.*.*x", "1" * 1000),
        (r"(?P<step>\d*\d*\d*\d*\d*\d*\d*x)", "1" * 1000),
        (r"step (?P<step>\d+).*.*.*.*x", "all is well, " * 10 + "step 1" * 100),
    ],
)
def test_a_slow_pattern_is_given_up_on_its_first_line(tmp_path: Path, pattern: str, line: str) -> None:
    run = RunDirectory.create(tmp_path, "run")
    records, warned = ProgressRecords(run, Member(0, "east-0", "east"), 1, None), list[str]()
    stream = ProgressOutput(LinePattern((pattern,)), records, warned.append).stream()
    stream.feed(1.0, f"{line}\n".encode() * 60)  # the whole line once would take hours
    assert len(warned) == 1 and "no further lines are read" in warned[0]
    stream.feed(2.0, f"{line}\n".encode() * 60)
    assert len(warned) == 1


def test_an_ordinary_pattern_reads_long_lines(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "run")
    records, warned = ProgressRecords(run, Member(0, "east-0", "east"), 1, None), list[str]()
    pattern = r"step (?P<step>\d+).*loss (?P<train_loss>\S+).*tok/s (?P<speed>[\d,]+)"
    stream = ProgressOutput(LinePattern((pattern,)), records, warned.append).stream()
    stream.feed(1.0, b"".join(b"step %d %s loss 3.5 tok/s 7\n" % (it, b"x" * 900) for it in range(300)))
    assert (records.lines, warned) == (300, [])
    records.close()
