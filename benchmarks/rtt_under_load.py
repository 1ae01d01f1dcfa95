"""RTT over the second, unloaded fiber while four ranks train over the first, compared with the same lab idle.

Tests whether the emulator keeps its delay while ranks load the machine: the probed fiber carries no other traffic, and
the job keeps all cores busy. Interleaved: idle, training, idle, training… in one lab, measured by ping(8) between the
two gateways. Needs root and torch.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import testbed
from benchmarks.common import command, median, spread
from testbed.core.plan.addressing import Addressing, namespace_name
from testbed.lab.jobs.job import Job
from testbed.lab.lab import Lab

LINK = "south"
PROBES, INTERVAL_S = 1000, 0.004
SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def rtts_s(lab: Lab) -> list[float]:
    """Return sorted round trips over :data:`LINK`, in seconds."""
    link = lab.topology.link(LINK)
    here, there = (lab.topology.site(name) for name in link.between)
    target = Addressing(lab.topology).link_end(link, there.name)[0]
    words = ["ip", "netns", "exec", namespace_name(lab.name, here.gateway), "ping", "-n"]
    words += ["-i", str(INTERVAL_S), "-c", str(PROBES), "-I", LINK, str(target)]
    output = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    return sorted(float(ms) / 1e3 for ms in re.findall(r"time=([\d.]+) ms", output))


def percentiles(ordered: list[float]) -> dict[str, float]:
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e6 for name, share in SHARES}


def end(job: Job) -> None:
    job.stop()
    until = time.monotonic() + 15
    while not job.over():
        if time.monotonic() > until:
            raise SystemExit("job did not stop within 15 s")
        time.sleep(0.05)


def measure(lab: Lab, samples: dict[str, list[dict[str, float]]]) -> None:
    samples["idle"].append(percentiles(rtts_s(lab)))
    job = lab.train(steps=1_000_000)
    try:
        job.wait_for(step=5, timeout=60)
        first, began = job.step, time.monotonic()
        found = percentiles(rtts_s(lab))
        found["steps_per_s"] = (job.step - first) / (time.monotonic() - began)
    finally:
        end(job)
    samples["training"].append(found)


def table(result: dict[str, Any]) -> str:
    lines = ["| RTT of the unloaded fiber, us | p50 | p90 | p99 |", "|---|---|---|---|"]
    for name in ("idle", "training"):
        cells = [spread([it[share] for it in result["samples"][name]], digits=0) for share, _ in SHARES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rate = median([it["steps_per_s"] for it in result["samples"]["training"]])
    lines += [
        "",
        f"{LINK}: target {result['target_us']:.0f} us round trip; {result['repeats']} × {PROBES} probes each; "
        f"emulator {result['scheduling']}; the job ran at {rate:.1f} steps/s meanwhile. Certificate before: "
        f"error {result['error_us']:+.1f} us one way at the median (goal 10).",
    ]
    return "\n".join(lines)


def measured(quick: bool) -> dict[str, Any]:
    repeats = 1 if quick else 5
    samples: dict[str, list[dict[str, float]]] = {"idle": [], "training": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TESTBED_STATE": f"{folder}/state", "TESTBED_RUNS": f"{folder}/runs"}
        with testbed.up("metro-40km", name=f"bench{os.getpid()}", driver="netns", allow_uncertified=True) as lab:
            assert lab.certificate is not None
            each = next(link for link in lab.certificate.links if link.name == LINK).directions
            errors = [it.measured.median - it.target_s - it.bare.median for it in each if it.measured and it.bare]
            scheduling = str(lab.certificate.host["scheduling"])
            for _ in range(repeats):
                measure(lab, samples)
            target_us = 2e6 * lab.topology.link(LINK).delay_s
    return {
        "repeats": repeats,
        "target_us": target_us,
        "error_us": median(errors) * 1e6,
        "scheduling": scheduling,
        "samples": samples,
    }


if __name__ == "__main__":
    sys.exit(command(__doc__, measured, table))
