"""Predictions of a lab from what a run in another lab measured, made before the lab is up, against its measurement.

Each strategy trains in a lab of 2 km. From that run, ``testbed.predict`` says what it does in two other labs: over 400
km, and over 40 km at an eighth of the rate. The pairs below were written before the first run. A pair agrees if
predicted and measured compute utilization differ by at most 5 percentage points. Beside it is what the run in the other
lab predicted before its first step, from its own calibration. Needs root, torch and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import testbed
from benchmarks.common import exit_on_sigterm, machine
from benchmarks.strategy_prediction import Bed, run_one
from testbed.core.analysis.measured_workload import measured_utilization
from testbed.host.files.store import RunDirectory

LIMIT: Final = 0.05
NEAR: Final = {"links.north.km": 2, "links.north.optics": "OTN"}
FROM: Final = Bed("metro-single", NEAR, "200ms", "1.3B")
TO: Final = {
    "400 km": {"links.north.km": 400, "links.north.optics": "OTN"},
    "40 km, 100 Gb/s": {"links.north.km": 40, "links.north.optics": "OTN", "links.north.rate": "100G"},
}
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "ddp:buckets=8": {},
    "hierarchical:buckets=8": {},
    "fsdp": {"model": "0.4B"},
    "hsdp": {},
    "local-sgd:every=4": {},
    "diloco:every=4": {},
    "streaming-diloco:every=4,fragments=2,overlap=1": {"model": "4B"},
    "sparse-loco:every=2": {},
    "async-diloco:every=2": {"model": "4B"},
    "decoupled:every=2": {},
    "multi-tier:every=2,every_regions=4": {},
    "pipeline:micro_batches=8": {},
    "tensor": {"compute": "400ms"},
    "moe": {"compute": "400ms"},
}
"""What differs from :data:`FROM` in each job. Nothing of torchft-diloco can be timed, so it is left out."""


def table(result: Mapping[str, Any]) -> str:
    pairs = result["pairs"]
    lines = [
        "| strategy | to | predicted from 2 km | measured | difference | by its own calibration |",
        "|---|---|---|---|---|---|",
    ]
    for name, it in pairs.items():
        way, _, lab = name.partition("/")
        if "error" in it:
            lines.append(f"| `{way}` | {lab} | {it['error']} | | | |")
            continue
        off = 100 * (it["measured"] - it["predicted"])
        mark = "" if abs(off) <= 100 * LIMIT else "**"
        own = "none" if it["own"] is None else f"{it['own']:.3f}"
        lines.append(
            f"| `{way}` | {lab} | {it['predicted']:.3f} | {it['measured']:.3f} | {mark}{off:+.1f}{mark} | {own} |"
        )
    good = [it for it in pairs.values() if "error" not in it]
    within = sum(abs(it["measured"] - it["predicted"]) <= LIMIT for it in good)
    between = sum(0.2 <= it["measured"] <= 0.8 for it in good)
    return "\n".join(
        [
            *lines,
            "",
            f"{within} of {len(pairs)} within 5 points; {between} measured at 0.2 to 0.8. {result['machine']}.",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="STRATEGY")
    parser.add_argument("--json", type=Path, default=Path("held_out_labs.json"), help="where the result is written")
    parser.add_argument("--keep", type=Path, help="folder in which the runs are kept")
    words = parser.parse_args()
    exit_on_sigterm()
    ways = {way: job for way, job in WAYS.items() if not words.only or way.partition(":")[0] in words.only}
    result: dict[str, Any] = {"machine": machine(), "pairs": {}}
    with tempfile.TemporaryDirectory() if words.keep is None else nullcontext(str(words.keep)) as folder:
        Path(folder).mkdir(exist_ok=True)
        Path(folder).chmod(0o755)  # ranks are no root
        runs = {way: run for way, (_, run) in trained(FROM, ways, Path(folder)).items()}
        for lab, changes in TO.items():
            topology = testbed.load(FROM.topology, dict(changes))
            predicted = {
                way: testbed.predict(topology=topology, measured=run).utilization for way, run in runs.items() if run
            }
            for way, (cell, run) in trained(replace(FROM, changes=changes), ways, Path(folder)).items():
                if run is None or way not in predicted:
                    result["pairs"][f"{way}/{lab}"] = {"error": cell.get("error", "no run over 2 km")}
                    continue
                result["pairs"][f"{way}/{lab}"] = {
                    "predicted": predicted[way],
                    "measured": cell.get("measured_utilization") or measured_utilization(RunDirectory.open(run).read()),
                    "own": cell.get("utilization"),
                }
                words.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0


def trained(
    bed: Bed, ways: Mapping[str, Mapping[str, str]], folder: Path
) -> dict[str, tuple[dict[str, Any], Path | None]]:
    """Train each way in a lab; return what its run said, and where it is."""
    found = {}
    with testbed.up(testbed.load(bed.topology, dict(bed.changes)), name="held-out") as lab:
        for way, job in ways.items():
            began = time.monotonic()
            found[way] = run_one(lab, replace(bed, **job), way, folder)
            print(f"{way}, {bed.changes}: {found[way][0]} ({time.monotonic() - began:.0f} s)", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
