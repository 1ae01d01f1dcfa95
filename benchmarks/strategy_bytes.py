"""Payload that each strategy puts on the fiber per direction, of what its twin says: 2 and 3 sites of 2 ranks.

One lab per number of sites; each strategy trains in it once, with its evidence and records as in any run. The figures
are those of the report: bytes of the fibers' counters without headers, over the whole run. Needs root and torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import command
from testbed.errors import TestbedError

LABS = {"metro-40km": 2, "metro-triangle": 3}
STEPS = 24
REAL = {"real": True, "at_least": "50ms"}
WAYS: dict[str, Any] = {
    "ddp": "50ms",
    "ddp:bits=16": "50ms",
    "hierarchical": "50ms",
    "fsdp": "50ms",
    "hsdp": "50ms",
    "local-sgd:every=6": "50ms",
    "diloco:every=6": "50ms",
    "streaming-diloco:every=12,fragments=4,overlap=1": "50ms",
    "streaming-diloco:every=12,fragments=4,overlap=1,bits=4": "50ms",
    "sparse-loco:every=6": "50ms",
    "multi-tier:every=4,every_regions=12": "50ms",
    "async-diloco:every=6": "50ms",
    "decoupled:every=6": "50ms",
    "pipeline": REAL,
    "tensor": REAL,
    "moe": REAL,
}
"""Strategies with options, and compute."""


def measure(quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are no root
        for topology in LABS:
            with testbed.up(testbed.load(topology), name="strategy-bytes") as lab:
                for way, compute in WAYS.items():
                    found[f"{topology} {way}"] = _one(lab, way, compute, Path(folder))
    return {"ways": found}


def _one(lab: Any, way: str, compute: Any, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    try:
        lab.open_run(folder)
        job = lab.train(steps=STEPS, strategy=way, compute=compute, checkpoint_every=0)
        job.wait(240.0)
        lab.report()
        report = json.loads((lab.run_directory.path / "report.json").read_text())
    except TestbedError as error:
        return {"error": str(error)}
    wire = report["wire"]
    print(f"{way}: {time.monotonic() - began:.0f} s, {wire['sentence']}", flush=True)
    cuts = [it for it in wire["cuts"] if it["expected_bytes"]]
    return {
        "ratios": {it["toward"]: it["measured_bytes"] / it["expected_bytes"] for it in cuts},
        "bytes_per_step": {it["toward"]: it["measured_bytes"] / STEPS for it in cuts},
        "verdict": report["verdict"],
        "sentence": wire["sentence"],
    }


def table(result: dict[str, Any]) -> str:
    lines = ["| strategy | lab | kB into a site a step | of what its twin says |", "|---|---|---|---|"]
    for name, it in result["ways"].items():
        topology, _, way = name.partition(" ")
        if "error" in it or not it["ratios"]:
            lines.append(f"| `{way}` | {topology} | – | {it.get('error', 'nothing had to cross')} |")
            continue
        size = ", ".join(f"{value / 1e3:.1f}" for value in it["bytes_per_step"].values())
        ratio = ", ".join(f"{value:.3f}" for value in it["ratios"].values())
        lines.append(f"| `{way}` | {topology} | {size} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
