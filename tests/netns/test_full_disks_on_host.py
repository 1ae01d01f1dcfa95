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
from client_of_hosts import begun, on, write_experiment
from oracles import oracle
from ssh_hosts import Host, Hosts

pytestmark = HOSTS_THOROUGH

MEBIBYTE = 1 << 20


@contextlib.contextmanager
def small_disk(host: Host, path: str, mebibytes: int) -> Iterator[Path]:
    """Have a folder there on a disk of so many MiB; return it as seen here."""
    host.inside("mkdir", "-p", path)
    host.inside("mount", "-t", "tmpfs", "-o", f"mode=1777,size={mebibytes}m", "none", path)
    try:
        yield host.path(path)
    finally:
        host.inside("umount", path)


@contextlib.contextmanager
def small_disk_here(path: Path, mebibytes: int) -> Iterator[Path]:
    path.mkdir()
    run_line(f"mount -t tmpfs -o size={mebibytes}m none", path)
    try:
        yield path
    finally:
        oracle.run("umount", path)


def lines(done: Done) -> list[str]:
    """What was said, but for notes of what was sent, fetched, and where the run is."""
    return [it for it in done.stderr.splitlines() if re.match(r"testbed|error", it)]


def test_the_disk_for_what_is_sent_is_full(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes(bytes(40 * MEBIBYTE))
    with small_disk(there, "/var/tmp", 8) as folder:
        done = on(hosts, "run metro-single --data data.txt --name e --on h1", cwd=tmp_path)
        print(done.stderr)
        assert done.returncode == 3
        (line,) = lines(done)
        assert "expected to store what the client sends in /var/tmp of h1, got: No space left on device" in line
        oracle.until(lambda: not list(folder.iterdir()), 5.0, "the folder of sent files is gone")


def test_the_disk_for_standard_input_is_full(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    with small_disk(there, "/var/tmp", 8) as folder:
        words = ("exec", "--on", "h1", "-l", "far", "east-0", "--", "sleep", "60")
        done = on(hosts, *words, given="x" * (40 * MEBIBYTE))
        print(done.stderr)
        assert done.returncode == 3
        line, *_ = lines(done)  # then, what the command says as it ends
        assert "No space left on device; free space there" in line
        oracle.until(lambda: not list(folder.iterdir()), 5.0, "the folder of sent files is gone")


@pytest.mark.parametrize("path", ["/var/lib/testbed/runs", "/var/lib/testbed/labs"])
def test_a_disk_of_the_testbed_there_is_full(hosts: Hosts, there: Host, path: str) -> None:
    with small_disk(there, path, 1) as folder:
        (folder / "much").write_bytes(bytes(MEBIBYTE - 8192))
        done = on(hosts, "run metro-single --steps 5 --name e --allow-uncertified --on h1")
        print(done.stderr)
        assert done.returncode == 3
        (line,) = lines(done)
        assert "free" in line or "No space left on device" in line
        assert "Traceback" not in done.stderr


def test_the_disk_of_runs_fills_up_during_a_run(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    """How the run ended is in what arrives, which is what is there."""
    with small_disk(there, "/var/lib/testbed/runs", 60) as folder:
        script = write_experiment(tmp_path, "sh", "-c", "echo 7144; sleep 8; while :; do echo 7145; sleep 0.01; done")
        words = ("run", script, "--name", "e", "--allow-uncertified", "--on", "h1")
        client = begun(hosts, *words, "--runs", "runs", cwd=tmp_path)
        oracle.until(lambda: any("echo 7144" in it for it in there.pids().values()), 90.0, "it runs there")
        with contextlib.suppress(OSError), (folder / "much").open("wb", buffering=0) as file:
            while file.write(bytes(MEBIBYTE)):
                pass
        _, told = client.communicate(timeout=120)
        print(told)
        assert client.returncode == 3
        assert "No space left on device" in told
        assert "Traceback" not in told
        (far,) = folder.glob("e-*")
        run_line("diff -r", far, tmp_path / "runs" / far.name)
        assert '"failed"' in (far / "run.json").read_text()


def test_the_disk_here_is_full_during_a_fetch(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    run = make_run(there.path("/var/lib/testbed/runs/large"))
    (run / "capture.pcap").write_bytes(os.urandom(40 * MEBIBYTE))
    with small_disk_here(tmp_path / "runs", 8) as folder:
        done = on(hosts, f"fetch large --on h1 --runs {folder}")
        print(done.stderr)
        assert done.returncode == 3
        (line,) = lines(done)
        assert f"cannot write {folder}/large: No space left on device, after" in line
        assert "free space there, or name another folder" in line
        assert list(folder.iterdir()) == []
    check(on(hosts, f"fetch large --on h1 --runs {tmp_path}/again"))
    run_line("diff -r", run, tmp_path / "again" / "large")


def test_the_disk_here_is_full_when_a_run_has_ended(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    with small_disk_here(tmp_path / "runs", 1) as folder:
        (folder / "much").write_bytes(bytes(MEBIBYTE - 16384))
        words = ("launch", "-l", "far", "--on", "h1", "--runs", str(folder), "--allow-uncertified", "--")
        done = on(hosts, *words, "sh", "-c", "head -c 3000000 /dev/zero > $TESTBED_FOLDER/result")
        print(done.stderr)
        assert done.returncode == 3
        assert done.stderr.count(f"cannot write {folder}") == 1
        (far,) = re.findall(r"the run is on h1: (\S+)", done.stderr.replace("\n", " "))
        assert [it.name for it in folder.iterdir()] == ["much"]
    check(on(hosts, "fetch", Path(far).name, "--on", "h1", "--runs", str(tmp_path / "again")))
    run_line("diff -r", there.path(far), tmp_path / "again" / Path(far).name)
