"""How each strategy takes a cut of all fibers (shorter and longer than the timeout), a failover, loss and a straggler.

Two sites of two ranks over 40 km, declared compute, a timeout of 5 s, a checkpoint every 15 steps. Each job is calm for
22 steps, then the fault begins. Of the ranks' own records: how long the longest pause of a rank was, what share of the
time the ranks computed before the fault and from then on; of the report: attempts, steps lost, verdict. Each strategy
has a lab of its own. What ``--json FILE`` has already is not measured again, and each cell is written at once, so
``--only ddp`` and a repeated call complete it. Needs root and torch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import exit_on_sigterm, load, machine
from testbed.errors import TestbedError

COMPUTE = "100ms"
REAL = {"real": True, "at_least": "100ms"}
WAYS: dict[str, Any] = {
    "ddp": COMPUTE,
    "hierarchical": COMPUTE,
    "fsdp": COMPUTE,
    "hsdp": COMPUTE,
    "local-sgd:every=20": COMPUTE,
    "diloco:every=20": COMPUTE,
    "streaming-diloco:every=20,fragments=4,overlap=2": COMPUTE,
    "sparse-loco:every=20": COMPUTE,
    "multi-tier:every=10,every_regions=20": COMPUTE,
    "async-diloco:every=20": COMPUTE,
    "decoupled:every=20": COMPUTE,
    "torchft-diloco:every=20,exchange.timeout=5s": COMPUTE,
    "pipeline": REAL,
    "tensor": REAL,
    "moe": REAL,
}
"""Strategies with options, and compute."""

STEPS, FAULT_AT, CHECKPOINT = 60, 22, 15
TIMEOUT_S, SHORT_S, LONG_S = 5.0, 1.5, 12.0
WORDS = {
    "short cut": f"all fibers dark for {SHORT_S:g} s",
    "long cut": f"all fibers dark for {LONG_S:g} s",
    "failover": "one of two fibers dark until the end",
    "loss": "one packet in 1000 lost on both fibers",
    "straggler": "rank 3 computes twice as long",
}
PAUSE_S = 0.5
"""A pause longer than the longest calm one by this much, and twice as long, is a wait."""


def inject(lab: Any, fault: str) -> None:
    links = [link.name for link in lab.topology.links]
    if fault in ("short cut", "long cut"):
        for link in links:
            lab.cut(link, for_s=SHORT_S if fault == "short cut" else LONG_S)
    elif fault == "failover":
        lab.cut(links[0])
    elif fault == "loss":
        for link in links:
            lab.inject("impair", link, loss="0.1%")
    else:
        lab.inject("straggler", "3", slower="2x")


def one(lab: Any, way: str, compute: Any, fault: str, folder: Path) -> dict[str, Any]:
    """Train once with the fault, and return what became of it."""
    try:
        lab.open_run(folder)
        job = lab.train(
            STEPS,
            strategy=way,
            compute=compute,
            checkpoint_every=CHECKPOINT,
            timeout_s=TIMEOUT_S,
            restarts=2,
        )
        failed = ""
        try:
            job.wait_for(FAULT_AT, timeout=60.0)
            inject(lab, fault)
            job.wait(120.0)
        except TestbedError as error:
            failed = str(error)
        lab.heal()
        lab.report()
    except TestbedError as error:
        return {"error": str(error)}
    run = lab.run_directory.path
    report = json.loads((run / "report.json").read_text())
    found = {
        "failed": failed,
        "verdict": report["verdict"],
        "headline": report["headline"],
        "attempts": len(report["attempts"]),
        "steps": report["training"]["steps_committed"],
        "steps_lost": report["training"]["steps_lost"],
        "gap_s": max((it["longest_gap_s"] or 0.0 for it in report["faults"]), default=0.0),
        "why": [it["why"] for it in report["attempts"] if it["why"]],
        "wrong": [it["id"] for it in report["checkers"] if it["holds"] is False],
        **of_ranks(run, report),
    }
    print(f"{way}, {fault}: {found}", flush=True)
    return found


def of_ranks(run: Path, report: Mapping[str, Any]) -> dict[str, float]:
    """Return the longest pause between two steps of a rank, and the share of time computed, before the fault and after
    it began; in the latter what was lost and computed again counts, too."""
    steps = [
        [line for line in map(json.loads, file.read_text().splitlines()) if line["kind"] == "step"]
        for file in sorted((run / "ranks").glob("rank-?.jsonl"))
    ]
    began_t = min(it["t_begin"] for each in steps for it in each)
    fault_t = began_t + min((it["began_s"] for it in report["faults"]), default=math.inf)
    end_t = max(it["t_end"] for each in steps for it in each)
    calm_t = max(it["t_end"] for each in steps for it in each if it["step"] == 2)
    calm, after = 0.0, 0.0
    for each in steps:
        for one, other in pairwise(each):
            pause_s = other["t_end"] - one["t_end"]
            if other["t_end"] <= fault_t and one["step"] > 2:
                calm = max(calm, pause_s)
            elif other["t_end"] > fault_t:
                after = max(after, pause_s)
    return {
        "calm_pause_s": calm,
        "pause_s": after,
        "calm_utilization": _computed(steps, calm_t, fault_t),
        "utilization": _computed(steps, fault_t, end_t),
    }


def _computed(steps: Sequence[Sequence[Mapping[str, Any]]], first_t: float, last_t: float) -> float:
    """Return which share of an interval the ranks computed, as the steps' records say; a cut step by its share."""
    seconds = 0.0
    for each in steps:
        for it in each:
            inside = min(it["t_end"], last_t) - max(it["t_begin"], first_t)
            if inside > 0:
                seconds += min(inside, it["compute_s"] * inside / (it["t_end"] - it["t_begin"]))
    return seconds / (len(steps) * (last_t - first_t)) if last_t > first_t else 0.0


def outcome(cell: Mapping[str, Any]) -> str:
    """Return what became of a job: it failed, restarted, waited or went on; for how long, and the share computed.

    In brackets, the same before the fault.
    """
    if "error" in cell:
        return f"not measured: {cell['error']}"
    if cell["failed"]:
        return f"**failed**: {cell['failed']}"
    lost = f", {cell['steps_lost']} steps lost" if cell["steps_lost"] else ""
    shown = f"{cell['pause_s']:.1f} s ({cell['calm_pause_s']:.1f}){lost}"
    shown += f"; {cell['utilization']:.2f} ({cell['calm_utilization']:.2f})"
    if cell["attempts"] > 1:
        return f"restarts, {shown}"
    waited = cell["pause_s"] > max(2.0 * cell["calm_pause_s"], cell["calm_pause_s"] + PAUSE_S)
    return f"{'waits' if waited else 'goes on'}, {shown}"


def table(result: Mapping[str, Any]) -> str:
    lines = [
        "| strategy | " + " | ".join(WORDS.values()) + " |",
        "|---" * (len(WORDS) + 1) + "|",
    ]
    for way, cells in result["ways"].items():
        shown = [outcome(cells[fault]) if fault in cells else "–" for fault in WORDS]
        lines.append(f"| `{way}` | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def measure(file: Path | None, only: str, faults: Sequence[str]) -> dict[str, Any]:
    """Measure what ``file`` does not have yet; ``only``: the strategies of this name."""
    result: dict[str, Any] = {"machine": machine(), "loads": {}, "ways": {}}
    if file is not None and file.exists():
        result = json.loads(file.read_text())
    for way, compute in WAYS.items():
        cells = result["ways"].setdefault(way, {})
        missing = [fault for fault in faults if fault not in cells]
        if only not in ("", way.partition(":")[0]) or not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)  # ranks are no root
            with testbed.up(testbed.load("metro-40km"), name="strategy-faults") as lab:
                for fault in missing:
                    result["loads"][f"{way} {fault}"] = load()
                    cells[fault] = one(lab, way, compute, fault, Path(folder))
                    if file is not None:
                        file.write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one fault of each strategy, to check that it works")
    parser.add_argument("--only", default="", help="strategies of this name")
    parser.add_argument("--json", type=Path, help="file of results, completed if it exists")
    arguments = parser.parse_args()
    exit_on_sigterm()
    if os.geteuid() != 0:
        parser.error("creates network namespaces: run as root")
    result = measure(arguments.json, arguments.only, list(WORDS)[: 1 if arguments.quick else None])
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
