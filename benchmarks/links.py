"""Cost of a link: 1, 8, 32 and 256 of them under one fiberd, and the whole `up` of 64 sites with 256 links.

Every link has its own two veth pairs to the plant. Seconds are fiberd's start time with existing ends; memory is its
resident set; CPU is the scheduler's nanoseconds while nothing is sent. The lab has two nodes per site and no agents;
`up` is the whole command, from a cold Python to a certified lab.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bed import bed
from benchmarks.common import command, cpu_s, median, mesh, resident_bytes, spread, topology_text
from benchmarks.lab_vs_mininet import by_up
from testbed.core.physics.impairment import Impairment
from testbed.host.emulators.fiberd import Fiberd

COUNTS = (1, 8, 32, 256)
SETTLE_S, IDLE_S = 7.0, 3.0
"""After traffic, neighbours are probed again within 5 s (arp(7)), and fiberd returns memory once, after a second."""
SITES, NODES = 64, 2


def under_fiberd(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, bed() as it:
        began = time.perf_counter()
        it.fibers(*range(count))
        cabled = time.perf_counter()
        emulator = Fiberd.start(
            it.plant, it.directions(dict.fromkeys(range(count), Impairment(200e-6))), 0, Path(folder, "log")
        )
        try:
            started = time.perf_counter()
            last = it.round_trips([count - 1], 20, 0.002)[count - 1]
            time.sleep(SETTLE_S)
            busy_s = cpu_s(emulator.pid)
            time.sleep(IDLE_S)
            busy_s = cpu_s(emulator.pid) - busy_s
            return {
                "cables_s": cabled - began,
                "start_s": started - cabled,
                "resident_mb": resident_bytes(emulator.pid) / 1e6,
                "idle_cpu": busy_s / IDLE_S,
                "rtt_us": median(last) * 1e6,
            }
        finally:
            emulator.stop()


def whole_lab() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mesh.yaml")
        file.write_text(topology_text(SITES, NODES, mesh(SITES)))
        return by_up(str(file))


def measure(quick: bool) -> dict[str, Any]:
    repeats = 1 if quick else 3
    links: dict[str, list[dict[str, float]]] = {str(count): [] for count in COUNTS}
    labs = []
    for _ in range(repeats):
        for count in COUNTS:
            links[str(count)].append(under_fiberd(count))
        labs.append(whole_lab())
    return {"repeats": repeats, "links": links, "lab": labs}


def table(result: dict[str, Any]) -> str:
    lines = [
        "| links | fiberd start, s | per link, ms | resident, MB | added link, kB | CPU, idle | RTT of the last, us |",
        "|---|---|---|---|---|---|---|",
    ]
    alone = median([it["resident_mb"] for it in result["links"]["1"]])
    for count, rows in result["links"].items():
        start, resident = (median([it[key] for it in rows]) for key in ("start_s", "resident_mb"))
        each = f"{(resident - alone) * 1e3 / (int(count) - 1):.0f}" if int(count) > 1 else ""
        cells = [f"{start:.3f}", f"{start * 1e3 / int(count):.2f}", f"{resident:.1f}", each]
        cells += [f"{median([it['idle_cpu'] for it in rows]):.4%}", spread([it["rtt_us"] for it in rows], digits=0)]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    up, down = (spread([it[key] for it in result["lab"]], digits=1) for key in ("build_s", "remove_s"))
    lines += [
        "",
        f"`up` of {SITES} sites with {NODES} nodes each and 256 links: {up} s (goal 20); `down`: {down} s.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
