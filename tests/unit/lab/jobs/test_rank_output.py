"""The streams of a rank are read to their end, and leave no descriptor behind."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import rank_output


def test_a_rank_s_streams_are_closed_when_it_has_ended(tmp_path: Path) -> None:
    """Each rank of each job has two, and a program in Python may keep all of its jobs."""
    run = RunDirectory.create(tmp_path, "run")
    out, errors = list[str](), list[str]()
    child = subprocess.Popen(["sh", "-c", "echo a; echo b >&2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    pipes = {str(Path(f"/proc/self/fd/{stream.fileno()}").readlink()) for stream in (child.stdout, child.stderr)}
    rank_output.copy(0, "rank 0", child, run, (out.append, errors.append))
    assert child.wait() == 0
    assert (out, errors) == (["[rank 0] a"], ["[rank 0] b"])
    assert not pipes & open_files()


def open_files() -> set[str]:
    files = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # of the listing itself
            files.add(str(file.readlink()))
    return files
