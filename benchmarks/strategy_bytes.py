"""Payload that each strategy puts on the fiber per direction, of what its twin says: 2 and 3 sites of 2 ranks.

One lab per number of sites; each strategy trains in it once, with its evidence and records as in any run. The figures
are those of the report's wire check: TCP payload per direction of a fiber, between the first and the last sample of the
counters in the job, over what the twin moves in that time. An exchange that a sample cuts in two is shared out by time,
so strategies that exchange seldom train for more steps. Bytes do not depend on the load. Needs root and torch.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import Parts, command_by_parts
from testbed.errors import TestbedError

SPLIT: dict[str, dict[str, Any]] = {"metro-40km": {}, "metro-triangle": {"layers": 6, "heads": 6}}
"""Labs of 2 x 2 and 3 x 2 ranks, with the shape of models that are split over all of them."""
STEPS, SELDOM_STEPS = 24, 72
REAL = {"real": True, "at_least": "50ms"}
WAYS: dict[str, Any] = {
    "ddp": "50ms",
    "ddp:bits=16": "50ms",
    "ddp:accumulate=4": "50ms",
    "hierarchical": "50ms",
    "fsdp": "50ms",
    "hsdp": "50ms",
    "local-sgd:every=6": "50ms",
    "diloco:every=6": "50ms",
    "streaming-diloco:every=12,fragments=4,overlap=1": "50ms",
    "streaming-diloco:every=12,fragments=4,overlap=1,bits=8": "50ms",
    "streaming-diloco:every=12,fragments=4,overlap=1,bits=4": "50ms",
    "sparse-loco:every=6": "50ms",
    "multi-tier:every=4,every_regions=12": "50ms",
    "async-diloco:every=6": "50ms",
    "decoupled:every=6": "50ms",
    "pipeline:stages={sites},micro_batches={twice}": REAL,
    "tensor": REAL,
    "tensor:across=true": REAL,
    "moe": REAL,
    "moe:experts=site": REAL,
}
"""Strategies with options, and compute."""


def measure(parts: Parts) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are no root
        for topology in SPLIT:
            resolved = testbed.load(topology)
            count = len(resolved.sites)
            ways = {way.format(sites=count, twice=2 * count): compute for way, compute in WAYS.items()}
            if not any(parts.wanted(f"{topology} {way}") for way in ways):
                continue
            with testbed.up(resolved, name="strategy-bytes") as lab:
                for way, compute in ways.items():
                    if parts.wanted(key := f"{topology} {way}"):
                        shape = SPLIT[topology] if compute is REAL else {}
                        parts.keep(key, _one(lab, way, compute, shape, Path(folder)))


def _one(lab: Any, way: str, compute: Any, shape: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    steps = SELDOM_STEPS if "every=" in way else STEPS
    try:
        lab.open_run(folder)
        job = lab.train(steps=steps, strategy=way, compute=compute, checkpoint_every=0, **shape)
        job.wait(240.0)
        lab.report()
        report = json.loads((lab.run_directory.path / "report.json").read_text())
    except TestbedError as error:
        return {"error": str(error)}
    wire = report["wire"]
    print(f"{way}: {time.monotonic() - began:.0f} s, {wire['sentence']}", flush=True)
    used = [it for it in wire["directions"] if it["ratio"] is not None]
    return {
        "ratios": {it["direction"]: it["ratio"] for it in used},
        "bytes_per_step": {it["direction"]: it["measured_bytes"] / it["steps"] for it in used},
        "steps": min((it["steps"] for it in used), default=0.0),
        "sentence": wire["sentence"],
    }


def table(result: dict[str, Any]) -> str:
    """Return a row for each strategy and lab; of directions that carry different bytes, least and greatest."""
    lines = [
        "| strategy | lab | kB a step and direction | over the twin's, by direction | steps |",
        "|---|---|---|---|---|",
    ]
    for name, it in result["runs"].items():
        topology, _, way = name.partition(" ")
        if "error" in it or not it["ratios"]:
            lines.append(f"| `{way}` | {topology} | – | {it.get('error') or it['sentence']} | – |")
            continue
        sizes = [value / 1e3 for value in it["bytes_per_step"].values()]
        low, high = _short(min(sizes)), _short(max(sizes))
        size = low if max(sizes) < 1.05 * min(sizes) else f"{low} to {high}"
        ratio = ", ".join(f"{value:.3f}" for value in it["ratios"].values())
        lines.append(f"| `{way}` | {topology} | {size} | {ratio} | {it['steps']:.0f} |")
    return "\n".join(lines)


def _short(kilobytes: float) -> str:
    return f"{kilobytes:,.0f}" if kilobytes >= 100 else f"{kilobytes:.1f}"


if __name__ == "__main__":
    sys.exit(command_by_parts(__doc__, measure, table, root=True))
