"""64 ranks in 8 sites: until all are ready, their memory, and jobs of 20 steps with 1 s of declared compute.

Memory is the proportional set size (proc_pid_smaps(5)): pages that processes share are divided among them, so the sum
is what the ranks take of the machine. Read when the lab is up, and in the middle of a job. Needs root and torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import command, shape
from testbed.errors import TestbedError
from testbed.keeper import client

SITES, NODES = 8, 8
COMPUTE, STEPS = "1s", 20
WAYS = ("diloco:every=10", "hierarchical")


def measure(quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are no root
        began = time.monotonic()
        with testbed.up(shape(SITES, NODES), name="many", allow_uncertified=True) as lab:
            up_s = time.monotonic() - began
            pids = [rank["pid"] for rank in client.keeper(lab._folder).ranks()]
            idle = [pss_bytes(pid) for pid in pids if pid]
            forked = _parent(pids[0])
            found = {
                "up_s": up_s,
                "ready": len(idle),
                "idle_bytes": idle,
                "fork_server_bytes": pss_bytes(forked),
                "certified": lab.certificate is not None and lab.certificate.certified,
                "jobs": {way: _one(lab, way, pids, Path(folder)) for way in (WAYS[:1] if quick else WAYS)},
            }
    return found


def _one(lab: Any, way: str, pids: list[int], folder: Path) -> dict[str, Any]:
    lab.open_run(folder)
    began = time.monotonic()
    try:
        job = lab.train(steps=STEPS, strategy=way, compute=COMPUTE, checkpoint_every=0)
        job.wait_for(step=STEPS // 2, timeout=180)
        pids = [rank["pid"] for rank in client.keeper(lab._folder).ranks()]
        training = [pss_bytes(pid) for pid in pids if pid]
        job.wait(240.0)
        lab.report()
    except TestbedError as error:
        return {"error": str(error)}
    took_s = time.monotonic() - began
    path = lab.run_directory.path
    report = json.loads((path / "report.json").read_text())
    joined, steps = [], []
    for file in path.glob("ranks/rank-*.jsonl"):
        if file.name.count(".") != 1:
            continue
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        joined += [it["t"] for it in lines if it["kind"] == "job"]
        steps += [it for it in lines if it["kind"] == "step"]
    ends = {number: max(it["t_end"] for it in steps if it["step"] == number) for number in range(1, STEPS + 1)}
    return {
        "joined_s": max(joined) - began,
        "took_s": took_s,
        "step_s": (ends[STEPS] - ends[1]) / (STEPS - 1),
        "cpu_s": sum(it["cpu_s"] for it in steps) / len(steps),
        "training_bytes": training,
        "verdict": report["verdict"],
        "declared": report["declared"],
        "checkers": {it["id"]: it["holds"] for it in report["checkers"]},
    }


def pss_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['ready']} ranks ready {result['up_s']:.1f} s after the beginning of `up`, with certificate;"
        f" {_mb(result['idle_bytes'])} in all, fork server {result['fork_server_bytes'] / 1e6:.0f} MB.",
        "",
        "| strategy | joined, s | step, s | CPU of a rank and step, ms | memory | declared | checkers |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, it in result["jobs"].items():
        if "error" in it:
            lines.append(f"| `{way}` | {it['error']} |")
            continue
        checkers = ", ".join(f"{name} {verdict}" for name, verdict in it["checkers"].items())
        lines.append(
            f"| `{way}` | {it['joined_s']:.1f} | {it['step_s']:.3f} | {1e3 * it['cpu_s']:.1f} |"
            f" {_mb(it['training_bytes'])} | {it['declared']['verdict']} | {checkers} |"
        )
    return "\n".join(lines)


def _mb(sizes: list[int]) -> str:
    return f"{sum(sizes) / 1e6:.0f} MB, {sum(sizes) / len(sizes) / 1e6:.1f} MB a rank"


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
