"""Run the examples on a real lab: build, train, cut, heal, remove."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ROOT
from builders.commands import argv_of, captured, run_line
from builders.conditions import ALONE
from builders.json_files import read_json

EXAMPLES = ROOT / "examples"

pytestmark = [*ALONE, pytest.mark.e2e]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}",
        "TESTBED_STATE": str(tmp_path / "state"),
        "TESTBED_RUNS": str(tmp_path / "runs"),
    }


@pytest.fixture
def name(environment: dict[str, str]) -> Iterator[str]:
    """Provide a unique lab name; remove the lab however the test ends."""
    mine = f"ex{os.getpid()}"
    yield mine
    subprocess.run(argv_of("down --all"), env=environment, timeout=60, check=True)


def run(argv: list[str], environment: dict[str, str], timeout_s: float = 150) -> str:
    done = captured(argv, env=environment, timeout=timeout_s)
    assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def namespaces(lab: str) -> list[str]:
    listed = run_line("ip netns list")
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"tb.{lab}.")]


def test_cut_and_heal(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = str(EXAMPLES / "cut_and_heal.py")
    said = run([sys.executable, script, "--steps", "40", "--name", name, "--out", str(out)], environment)

    assert re.search(r"north was down for \d+\.\d\d s", said)
    assert re.search(r"goodput [01]\.\d{3}, longest gap between commits \d+ ms", said)
    report = read_json(out / "report.json")
    assert report["training"]["steps_committed"] == 40
    assert [fault["target"] for fault in report["faults"]] == ["north"]
    assert (out / "index.html").stat().st_size > 100_000
    assert namespaces(name) == []


@pytest.mark.thorough
def test_an_unmodified_torch_program_runs_across_the_fiber(name: str, environment: dict[str, str]) -> None:
    run(argv_of(f"up metro-40km --no-agents --allow-uncertified --name {name}"), environment)
    script = str(EXAMPLES / "torch_allreduce.py")
    argv = [sys.executable, script, "--floats", "1", "100000", "--repeats", "5"]
    said = run(argv_of(f"launch -l {name} --allow-uncertified --", *argv), environment)

    for rank, node in enumerate(("east-0", "east-1", "west-0", "west-1")):
        assert f"[rank {rank}] rank {rank} of 4 on {node}" in said
    median_ms = {int(floats): float(ms) for floats, ms in re.findall(r"all_reduce of (\d+) floats: ([\d.]+) ms", said)}
    # Every rank depends on all others, so a sum takes at least the round trip of light: 2 x 200 us.
    assert median_ms[1] >= 0.4
    # 400 kB take at least 4 ms at 800 Mb/s, and at least half must cross the fiber (the other side's sum).
    assert median_ms[100_000] >= 2.0

    run(argv_of(f"down {name}"), environment)
    assert namespaces(name) == []
