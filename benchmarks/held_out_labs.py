"""Predictions of a lab from what a run in another lab measured, made before the lab is up, against its measurement.

Each strategy trains in a lab of 2 km. From that run, ``testbed.predict`` says what it does in two other labs: over 400
km, and over 40 km at an eighth of the rate; two strategies also train at three sites. The pairs below were written
before the first run. A pair agrees if predicted and measured compute utilization of the steady state differ by at most
5 percentage points. Beside it is what the run in the other lab predicted before its first step, from its own
calibration. Needs root, torch and a quiet machine: each lab waits until the machine was idle for a minute.
"""

from __future__ import annotations

import argparse
import json
import os
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
from testbed.core.analysis.costs.measured_workload import steady_step
from testbed.host.files.store import RunDirectory

LIMIT: Final = 0.05
QUIET_S: Final = 60.0
OF_A_CORE: Final = 0.05
MOST_TRIES: Final = 10
NEAR: Final = {"links.north.km": 2, "links.north.optics": "OTN"}
FROM: Final = Bed("metro-single", NEAR, "200ms", "1.3B")
TO: Final = {
    "400 km": replace(FROM, changes={"links.north.km": 400, "links.north.optics": "OTN"}),
    "40 km, 100 Gb/s": replace(
        FROM, changes={"links.north.km": 40, "links.north.optics": "OTN", "links.north.rate": "100G"}
    ),
    "3 sites": replace(FROM, topology="metro-triangle", changes={"sites.west.nodes": 1, "sites.south.nodes": 1}),
}
AT_THREE_SITES: Final = ("ddp", "diloco")
"""Each of these labs has four ranks, so the ranks of a core are equal."""
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "ddp:buckets=8": {},
    "hierarchical:buckets=8": {},
    "fsdp": {"model": "0.4B"},
    "hsdp": {},
    "local-sgd:every=4": {},
    "diloco:every=4": {},
    "streaming-diloco:every=4,fragments=2,overlap=1": {"model": "2B"},
    "sparse-loco:every=2": {},
    "async-diloco:every=2": {},
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
        "| strategy | to | predicted from 2 km | interval | measured | difference | by its own calibration |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, it in pairs.items():
        way, _, lab = name.partition("/")
        if "error" in it:
            lines.append(f"| `{way}` | {lab} | {it['error']} | | | | |")
            continue
        off = 100 * (it["measured"] - it["predicted"])
        mark = "" if abs(off) <= 100 * LIMIT else "**"
        own = "none" if it["own"] is None else f"{it['own']:.3f}"
        within = "none" if it["interval"] is None else " to ".join(f"{end:.3f}" for end in it["interval"])
        figures = f"{it['predicted']:.3f} | {within} | {it['measured']:.3f} | {mark}{off:+.1f}{mark} | {own}"
        lines.append(f"| `{way}` | {lab} | {figures} |")
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
        for lab, bed in TO.items():
            topology = testbed.load(bed.topology, dict(bed.changes))
            chosen = {way: ways[way] for way in ways if lab != "3 sites" or way.partition(":")[0] in AT_THREE_SITES}
            predicted = {
                way: testbed.predict(topology=topology, measured=runs[way]) for way in chosen if runs[way] is not None
            }
            for way, (cell, run) in trained(bed, chosen, Path(folder)).items():
                measured = None
                if run is not None and way in predicted:
                    measured = steady_step(RunDirectory.open(run).read(), predicted[way].job.twin.cycle)
                if run is None or measured is None:
                    result["pairs"][f"{way}/{lab}"] = {"error": cell.get("error", "no run over 2 km")}
                    continue
                result["pairs"][f"{way}/{lab}"] = {
                    "from": None if runs[way] is None else runs[way].name,
                    "run": run.name,
                    "predicted": predicted[way].utilization,
                    "interval": predicted[way].interval,
                    "measured": measured.utilization,
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
    print(f"the machine was idle for {QUIET_S:g} s" if idle() else "the machine did not become idle", flush=True)
    with testbed.up(testbed.load(bed.topology, dict(bed.changes)), name="held-out") as lab:
        for way, job in ways.items():
            began = time.monotonic()
            found[way] = run_one(lab, replace(bed, **job), way, folder)
            print(f"{way}, {bed.changes}: {found[way][0]} ({time.monotonic() - began:.0f} s)", flush=True)
    return found


def idle() -> bool:
    """Wait until all processes together used at most 5 % of a core for a minute; False if that never happened."""
    for _ in range(MOST_TRIES):
        began = busy_s()
        time.sleep(QUIET_S)
        if busy_s() - began <= OF_A_CORE * QUIET_S:
            return True
    return False


def busy_s() -> float:
    """Return the CPU seconds of all processes since the machine started: user, nice and system (proc(5), stat)."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
