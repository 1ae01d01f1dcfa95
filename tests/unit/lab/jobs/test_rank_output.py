"""The streams of a rank are read to their end, and leave no descriptor behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import rank_output


def test_a_rank_s_streams_are_closed_when_it_has_ended(tmp_path: Path) -> None:
    """Each rank of each job has two, and a program in Python may keep all of its jobs."""
    run = RunDirectory.create(tmp_path, "run")
    out: list[str] = []
    errors: list[str] = []
    child = subprocess.Popen(["sh", "-c", "echo a; echo b >&2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    pipes = {str(Path(f"/proc/self/fd/{it.fileno()}").readlink()) for it in (child.stdout, child.stderr)}
    rank_output.copy(0, "rank 0", child, run, (out.append, errors.append))
    assert child.wait() == 0
    assert (out, errors) == (["[rank 0] a"], ["[rank 0] b"])
    assert not pipes & open_files()


def open_files() -> set[str]:
    found = set()
    for it in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(it.readlink()))
        except OSError:
            continue  # of the listing itself
    return found
