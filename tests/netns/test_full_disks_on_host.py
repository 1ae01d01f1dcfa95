"""Full disks, here and on the other host: one line that says so, exit status 3, nothing half made, nothing left."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import Done, check, run_line
from builders.conditions import HOSTS_THOROUGH
from builders.run_factory import make_run
from client_of_hosts import Far, write_experiment
from oracles import oracle

pytestmark = HOSTS_THOROUGH

MEBIBYTE = 1 << 20


@contextlib.contextmanager
def small_disk(far: Far, path: str, mebibytes: int) -> Iterator[Path]:
    """Have a folder there on a disk of so many MiB; return it as seen here."""
    far.host.inside("mkdir", "-p", path)
    far.host.inside("mount", "-t", "tmpfs", "-o", f"mode=1777,size={mebibytes}m", "none", path)
    try:
        yield far.host.path(path)
    finally:
        far.host.inside("umount", path)


@contextlib.contextmanager
def small_disk_here(path: Path, mebibytes: int) -> Iterator[Path]:
    path.mkdir()
    run_line(f"mount -t tmpfs -o size={mebibytes}m none", path)
    try:
        yield path
    finally:
        run_line("umount", path)


def lines(done: Done) -> list[str]:
    """Return what a command that failed said, but for notes of what was sent, fetched, and where the run is."""
    print(done.stderr)
    assert done.returncode == 3
    return [line for line in done.stderr.splitlines() if re.match(r"testbed|error", line)]


def until_empty(folder: Path) -> None:
    oracle.until(lambda: not list(folder.iterdir()), 5.0, "the folder of sent files is gone")


def test_the_disk_for_what_is_sent_is_full(far: Far, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes(bytes(40 * MEBIBYTE))
    with small_disk(far, "/var/tmp", 8) as folder:
        (line,) = lines(far("run metro-single --data data.txt --name e", cwd=tmp_path))
        assert "expected to store what the client sends in /var/tmp of h1, got: No space left on device" in line
        until_empty(folder)


def test_the_disk_for_standard_input_is_full(far: Far) -> None:
    with small_disk(far, "/var/tmp", 8) as folder:
        line, *_ = lines(far("exec -l far east-0 -- sleep 60", given="x" * (40 * MEBIBYTE)))  # then, as it ends
        assert "No space left on device; free space there" in line
        until_empty(folder)


@pytest.mark.parametrize("path", ["/var/lib/testbed/runs", "/var/lib/testbed/labs"])
def test_a_disk_of_the_testbed_there_is_full(far: Far, path: str) -> None:
    with small_disk(far, path, 1) as folder:
        (folder / "much").write_bytes(bytes(MEBIBYTE - 8192))
        done = far("run metro-single --steps 5 --name e --allow-uncertified")
        (line,) = lines(done)
        assert "free" in line or "No space left on device" in line
        assert "Traceback" not in done.stderr


def test_the_disk_of_runs_fills_up_during_a_run(far: Far, tmp_path: Path) -> None:
    """How the run ended is in what arrives, which is what is there."""
    with small_disk(far, "/var/lib/testbed/runs", 60) as folder:
        file = write_experiment(tmp_path, "sh", "-c", "echo 7144; sleep 8; while :; do echo 7145; sleep 0.01; done")
        client = far.begin(f"run {file} --name e --allow-uncertified --runs runs", cwd=tmp_path)
        oracle.until(lambda: any("echo 7144" in it for it in far.host.pids().values()), 90.0, "it runs there")
        with contextlib.suppress(OSError), (folder / "much").open("wb", buffering=0) as much:
            while much.write(bytes(MEBIBYTE)):
                pass
        _, err = client.communicate(timeout=120)
        print(err)
        assert client.returncode == 3
        assert "No space left on device" in err
        assert "Traceback" not in err
        (there,) = folder.glob("e-*")
        run_line("diff -r", there, tmp_path / "runs" / there.name)
        assert '"failed"' in (there / "run.json").read_text()


def test_the_disk_here_is_full_during_a_fetch(far: Far, tmp_path: Path) -> None:
    run = make_run(far.run("large"))
    (run / "capture.pcap").write_bytes(os.urandom(40 * MEBIBYTE))
    with small_disk_here(tmp_path / "runs", 8) as folder:
        (line,) = lines(far(f"fetch large --runs {folder}"))
        assert f"cannot write {folder}/large: No space left on device, after" in line
        assert "free space there, or name another folder" in line
        assert list(folder.iterdir()) == []
    check(far(f"fetch large --runs {tmp_path}/again"))
    run_line("diff -r", run, tmp_path / "again" / "large")


def test_the_disk_here_is_full_when_a_run_has_ended(far: Far, tmp_path: Path) -> None:
    with small_disk_here(tmp_path / "runs", 1) as folder:
        (folder / "much").write_bytes(bytes(MEBIBYTE - 16384))
        script = "head -c 3000000 /dev/zero > $TESTBED_FOLDER/result"
        done = far(f"launch -l far --runs {folder} --allow-uncertified -- sh -c", script)
        lines(done)
        assert done.stderr.count(f"cannot write {folder}") == 1
        (there,) = re.findall(r"the run is on h1: (\S+)", done.stderr.replace("\n", " "))
        assert [file.name for file in folder.iterdir()] == ["much"]
    name = Path(there).name
    check(far(f"fetch {name} --runs {tmp_path}/again"))
    run_line("diff -r", far.host.path(there), tmp_path / "again" / name)
