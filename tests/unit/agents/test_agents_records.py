"""Step records: whole lines, kept through a kill, and a plain sentence when the disk does not take them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import json_files
from testbed_agents.recording.records import Records, RecordsError

from testbed.lab.jobs.reported_steps import StepTail


def test_records_are_lines_of_json_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rank-0.jsonl"
    for _ in range(2):  # a job, and the same rank's next
        records = Records(path)
        records.write("job", t=1.5)
        records.write("step", step=1, t_begin=2.0)
        records.close()
    assert (
        json_files.read_lines(path)
        == [
            {"kind": "job", "t": 1.5},
            {"kind": "step", "step": 1, "t_begin": 2.0},
        ]
        * 2
    )


def test_a_line_that_a_full_disk_tore_takes_no_other_with_it(tmp_path: Path) -> None:
    """Neither of those who write on, nor of those who follow it as it grows."""
    path = tmp_path / "rank-0.jsonl"
    path.write_text('{"kind": "job", "attempt": 1}\n{"kind": "step", "step": 1}\n{"kind": "st')
    tail = StepTail(path)
    tail.read()
    assert tail.step == 1
    Records(path).write("step", step=2)
    tail.read()
    assert tail.step == 2
    assert path.read_text().splitlines()[-1] == '{"kind": "step", "step": 2}'


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    program = (
        "import os, pathlib, signal, sys; from testbed_agents.recording.records import Records\n"
        "records = Records(pathlib.Path(sys.argv[1]))\n"
        "for step in range(100): records.write('step', step=step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == -signal.SIGKILL
    assert [record["step"] for record in json_files.read_lines(path)] == list(range(100))


def test_a_full_disk_is_said() -> None:
    records = Records(Path("/dev/full"))
    with pytest.raises(RecordsError, match=r"cannot write /dev/full: No space left on device"):
        records.write("step", step=1)
    records.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordsError, match=r"cannot write .*rank-0\.jsonl: (Not a directory|File exists)"):
        Records(tmp_path / "file" / "rank-0.jsonl")


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    records = Records(tmp_path / "rank-0.jsonl")
    records.write("end", status="stopped")
    records.close()
    records.close()
    with pytest.raises(RecordsError, match="closed"):
        records.write("step", step=9)
    assert (tmp_path / "rank-0.jsonl").read_text().count("\n") == 1


def test_json_has_no_infinity(tmp_path: Path) -> None:
    records = Records(tmp_path / "rank-0.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        records.write("step", train_loss=float("nan"))
    assert (tmp_path / "rank-0.jsonl").read_text() == ""
    records.close()
