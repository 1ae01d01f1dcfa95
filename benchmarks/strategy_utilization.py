"""Compute utilization of strategies over 1000 km: one rank a site, 1.3 M parameters, 50 ms of declared compute.

Medians over the repeats, which are interleaved; the prediction made before each run beside it. Then the order of flat,
two-level, blocking and streaming exchanges where an exchange takes about two steps (kappa = 2), every 20 steps, in 4
fragments that may take 0, 1 and 2 steps beside compute. Needs root and torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import command, median, spread
from testbed.errors import TestbedError

COMPUTE = "50ms"
MODEL = "1.3B"
FIRST = ("ddp", "diloco:every=50", "streaming-diloco:every=50,fragments=4,overlap=2")
"""At the scale of 1:1000."""
ORDER = (
    "ddp",
    "hierarchical",
    "diloco:every=20",
    "streaming-diloco:every=20,fragments=4,overlap=0",
    "streaming-diloco:every=20,fragments=4,overlap=1",
    "streaming-diloco:every=20,fragments=4,overlap=2",
)
STEPS = {"ddp": 20, "hierarchical": 20}
OTHER_STEPS = 100


def measure(quick: bool) -> dict[str, Any]:
    repeats = 1 if quick else 3
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are no root
        changes = {"sites.*.nodes": 1, "scale": 1000}
        for part, ways, more in (("utilization", FIRST, {}), ("order", ORDER, {"scale": 2400})):
            with testbed.up(testbed.load("longhaul-1000km", {**changes, **more}), name="strategy-time") as lab:
                for _ in range(repeats):
                    for way in ways:
                        found.setdefault(f"{part} {way}", []).append(_one(lab, way, Path(folder)))
    return {"ways": found}


def _one(lab: Any, way: str, folder: Path) -> dict[str, Any]:
    steps = STEPS.get(way.partition(":")[0], OTHER_STEPS)
    try:
        lab.open_run(folder)
        job = lab.train(steps=steps, strategy=way, compute=COMPUTE, model=MODEL, checkpoint_every=0, calibrate=True)
        job.wait(240.0)
        lab.report()
    except TestbedError as error:
        return {"error": str(error)}
    report = json.loads((lab.run_directory.path / "report.json").read_text())
    predicted = report["prediction"] or {}
    found = {
        "utilization": report["training"]["compute_utilization"],
        "predicted": predicted.get("utilization"),
        "verdict": report["verdict"],
    }
    print(f"{way}: {found}", flush=True)
    return found


def table(result: dict[str, Any]) -> str:
    lines = ["| strategy | part | utilization | predicted |", "|---|---|---|---|"]
    for name, runs in result["ways"].items():
        part, _, way = name.partition(" ")
        good = [it for it in runs if "error" not in it]
        if not good:
            lines.append(f"| `{way}` | {part} | {runs[0]['error']} | – |")
            continue
        predicted = [it["predicted"] for it in good if it["predicted"] is not None]
        shown = f"{median(predicted):.3f}" if predicted else "–"
        lines.append(f"| `{way}` | {part} | {spread([it['utilization'] for it in good], digits=3)} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
