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
from client_of_hosts import Far, write_experiment
from oracles import oracle

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


def stubborn(far: Far) -> int:
    """Return how many processes ignore SIGINT and SIGTERM already."""
    count = 0
    for pid, line in far.host.pids().items():
        with contextlib.suppress(OSError, ValueError):
            (ignored,) = re.findall(r"SigIgn:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
            count += bool(re.match(r"\S+ \S*stubborn.py$", line)) and int(ignored, 16) & 0x4002 == 0x4002
    return count


def killed(client: Child, far: Far, programs: int) -> tuple[float, float]:
    """Kill the client of stubborn programs; return after how many seconds they, and all else, are gone."""
    oracle.until(lambda: stubborn(far) >= programs, BEGINS_S, "it runs there")
    client.kill()
    began_t = time.monotonic()
    client.communicate()
    oracle.until(lambda: not stubborn(far), DARK_S, "the program is gone")
    program_s, gone_t = host_stalls.elapsed_s(began_t), time.monotonic()
    far.until_as_before(DARK_S)
    all_s = program_s + host_stalls.elapsed_s(gone_t)
    print(f"program gone after {program_s:.1f} s, all after {all_s:.1f} s")
    return program_s, all_s


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        pytest.param("exec -l far east-0 --", 1, id="exec"),
        pytest.param("launch -l far --allow-uncertified --", 4, id="launch"),
    ],
)
def test_a_program_that_ignores_signals_is_gone_after_5_s(far: Far, line: str, programs: int) -> None:
    far.host.path("/opt/stubborn.py").write_text(STUBBORN)
    program_s, all_s = killed(far.begin(line, sys.executable, "/opt/stubborn.py"), far, programs)
    assert program_s < GONE_S
    assert all_s < GONE_S + 2.0


def test_a_program_of_run_that_ignores_signals_is_gone_and_the_lab_undone(far: Far, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    file = write_experiment(tmp_path, sys.executable, "stubborn.py")
    program_s, all_s = killed(far.begin(f"run {file} --name e --allow-uncertified", cwd=tmp_path), far, 4)
    assert program_s < GONE_S
    assert all_s < GONE_S + 5.0  # the report is written, and the lab taken down


def begun_there(far: Far, program: str, *arguments: str) -> Child:
    client = far.begin("exec -l far east-0 --", *arguments, *([] if arguments else program.split()))
    far.until_runs(program)
    return client


def test_a_client_that_is_stopped_for_a_moment_goes_on(far: Far) -> None:
    client = begun_there(far, "sleep 14", "sh", "-c", "sleep 14; echo whole")
    client.send_signal(signal.SIGSTOP)
    time.sleep(10.0)  # the moment itself, not a condition
    client.send_signal(signal.SIGCONT)
    out, err = client.communicate(timeout=30)
    assert (client.returncode, out) == (0, "whole\n"), err


def test_a_client_that_stays_stopped_ends_its_command(far: Far) -> None:
    client = begun_there(far, "sleep 7139")
    client.send_signal(signal.SIGSTOP)
    stopped_t = time.monotonic()
    far.until_as_before(DARK_S)
    assert time.monotonic() - stopped_t > SILENCE_S - 3.0
    assert host_stalls.elapsed_s(stopped_t) < SILENCE_S + GONE_S
    client.send_signal(signal.SIGCONT)
    _, err = client.communicate(timeout=20)
    assert client.returncode == 130
    assert "expected a sign of life from the client every 2 s, got none for 30 s" in err


def test_a_stopped_client_that_is_killed_ends_its_command_at_once(far: Far) -> None:
    client = begun_there(far, "sleep 7140")
    client.send_signal(signal.SIGSTOP)
    client.kill()
    far.until_ends("sleep 7140", GONE_S)
    client.communicate()


def dark(far: Far, client: Child) -> str:
    """Take the cable down; both ends have noticed after DARK_S. Return what the client said."""
    far.hosts.cable(far.host, False)
    began_t = time.monotonic()
    try:
        _, err = client.communicate(timeout=DARK_S)
        client_s = time.monotonic() - began_t
        far.until_as_before(DARK_S - client_s)
        print(f"client ended after {client_s:.1f} s, nothing left after {time.monotonic() - began_t:.1f} s: {err}")
        assert client.returncode == 3
        assert "Traceback" not in err
    finally:
        far.hosts.cable(far.host, True)
    return err


def test_a_dark_cable_ends_a_run_at_both_ends(far: Far, tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "sleep", "7143")
    client = far.begin(f"run {file} --name e --allow-uncertified --runs runs", cwd=tmp_path)
    oracle.until(lambda: [*far.host.pids().values()].count("sleep 7143") == 4, BEGINS_S, "it runs there")
    assert "the connection was lost" in dark(far, client)
    assert not (tmp_path / "runs").exists()
    newest = json.loads(check(far("ls runs --json")))[0]
    check(far(f"fetch {newest['name']} --runs {tmp_path}/runs"))


def test_a_dark_cable_ends_a_fetch_at_both_ends(far: Far, tmp_path: Path) -> None:
    run = make_run(far.run("large"))
    with (run / "capture.pcap").open("wb") as file:
        for _ in range(600):
            file.write(os.urandom(MEBIBYTE))
    fetch = f"fetch large --runs {tmp_path}/runs"
    client = far.begin(fetch)
    arriving = lambda: [it for it in tmp_path.glob("runs/.large.*/capture.pcap") if it.stat().st_size > MEBIBYTE]  # noqa: E731
    oracle.until(arriving, BEGINS_S, "it arrives")
    assert "the connection was lost before large was here" in dark(far, client)
    assert list((tmp_path / "runs").iterdir()) == []
    check(far(fetch))
    run_line("diff -r", run, tmp_path / "runs" / "large")


def test_a_dark_cable_ends_an_upload_at_both_ends(far: Far, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_bytes(bytes(800 * MEBIBYTE))
    client = far.begin(f"run metro-single --data {tmp_path}/data.txt --name e")
    sent = lambda: [it for it in far.host.path("/var/tmp").glob("testbed-on-*/**/data.txt") if it.stat().st_size]  # noqa: E731
    oracle.until(sent, BEGINS_S, "it is being sent")
    assert "the connection was lost" in dark(far, client)
