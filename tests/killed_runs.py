"""SIGKILL at random moments of whole runs: ``testbed run`` of an experiment with a job and random faults.

``python tests/random_kills.py --runs`` runs any number of rounds; :func:`one_run` lists the checks.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import random_kills
from oracles import oracle
from random_kills import Left

VICTIMS = ("orchestrator", "keeper", "both")
UP_S = 5.0
"""One kill in four is during bring-up, within this time; the others follow the job's first step."""
LONGEST_S = 8.0
ENDS_S = 60.0
"""Time limit for a run whose keeper was killed to end by itself."""

EXPERIMENT = """
topology: metro-40km
workload: {{steps: 5000, seed: {seed}, checkpoint: 10, restarts: 9, timeout: 4s}}
compress: {{time: 1 year = 1s, repair: 12 h = 1s}}
random: {{to: 20s, seed: {seed}}}
schedule:
  - {{at: 500ms, inject: flap, target: north, for: 3s, with: {{down: 30ms, up: 60ms}}}}
  - {{at: 1s, inject: rank-pause, target: "1", for: 400ms}}
  - {{at: 2s, inject: node-kill, target: west-1, for: 1s}}
  - {{at: 5s, inject: power-loss, target: east, for: 1s}}
"""


def one_run(name: str, seed: int, state: Path) -> str:
    """Kill one run and check what remains. Raises Left.

    - A run whose keeper was killed reports that, ends with status 3, and has taken its lab down. After the
      orchestrator's death, `heal` and `down` work as for any lab.
    - No process, namespace, mount, folder, temporary file or control group is left.
    - The run directory has at least the steps committed before the kill, and `testbed report` shows them.
    """
    chance = random.Random(f"run {seed}")
    victim, early = chance.choice(VICTIMS), chance.random() < 0.25
    moment_s = chance.uniform(0.3, UP_S) if early else chance.uniform(0.0, LONGEST_S)
    with tempfile.TemporaryDirectory(prefix="killed") as folder:
        Path(folder).chmod(0o711)  # ranks without privileges write below it
        return _run(name, seed, state, Path(folder), victim, early, moment_s)


def _run(name: str, seed: int, state: Path, folder: Path, victim: str, early: bool, moment_s: float) -> str:
    temporary, runs, file = folder / "tmp", folder / "runs", folder / "chaos.yaml"
    temporary.mkdir()
    file.write_text(EXPERIMENT.format(seed=seed))
    environment = {
        **os.environ,
        "TESTBED_STATE": str(state),
        "TESTBED_RUNS": str(runs),
        "TESTBED_DRIVER": "netns",
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "agents"))),
    }
    argv = [sys.executable, "-m", "testbed", "run", str(file), "--name", name, "--allow-uncertified"]
    child = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        if not early:
            oracle.until(lambda: any(map(committed_in, runs.glob("*"))) or child.poll() is not None, 90.0, "a step")
        began = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(moment_s)
        since = "the start" if early else "the job's first step"
        what = f"seed {seed}: {victim} killed {time.monotonic() - began:.2f} s after {since}"
        if child.poll() is not None:
            raise Left(f"{what}: the run had ended by itself: {child.communicate()[0][-1000:]}")
        committed = {run: committed_in(run) for run in runs.glob("*")} if runs.exists() else {}
        keepers = oracle.keeper_pids(name, state)
        oracle.kill({"orchestrator": [child.pid], "keeper": keepers, "both": [child.pid, *keepers]}[victim])
        if victim == "keeper" and keepers:
            _ends_by_itself(child, what)
    finally:
        child.kill()
        child.communicate()
    random_kills.after(name, state, environment, what)
    nothing_is_left(name, state, temporary, what)
    for run, steps in committed.items():
        _report(run, steps, environment, what, by_itself=victim == "keeper")
    return f"{what}; {max(committed.values(), default=0)} steps had been committed"


def _ends_by_itself(child: subprocess.Popen[str], what: str) -> None:
    try:
        output, _ = child.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired:
        raise Left(f"{what}: the run continues without its keeper") from None
    if child.returncode != 3 or "Traceback" in output:
        raise Left(f"{what}: the run ended with status {child.returncode}: {output[-2000:]}")


def nothing_is_left(name: str, state: Path, temporary: Path, what: str) -> None:
    """Check for leftovers that do not carry the lab's name."""
    with contextlib.suppress(AssertionError):
        oracle.until(lambda: not oracle.started_under(state), 5.0, "all processes are gone")
    left = oracle.started_under(state)
    # torch creates a folder of compiled code for each user on import.
    left += [f"file {path}" for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    left += [f"file {path}" for path in state.glob("*") if path.name not in ("labs", "certification.lock")]
    left += [f"file {path}" for path in state.glob("labs/*")]
    left += [f"control group {path}" for path in Path("/sys/fs/cgroup").rglob(f"*{name}*")]
    if left:
        raise Left(f"{what}: left behind: {left}")


def _verdict(run: Path) -> str:
    return str(json.loads((run / "report.json").read_text())["verdict"])


def committed_in(run: Path) -> int:
    """Return the last step that all ranks completed in the newest attempt, by their records."""
    ranks = [_records(path) for path in sorted(run.glob("ranks/rank-?.jsonl"))]
    begins = [it for records in ranks for it in records if it["kind"] == "job"]
    if len(ranks) < 4 or not begins:
        return 0
    newest = max(it["attempt"] for it in begins)
    least = min(it.get("resumed_from", 0) for it in begins if it["attempt"] == newest)
    ended = [
        max((it["step"] for it in records if it["kind"] == "step" and it["attempt"] == newest), default=least)
        for records in ranks
    ]
    return min(ended)


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines; the last one may be unfinished."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _report(run: Path, steps: int, environment: dict[str, str], what: str, by_itself: bool) -> None:
    """Check a run's report. ``by_itself``: the run ended with status 3, and its own and a new report must agree."""
    if by_itself and (verdict := _verdict(run)) != "unknown":
        raise Left(f"{what}: expected verdict unknown for status 3, got {verdict}")
    for path in ("report.json", "index.html", "report.md"):
        (run / path).unlink(missing_ok=True)
    done = random_kills.testbed("report", str(run), environment=environment)
    if done.returncode not in (0, 1, 3) or "Traceback" in done.stderr or not (run / "index.html").exists():
        raise Left(f"{what}: report ended with status {done.returncode}: {done.stderr[-2000:]}")
    report = json.loads((run / "report.json").read_text())
    if report["verdict"] == "pass" or (by_itself and report["verdict"] != "unknown"):
        raise Left(f"{what}: verdict of a killed run is {report['verdict']}")
    if report["training"]["steps_committed"] < steps:
        raise Left(f"{what}: {steps} steps had been committed, the report has {report['training']['steps_committed']}")
