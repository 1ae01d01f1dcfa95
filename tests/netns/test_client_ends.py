"""How a command on another host ends without its client: stubborn programs, a stopped client, a dark cable."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import host_stalls
import pytest
from builders.commands import Child, check, run_line
from builders.conditions import HOSTS_THOROUGH
from builders.run_factory import make_run
from client_of_hosts import begun, on, state, write_experiment
from oracles import oracle
from ssh_hosts import Host, Hosts

pytestmark = HOSTS_THOROUGH

DARK_S = 45.0
SILENCE_S = 30.0
GONE_S = 5.0
BEGINS_S = 90.0
MEBIBYTE = 1 << 20

STUBBORN = """import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print('stubborn', flush=True)
time.sleep(600)
"""


def stubborn(host: Host) -> list[int]:
    """Return the processes that ignore SIGINT and SIGTERM already."""
    found = []
    for pid, line in host.pids().items():
        with contextlib.suppress(OSError, ValueError):
            (ignored,) = re.findall(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
            if re.match(r"\S+ \S*stubborn.py$", line) and int(ignored, 16) & 0x4002 == 0x4002:
                found.append(pid)
    return found


def is_gone(host: Host, before: tuple[list[str], list[str], list[str]]) -> float:
    """Return after how many seconds nothing is left."""
    began_t = time.monotonic()
    oracle.until(lambda: state(host) == before, DARK_S, f"nothing is left of {before}: {state(host)}")
    return host_stalls.elapsed_s(began_t)


def killed(client: Child, host: Host, before: tuple[list[str], list[str], list[str]]) -> tuple[float, float]:
    """Kill the client of a stubborn program; return after how many seconds the program, and all else, is gone."""
    client.kill()
    began_t = time.monotonic()
    client.communicate()
    oracle.until(lambda: not stubborn(host), DARK_S, "the program is gone")
    program_s = host_stalls.elapsed_s(began_t)
    return program_s, program_s + is_gone(host, before)


@pytest.mark.parametrize("verb", ["exec", "launch"])
def test_a_program_that_ignores_signals_is_gone_after_5_s(hosts: Hosts, there: Host, tmp_path: Path, verb: str) -> None:
    before = state(there)
    path = there.path("/opt/stubborn.py")
    path.write_text(STUBBORN)
    node = ("east-0",) if verb == "exec" else ("--allow-uncertified",)
    client = begun(hosts, f"{verb} --on h1 -l far", *node, "--", sys.executable, "/opt/stubborn.py")
    oracle.until(lambda: len(stubborn(there)) >= (1 if verb == "exec" else 4), BEGINS_S, "it runs there")
    program_s, all_s = killed(client, there, before)
    print(f"{verb}: program gone after {program_s:.1f} s, all after {all_s:.1f} s")
    assert program_s < GONE_S
    assert all_s < GONE_S + 2.0


def test_a_program_of_run_that_ignores_signals_is_gone_and_the_lab_undone(
    hosts: Hosts, there: Host, tmp_path: Path
) -> None:
    before = state(there)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    words = ("run", write_experiment(tmp_path, sys.executable, "stubborn.py"), "--name", "e", "--allow-uncertified")
    client = begun(hosts, *words, "--on", "h1", cwd=tmp_path)
    oracle.until(lambda: len(stubborn(there)) >= 4, BEGINS_S, "it runs there")
    program_s, all_s = killed(client, there, before)
    print(f"run: program gone after {program_s:.1f} s, all after {all_s:.1f} s")
    assert program_s < GONE_S
    assert all_s < GONE_S + 5.0  # the report is written, and the lab taken down


def test_a_client_that_is_stopped_for_a_moment_goes_on(hosts: Hosts, there: Host) -> None:
    client = begun(hosts, "exec --on h1 -l far east-0 -- sh -c 'sleep 14; echo whole'")
    oracle.until(lambda: "sleep 14" in there.pids().values(), BEGINS_S, "it runs there")
    client.send_signal(signal.SIGSTOP)
    time.sleep(10.0)  # the moment itself, not a condition
    client.send_signal(signal.SIGCONT)
    said, told = client.communicate(timeout=30)
    assert (client.returncode, said) == (0, "whole\n"), told


def test_a_client_that_stays_stopped_ends_its_command(hosts: Hosts, there: Host) -> None:
    before = state(there)
    client = begun(hosts, "exec --on h1 -l far east-0 -- sleep 7139")
    oracle.until(lambda: "sleep 7139" in there.pids().values(), BEGINS_S, "it runs there")
    client.send_signal(signal.SIGSTOP)
    stopped_t = time.monotonic()
    oracle.until(lambda: state(there) == before, DARK_S, "it ends there")
    assert time.monotonic() - stopped_t > SILENCE_S - 3.0
    assert host_stalls.elapsed_s(stopped_t) < SILENCE_S + GONE_S
    client.send_signal(signal.SIGCONT)
    _, told = client.communicate(timeout=20)
    assert client.returncode == 130
    assert "expected a sign of life from the client every 2 s, got none for 30 s" in told


def test_a_stopped_client_that_is_killed_ends_its_command_at_once(hosts: Hosts, there: Host) -> None:
    client = begun(hosts, "exec --on h1 -l far east-0 -- sleep 7140")
    oracle.until(lambda: "sleep 7140" in there.pids().values(), BEGINS_S, "it runs there")
    client.send_signal(signal.SIGSTOP)
    client.kill()
    oracle.until(lambda: "sleep 7140" not in there.pids().values(), GONE_S, "it ends there")
    client.communicate()


def test_a_dark_cable_ends_a_run_at_both_ends(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    before = state(there)
    words = ("run", write_experiment(tmp_path, "sleep", "7143"), "--name", "e", "--allow-uncertified", "--on", "h1")
    client = begun(hosts, *words, "--runs", "runs", cwd=tmp_path)
    oracle.until(lambda: [*there.pids().values()].count("sleep 7143") == 4, BEGINS_S, "it runs there")
    told = dark(hosts, there, client, before)
    assert "the connection was lost" in told
    assert not (tmp_path / "runs").exists()
    listed = json.loads(on(hosts, "ls runs --json --on h1").stdout)
    name = listed[0]["name"]
    check(on(hosts, f"fetch {name} --on h1 --runs {tmp_path}/runs"))


def dark(
    hosts: Hosts,
    host: Host,
    client: Child,
    before: tuple[list[str], list[str], list[str]],
) -> str:
    """Take the cable down; both ends have noticed after DARK_S. Return what the client said."""
    hosts.cable(host, False)
    began_t = time.monotonic()
    try:
        _, told = client.communicate(timeout=DARK_S)
        client_s = time.monotonic() - began_t
        oracle.until(lambda: state(host) == before, DARK_S - client_s, f"nothing is left of {before}: {state(host)}")
        print(f"client ended after {client_s:.1f} s, nothing left after {time.monotonic() - began_t:.1f} s: {told}")
        assert client.returncode == 3
        assert "Traceback" not in told
    finally:
        hosts.cable(host, True)
    return told


def test_a_dark_cable_ends_a_fetch_at_both_ends(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    before = state(there)
    run = make_run(there.path("/var/lib/testbed/runs/large"))
    with (run / "capture.pcap").open("wb") as file:
        for _ in range(600):
            file.write(os.urandom(MEBIBYTE))
    client = begun(hosts, f"fetch large --on h1 --runs {tmp_path}/runs")
    arriving = lambda: [it for it in tmp_path.glob("runs/.large.*/capture.pcap") if it.stat().st_size > MEBIBYTE]  # noqa: E731
    oracle.until(arriving, BEGINS_S, "it arrives")
    told = dark(hosts, there, client, before)
    assert "the connection was lost before large was here" in told
    assert list((tmp_path / "runs").iterdir()) == []
    check(on(hosts, f"fetch large --on h1 --runs {tmp_path}/runs"))
    run_line("diff -r", run, tmp_path / "runs" / "large")


def test_a_dark_cable_ends_an_upload_at_both_ends(hosts: Hosts, there: Host, tmp_path: Path) -> None:
    before = state(there)
    data = tmp_path / "data.txt"
    data.write_bytes(bytes(800 * MEBIBYTE))
    client = begun(hosts, "run metro-single --data", str(data), "--name", "e", "--on", "h1")
    sent = lambda: [it for it in there.path("/var/tmp").glob("testbed-on-*/**/data.txt") if it.stat().st_size]  # noqa: E731
    oracle.until(sent, BEGINS_S, "it is being sent")
    told = dark(hosts, there, client, before)
    assert "the connection was lost" in told
