"""What the benchmarks share: shapes, the machine's name, how busy it was."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from pathlib import Path

import testbed
from testbed.core.topology.model import Topology

ROOT = Path(__file__).resolve().parents[1]
MININET_PYTHON = "/usr/bin/python3"
"""The Python that Debian's package `mininet` belongs to."""

SHAPES = ((2, 2), (8, 4), (64, 2))
"""(sites, nodes a site)."""


def shape(sites: int, nodes: int) -> Topology:
    """``sites`` in a ring of 40 km fibers, two of them joined by two fibers; ``nodes`` in each."""
    names = [f"s{number}" for number in range(1, sites + 1)]
    pairs = [(names[0], names[1])] * 2 if sites == 2 else list(zip(names, names[1:] + names[:1], strict=True))
    lines = ["scale: 1000", "sites:"]
    lines += [f"  {name}: {{nodes: {nodes}}}" for name in names]
    lines.append("links:")
    lines += [f"  fib{i}: {{between: [{a}, {b}], km: 40, optics: 800ZR}}" for i, (a, b) in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"ring-{sites}x{nodes}.yaml")
        file.write_text("\n".join(lines) + "\n")
        return testbed.load(str(file))


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


def load() -> str:
    """Load averages of 1, 5 and 15 minutes."""
    return " / ".join(f"{value:.2f}" for value in os.getloadavg())


def median(samples: list[float]) -> float:
    return statistics.median(samples)


def spread(samples: list[float], unit: str = "", digits: int = 2) -> str:
    """Median (least - most) of ``samples``."""
    low, high = min(samples), max(samples)
    return f"{statistics.median(samples):.{digits}f}{unit} ({low:.{digits}f} – {high:.{digits}f})"
