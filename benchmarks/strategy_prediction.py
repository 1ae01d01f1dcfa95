"""Prediction before a run against its measurement: exposed time of a step, four labs x eight strategies, and four more
that train one lab each.

A cell agrees if measured and predicted exposed time differ by at most 15 % of the measured one, or by 2 % of the
declared compute, whichever is greater. What is *held out* was not looked at while the model of a step was made.

The result is one file, which is continued: ``--only metro-40km`` or ``--only metro-40km/ddp`` measures these cells
again, and without it those that are missing. ``--keep FOLDER`` keeps their runs, and ``--again`` predicts the kept ones
anew from what their ranks timed, without a lab. Needs root and torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import testbed
from benchmarks.common import exit_on_sigterm, load, machine
from testbed.core.analysis.costs import run_path
from testbed.core.analysis.costs.predicted_run import PredictedRun, predicted_run
from testbed.core.workload import workload_words
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import TestbedError
from testbed.host.files.store import RunDirectory

LAYERS: Final = 8
SHARE: Final = 0.15
OF_COMPUTE: Final = 0.02
BOUND_S: Final = 240.0


@dataclass(frozen=True)
class Bed:
    """A lab, what is changed of its topology, and the job that all strategies do in it."""

    topology: str
    changes: Mapping[str, Any]
    compute: str
    model: str
    held_out: bool = False


BEDS: Final = {
    it.topology: it
    for it in (
        Bed("metro-40km", {"scale": 16000}, "400ms", "10.4B"),
        Bed("longhaul-1000km", {"scale": 16000}, "400ms", "5.2B"),
        Bed("metro-triangle", {"scale": 16000}, "500ms", "10.4B"),
        Bed("continental-4000km", {"scale": 8000, "sites.*.nodes": 1}, "300ms", "5.2B", held_out=True),
    )
}
WAYS: Final = (
    "ddp:buckets=8",
    "hierarchical:buckets=8",
    "diloco:every=4",
    "streaming-diloco:every=4,fragments=2,overlap=1",
    "hsdp",
    "sparse-loco:every=2",
    "local-sgd:every=4",
    "fsdp",
)
MORE: Final = {
    "multi-tier:every=2,every_regions=4": "metro-triangle",
    "pipeline:micro_batches=8": "metro-40km",
    "tensor": "metro-40km",
    "moe": "metro-40km",
}
"""Of these one lab each: the first needs three sites."""
REAL: Final = ("tensor", "moe")
"""They split the matrices of the agents' own model, which trains inside the declared time."""
HELD_OUT: Final = ("local-sgd", "fsdp")
STEPS: Final = 24
QUICK: Final = ("metro-40km/ddp", "metro-40km/diloco")


def run_one(lab: Any, bed: Bed, way: str, folder: Path) -> tuple[dict[str, Any], Path | None]:
    """Train once; return the cell and the folder of the run."""
    before = load()
    plain = AgentWorkload(STEPS, layers=LAYERS, checkpoint_every=0)
    if way in REAL:
        wanted = workload_words.changed(plain, way, {"real": True, "at_least": bed.compute}, prefix="")
    else:
        wanted = workload_words.changed(plain, way, bed.compute, bed.model, prefix="")
    try:
        run = lab.open_run(folder)
        # What the command `run` does: the ranks time their operations alone before the first step.
        lab.start(dataclasses.replace(wanted, calibrate=True), own_run=False, read_only=True).wait(BOUND_S)
        lab.report()
    except TestbedError as error:
        return {"error": str(error), "load": before}, None
    return {"load": before, **judge(run)}, run.path


def judge(run: RunDirectory) -> dict[str, Any]:
    """Return prediction and measurement of a run."""
    data = run.read()
    found = predicted_run(data, run_path.evaluate(data, data.ranks))
    return {"error": "nothing was predicted"} if found is None else _cell(found)


def _cell(found: PredictedRun) -> dict[str, Any]:
    off_s = found.measured_exposed_s - found.exposed_s
    allowed_s = max(SHARE * found.measured_exposed_s, OF_COMPUTE * found.compute_s)
    return {
        "compute_s": found.compute_s,
        "measured_compute_s": found.measured_compute_s,
        "predicted_s": found.exposed_s,
        "measured_s": found.measured_exposed_s,
        "utilization": found.utilization,
        "measured_utilization": found.measured_utilization,
        "parts": {name: list(both) for name, both in found.parts.items()},
        "within": abs(off_s) <= allowed_s,
        "allowed_s": allowed_s,
    }


def chosen(only: Sequence[str], cells: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the ways to measure in each lab: those named, else those that are missing."""
    found: dict[str, list[str]] = {}
    for bed in BEDS:
        for way in _ways(bed):
            name = f"{bed}/{way}"
            if any(name.startswith(it) for it in only) if only else name not in cells:
                found.setdefault(bed, []).append(way)
    return found


def _ways(bed: str) -> tuple[str, ...]:
    return (*WAYS, *(way for way, only in MORE.items() if only == bed))


def table(result: Mapping[str, Any]) -> str:
    cells = result["cells"]
    lines = [
        "| lab | strategy | utilization: predicted, measured | exposed: predicted, measured (ms) | residual |"
        " propagation | serialization | software, site | waiting | within |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for bed in BEDS:
        for way in _ways(bed):
            it = cells.get(f"{bed}/{way}")
            if it is None:
                continue
            out = ", ".join(
                what
                for what, held in (("lab", BEDS[bed].held_out), ("strategy", way.partition(":")[0] in HELD_OUT))
                if held
            )
            name = f"| {bed} | `{way}`{f' (held out: {out})' if out else ''} |"
            if "error" in it:
                lines.append(f"{name} {it['error']} |" + " |" * 7)
                continue
            parts = " | ".join(f"{1e3 * b:.1f} − {1e3 * a:.1f}" for a, b in it["parts"].values())
            lines.append(
                f"{name} {it['utilization']:.2f}, {it['measured_utilization']:.2f} | {1e3 * it['predicted_s']:.1f},"
                f" {1e3 * it['measured_s']:.1f} | {1e3 * (it['measured_s'] - it['predicted_s']):+.1f} of"
                f" {1e3 * it['allowed_s']:.1f} | {parts} | {'yes' if it['within'] else '**no**'} |"
            )
    good = [it for it in cells.values() if "error" not in it]
    between = sum(0.2 <= it["utilization"] <= 0.8 for it in good)
    within = sum(it["within"] for it in good)
    return "\n".join(
        [*lines, "", f"{within} of {len(cells)} within; {between} predicted at a utilization of 0.2 to 0.8."]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="LAB[/STRATEGY]")
    parser.add_argument("--json", type=Path, default=Path("strategy_prediction.json"), help="the file to continue")
    parser.add_argument("--keep", type=Path, help="folder in which the runs are kept")
    parser.add_argument("--again", action="store_true", help="predict the kept runs anew; measure nothing")
    parser.add_argument("--quick", action="store_true", help="one lab and two strategies, to check that it works")
    parser.add_argument("--name", default="strategy-prediction", help="of the labs")
    words = parser.parse_args()
    exit_on_sigterm()
    result = json.loads(words.json.read_text()) if words.json.exists() else {"machine": machine(), "cells": {}}
    cells = result["cells"]
    if words.again:
        for cell in cells.values():
            if kept := cell.get("run"):
                cell.update(judge(RunDirectory.open(Path(kept))))
        print(table(result))
        return 0
    with tempfile.TemporaryDirectory() if words.keep is None else nullcontext(str(words.keep)) as folder:
        Path(folder).mkdir(exist_ok=True)
        Path(folder).chmod(0o755)  # ranks are no root
        for name, ways in chosen(QUICK if words.quick else words.only, cells).items():
            bed = BEDS[name]
            with testbed.up(testbed.load(bed.topology, dict(bed.changes)), name=words.name) as lab:
                for way in ways:
                    began = time.monotonic()
                    cell, path = run_one(lab, bed, way, Path(folder))
                    cells[f"{name}/{way}"] = {**cell, **({"run": str(path)} if words.keep and path else {})}
                    words.json.write_text(json.dumps(result, indent=1) + "\n")  # a call that is ended loses one cell
                    print(f"{name}/{way}: {cell} ({time.monotonic() - began:.0f} s)", flush=True)
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
