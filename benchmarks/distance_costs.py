"""Compare reports of one job over several distances: software of an operation, and parts of a step.

The same ddp job, whose buckets wait for slots, trains over 2 to 4000 km. Its operations must show the same software,
and the measured step time must rise with the one-way delay as the reported propagation says: a line through the median
steps has a slope and an intercept. Needs root, torch and a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import testbed
from benchmarks.common import exit_on_sigterm, machine
from benchmarks.strategy_prediction import Bed, run_one
from testbed.core.analysis.costs import run_path
from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.host.files.store import RunDirectory

DISTANCES_KM: Final = (2, 100, 1000, 2000, 4000)
STRATEGY: Final = "ddp:buckets=8"
COMPUTE: Final = "40ms"
MODEL: Final = "0.2B"
SHARE: Final = 0.15
LEAST_S: Final = 1e-3
OF_THE_LINE: Final = 0.10


def measure(runs: int) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine(), "distances": {}}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are no root
        for km in DISTANCES_KM:
            bed = Bed("metro-single", {"links.north.km": km, "links.north.optics": "OTN"}, COMPUTE, MODEL)
            with testbed.up(testbed.load(bed.topology, dict(bed.changes)), name="distance") as lab:
                paths = [run_one(lab, bed, STRATEGY, Path(folder))[1] for _ in range(runs)]
            found["distances"][str(km)] = [_figures(it) for it in paths if it is not None]
            print(f"{km} km: {found['distances'][str(km)]}", flush=True)
    return found


def _figures(path: Path) -> dict[str, float]:
    run = RunDirectory.open(path).read()
    whole = run_path.evaluate(run, run.ranks)
    fiber = FiberModel.certified(run.certificate, run.topology)
    assert whole is not None and fiber is not None
    calm = run_path.calm(whole, run)
    of = whole.operations[0]
    return {
        "delay_s": fiber.delay_s,
        "step_s": statistics.median(it.parts.total_s for it in calm.steps),
        "propagation_s": statistics.median(it.parts.propagation_s for it in calm.steps),
        "operation_s": of.took_s,
        "software_s": of.software_s,
    }


def table(found: dict[str, Any]) -> str:
    medians = {
        float(km): {name: statistics.median(it[name] for it in runs) for name in runs[0]}
        for km, runs in found["distances"].items()
    }
    lines = [
        "| km | step | propagation in it | an operation | its software |",
        "|---|---|---|---|---|",
        *(
            f"| {km:g} | {1e3 * it['step_s']:.1f} ms | {1e3 * it['propagation_s']:.1f} ms"
            f" | {1e3 * it['operation_s']:.2f} ms | {1e3 * it['software_s']:.2f} ms |"
            for km, it in medians.items()
        ),
    ]
    delays_s = [it["delay_s"] for it in medians.values()]
    steps = statistics.linear_regression(delays_s, [it["step_s"] for it in medians.values()])
    reported = statistics.linear_regression(delays_s, [it["propagation_s"] for it in medians.values()])
    rest_s = statistics.median(it["step_s"] - it["propagation_s"] for it in medians.values())
    software = [it["software_s"] for it in medians.values()]
    same = max(software) - min(software) <= max(LEAST_S, SHARE * statistics.median(software))
    agree = (
        abs(reported.slope - steps.slope) <= OF_THE_LINE * steps.slope
        and abs(rest_s - steps.intercept) <= OF_THE_LINE * steps.intercept
    )
    return "\n".join(
        [
            *lines,
            "",
            f"A step takes {1e3 * steps.intercept:.1f} ms + {steps.slope:.1f} d; the reports say {1e3 * rest_s:.1f} ms"
            f" beside propagation, and {reported.slope:.1f} d of it: {'agree' if agree else '**disagree**'} within"
            f" {OF_THE_LINE:.0%}. Software {'is' if same else '**is not**'} the same within {SHARE:.0%} or"
            f" {1e3 * LEAST_S:g} ms. {found['machine']}.",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="at each distance")
    parser.add_argument("--json", type=Path, default=Path("distance_costs.json"), help="where the result is written")
    words = parser.parse_args()
    exit_on_sigterm()
    result = measure(words.runs)
    words.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
