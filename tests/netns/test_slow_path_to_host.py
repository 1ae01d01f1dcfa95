"""Another host at the end of a long, narrow and lossy path: the same results, and slowness is no death."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_hosts
from builders.commands import TESTBED, captured, run_line
from builders.conditions import HOSTS_THOROUGH
from builders.json_files import read_json
from builders.run_factory import make_run
from client_of_hosts import Far, environment, lab_up, state, write_experiment
from oracles import oracle
from ssh_hosts import Hosts

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.host.emulators.fiberd import Fiberd

pytestmark = HOSTS_THOROUGH

MEBIBYTE = 1 << 20
SILENCE_S = 30.0
PATH = Impairment(delay_s=0.05, rate_bps=10e6, queue_bytes=250_000, loss=0.01)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Provide hosts behind a fiber of 50 ms, 10 Mb/s and 1 % loss, which TCP (reno) fills to about a tenth."""
    with ssh_hosts.hosts("h1") as made, lab_up(made, "h1"):
        between, near, far = made.open_cable()
        for namespace in ("cli", "h1"):
            words = ("ip", "netns", "exec", f"{made.prefix}{namespace}", "sysctl", "-qw")
            oracle.run(*words, "net.ipv4.tcp_congestion_control=reno")
        log = tmp_path_factory.mktemp("fiberd") / "log"
        directions = [
            EmulatedDirection("path:host", near, far, PATH),
            EmulatedDirection("path:client", far, near, PATH),
        ]
        fiber = Fiberd.start(between, directions, 7, log)
        try:
            yield made
        finally:
            fiber.stop()
        made.join_cable()


def test_the_path_is_slow_and_lossy(hosts: Hosts) -> None:
    words = hosts.client("ping", "-q", "-c", "200", "-i", "0.02", "-W", "2", "192.0.2.11")
    told = captured(words, timeout=60).stdout
    print(told)
    round_trip_s = float(told.rpartition("= ")[2].split("/")[1]) / 1e3
    assert round_trip_s > 0.1
    assert " 0% packet loss" not in told


def test_a_verb_says_the_same(far: Far) -> None:
    shown = far("status -l far --json")
    assert shown.returncode == 0, shown.stderr
    assert (json.loads(shown.stdout)["name"], json.loads(shown.stdout)["state"]) == ("far", "up")


def test_a_run_is_the_same_here_and_there(far: Far, tmp_path: Path) -> None:
    script = write_experiment(tmp_path, "sh", "-c", "sleep 2; seq 20000")
    words = ("run", script, "--name", "e", "--allow-uncertified", "--on", "h1")
    began_t = time.monotonic()
    done = far(*words, "--runs", "runs", cwd=tmp_path, timeout_s=200)
    print(f"run: {time.monotonic() - began_t:.1f} s")
    assert done.returncode in (0, 1, 3), done.stderr  # 3: the machine was too busy for the emulator
    (run,) = (tmp_path / "runs").iterdir()
    run_line("diff -r", far.host.path(f"/var/lib/testbed/runs/{run.name}"), run)
    assert read_json(run / "run.json")["status"] == "finished"


def test_what_takes_longer_than_the_silence_of_a_dead_client_arrives(far: Far, tmp_path: Path) -> None:
    """Both ways: a run that is fetched, and a file that is sent."""
    run = make_run(far.host.path("/var/lib/testbed/runs/large"))
    (run / "capture.pcap").write_bytes(os.urandom(6 * MEBIBYTE))
    began_t = time.monotonic()
    words = far.hosts.client(*TESTBED, "fetch", "large", "--on", "h1", "--runs", str(tmp_path / "runs"))
    done = captured(words, env=environment(far.hosts), timeout=200)
    took_s = time.monotonic() - began_t
    print(f"fetch: {took_s:.1f} s")
    assert done.returncode == 0, done.stderr
    assert took_s > SILENCE_S, "else nothing is shown"
    run_line("diff -r", run, tmp_path / "runs" / "large")
    (tmp_path / "large.bin").write_bytes(os.urandom(6 * MEBIBYTE))
    expected = oracle.run("sha256sum", tmp_path / "large.bin").split()[0]
    began_t = time.monotonic()
    words = far.hosts.client(*TESTBED, "launch", "-l", "far", "--on", "h1", "--allow-uncertified", "--runs", "runs")
    done = captured([*words, "--", "sha256sum", "large.bin"], env=environment(far.hosts), cwd=tmp_path, timeout=200)
    took_s = time.monotonic() - began_t
    print(f"launch with a file: {took_s:.1f} s")
    assert done.returncode == 0, done.stderr
    assert took_s > SILENCE_S, "else nothing is shown"
    assert done.stdout.count(expected) == 4
    shown = [float(it) for it in re.findall(r"([\d.]+) MB of 6.29146 MB", done.stderr)]
    assert len(shown) >= 3, "how much has been sent"
    assert shown == sorted(shown)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_runs_there_ends_with_the_client(far: Far, number: signal.Signals) -> None:
    client = far.begin("exec -l far east-0 -- sleep 7141")
    oracle.until(lambda: "sleep 7141" in far.host.pids().values(), 90.0, "it runs there")
    client.send_signal(number)
    oracle.until(lambda: "sleep 7141" not in far.host.pids().values(), 5.0, "nothing is left of it")
    client.communicate(timeout=20)


def test_what_runs_there_ends_with_a_killed_client(far: Far) -> None:
    """Its reset may be lost on the way: then the next packets of the host are answered by another one."""
    before = state(far.host)
    client = far.begin("exec -l far east-0 --", sys.executable, "-c", "while True: print(1)")
    oracle.until(lambda: any("while True" in it for it in far.host.pids().values()), 90.0, "it runs there")
    client.kill()
    client.communicate()
    oracle.until(lambda: state(far.host) == before, 5.0, "nothing is left of it")
