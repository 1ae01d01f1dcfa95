"""fiberd's loss compared with the configured loss, random and in bursts, counted by numbered packets, not by fiberd.

Every point sends enough packets for about a hundred losses or more: 114 B each, 50,000 per second, over a fiber of
200 us. The interval is that of the *count* of lost packets at the configured loss (see ``numbered.judged``), at 99 %
and at one in a million; the latter suits a table of many points.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bed import bed
from benchmarks.common import command
from testbed.core.physics.impairment import Impairment
from testbed.host.emulators.fiberd import Fiberd

PPS = 50_000
BURST = 5.0
POINTS = ((1e-4, 1_000_000), (1e-3, 500_000), (1e-2, 250_000))
"""(loss, packets)."""


def measure(quick: bool) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, bed() as it:
        it.fibers(0)
        clear = Impairment(200e-6)
        emulator = Fiberd.start(it.plant, it.directions({0: clear}), 20261121, Path(folder, "log"))
        try:
            it.round_trips([0], 3, 0.01)  # resolve neighbours
            for loss, packets in POINTS:
                for burst in (0.0, BURST):
                    lossy = Impairment(200e-6, loss=loss, burst=burst)
                    emulator.set({"p0:b": lossy})
                    before = dict(emulator.stats()[0].drops)
                    found = it.losses(0, packets // 10 if quick else packets, PPS, loss, burst)
                    after = emulator.stats()[0].drops
                    other = {cause: after[cause] - before[cause] for cause in after if cause != "loss"}
                    counted = after["loss"] - before["loss"]
                    rows.append(found | {"counted_by_fiberd": counted, "other_drops": sum(other.values())})
        finally:
            emulator.stop()
    return {"points": rows}


def table(result: dict[str, Any]) -> str:
    return "\n".join(
        [
            "| configured | packets | lost | 99 % of all counts | inside | at 1e-6 | mean run |",
            "|---|---|---|---|---|---|---|",
            *(row(it) for it in result["points"]),
        ]
    )


def row(it: dict[str, Any]) -> str:
    """Return the row of one point, with the number of packets lost for other reasons."""
    configured = f"{it['loss']:g}, " + (f"bursts of {it['burst']:g}" if it["burst"] else "random")
    low, high = it["interval"]
    wrong = it["overrun"] + it.get("other_drops", 0)
    lost = f"{it['lost']}" + (f" ({wrong} otherwise)" if wrong else "")
    verdicts = " | ".join("yes" if it[key] else "**no**" for key in ("inside", "inside_1e6"))
    return f"| {configured} | {it['sent']} | {lost} | {low:.0f} – {high:.0f} | {verdicts} | {it['mean_run']:.2f} |"


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
