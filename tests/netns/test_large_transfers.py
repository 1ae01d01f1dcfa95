"""A run of a gigabyte from another host: whole, byte for byte, in bounded memory, compared with ssh and tar."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ssh_hosts
from builders.commands import TESTBED, piped, run_line
from builders.conditions import HOSTS_THOROUGH
from builders.run_factory import make_run
from client_of_hosts import environment, state
from oracles import oracle
from ssh_hosts import Host, Hosts

pytestmark = HOSTS_THOROUGH

MEBIBYTE = 1 << 20
LARGE_BYTES, SMALL_FILES = 960 * MEBIBYTE, 3000
BOUND_S = 200.0
MOST_GROWTH_BYTES = 16 * MEBIBYTE


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with ssh_hosts.hosts("h1") as made:
        yield made


def make_there(host: Host, name: str, large_bytes: int, small_files: int) -> Path:
    """Make a run directory there, with one large file and many small ones of random bytes; return it as seen here."""
    run = make_run(host.path("/var/lib/testbed/runs") / name)
    with (run / "capture é.pcap").open("wb") as file:
        for _ in range(large_bytes // MEBIBYTE):
            file.write(os.urandom(MEBIBYTE))
    chance = random.Random(name)
    for number in range(small_files):
        folder = run / "ranks" / f"rank {number % 64}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.bin").write_bytes(os.urandom(chance.randrange(40_000)))
    return run


class Peaks(threading.Thread):
    """The largest resident sets of processes so far (VmHWM of /proc), by a name that ``find`` gives them."""

    def __init__(self, find: Callable[[], dict[str, int]]) -> None:
        super().__init__(daemon=True)
        self._find, self._ended = find, threading.Event()
        self.bytes: dict[str, int] = {}
        self.start()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            for name, pid in self._find().items():
                try:
                    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                except (OSError, ValueError):
                    continue
                self.bytes[name] = max(self.bytes.get(name, 0), int(kib) * 1024)

    def end(self) -> dict[str, int]:
        self._ended.set()
        self.join()
        return self.bytes


def fetched(hosts: Hosts, name: str, runs: Path) -> tuple[float, dict[str, int], str]:
    """Fetch a run; return the seconds that it took, the peaks of client and leash, and what the client said."""
    (host,) = hosts.hosts
    began_t = time.monotonic()
    client = piped(hosts.client(*TESTBED, "fetch", name, "--on", "h1", "--runs", str(runs)), env=environment(hosts))
    leash: list[int] = []

    def find() -> dict[str, int]:
        if not leash:
            leash.extend(pid for pid, line in host.pids().items() if "remote.leash" in line)
        return {"client": client.pid, **({"leash": leash[0]} if leash else {})}

    peaks = Peaks(find)
    _, told = client.communicate(timeout=BOUND_S)
    took_s = time.monotonic() - began_t
    assert client.returncode == 0, told
    return took_s, peaks.end(), told


def by_tar(hosts: Hosts, name: str, target: Path) -> float:
    """Bring the same by ssh and tar; return the seconds that it took."""
    target.mkdir(parents=True)
    began_t = time.monotonic()
    script = f"ssh -F {hosts.config} h1 tar c -C /var/lib/testbed/runs/{name} . | tar x -C '{target}'"
    oracle.run(*hosts.client("bash", "-o", "pipefail", "-c", script), timeout_s=BOUND_S)
    return time.monotonic() - began_t


def test_a_gigabyte_arrives_whole_in_bounded_memory(hosts: Hosts, tmp_path: Path) -> None:
    (host,) = hosts.hosts
    before = state(host)
    make_there(host, "small", 8 * MEBIBYTE, 10)
    large = make_there(host, "large", LARGE_BYTES, SMALL_FILES)
    _, at_least, _ = fetched(hosts, "small", tmp_path / "runs")
    ratios = []
    for turn in range(3):
        tar_s = by_tar(hosts, "large", tmp_path / "tar" / str(turn))
        own_s, peak, told = fetched(hosts, "large", tmp_path / "own" / str(turn))
        ratios.append(own_s / tar_s)
        print(f"fetch {own_s:.1f} s, ssh and tar {tar_s:.1f} s; peak of the small run {at_least}, of the large {peak}")
        arrived = tmp_path / "own" / str(turn) / "large"
        run_line("diff -r", large, arrived, timeout_s=BOUND_S)
        assert "arrived" in told, "progress"
        for name in ("client", "leash"):
            assert peak[name] - at_least[name] < MOST_GROWTH_BYTES, (name, peak, at_least)
        run_line("rm -rf", tmp_path / "tar", tmp_path / "own")
    print(f"ratio {sorted(ratios)[1]:.2f}")
    oracle.until(lambda: state(host) == before, 10.0, "nothing is left there")
