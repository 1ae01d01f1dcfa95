"""Shared by all benchmarks: shapes of labs, machine name and load, percentiles, command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import testbed
from testbed.core.topology.model import Topology

ROOT = Path(__file__).resolve().parents[1]
MININET_PYTHON = "/usr/bin/python3"
"""The Python that Debian's package `mininet` belongs to."""

SHAPES = ((2, 2), (8, 4), (64, 2))
"""(sites, nodes per site)."""

CHORDS = (1, 5, 13, 21)
"""Each site of a mesh has a fiber to the sites at these offsets: 4 fibers, 8 ends per site."""

DELAYS_S = (50e-6, 200e-6, 600e-6, 5e-3, 50e-3)


def ring(sites: int) -> list[tuple[int, int]]:
    """Return pairs of neighbours; two sites are joined by two fibers."""
    return [(0, 1)] * 2 if sites == 2 else [(site, (site + 1) % sites) for site in range(sites)]


def mesh(sites: int) -> list[tuple[int, int]]:
    """Return a ring with chords: 4 links per site, 256 for 64 sites."""
    return [(site, (site + step) % sites) for step in CHORDS for site in range(sites)]


def topology_text(sites: int, nodes: int, pairs: Sequence[tuple[int, int]]) -> str:
    """Return a topology file: fibers of 40 km between the sites of each pair, ``nodes`` per site."""
    lines = ["scale: 1000", "sites:", *(f"  s{site + 1}: {{nodes: {nodes}}}" for site in range(sites)), "links:"]
    for number, (a, b) in enumerate(pairs):
        lines.append(f"  fib{number}: {{between: [s{a + 1}, s{b + 1}], km: 40, optics: 800ZR}}")
    return "\n".join(lines) + "\n"


def shape(sites: int, nodes: int, pairs: Sequence[tuple[int, int]] | None = None) -> Topology:
    """Return the resolved topology of :func:`topology_text`; a ring by default."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"shape-{sites}x{nodes}.yaml")
        file.write_text(topology_text(sites, nodes, ring(sites) if pairs is None else pairs))
        return testbed.load(str(file))


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


def load() -> str:
    """Return the load averages over 1, 5 and 15 minutes."""
    return " / ".join(f"{value:.2f}" for value in os.getloadavg())


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process's first thread, with a resolution of 1 ns (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(samples: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """Format as median (minimum - maximum)."""
    low, high = min(samples), max(samples)
    return f"{statistics.median(samples):.{digits}f}{unit} ({low:.{digits}f} – {high:.{digits}f})"


def delay(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:g} us"


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does: what it has begun, such as a lab, is undone.

    Undoing is not disturbed by another SIGTERM, such as that of run.py after a Ctrl-C that both got.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def command(
    doc: str | None,
    measure: Callable[..., dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
    parts: Sequence[str] = (),
) -> int:
    """Command line of a benchmark: measure, print the table, with ``--json`` write every sample.

    ``measure`` gets whether to be quick; with ``parts``, also those that are to be measured (none: all).
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, to check that it works")
    if parts:
        parser.add_argument("--part", action="append", choices=parts, help="measure only this part; may be repeated")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("creates network namespaces: run as root")
    exit_on_sigterm()
    before = load()
    chosen = (tuple(arguments.part or ()),) if parts else ()
    result = {"machine": machine(), "load": before, "quick": arguments.quick, **measure(arguments.quick, *chosen)}
    print(table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


@dataclass
class Parts:
    """Results of a benchmark that takes longer than one call may, by name, kept in ``file`` after each."""

    file: Path | None
    until: float
    quick: bool
    head: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)

    def wanted(self, name: str) -> bool:
        """Return whether a part is still to be measured, and the time of this call is not up."""
        return name not in self.results and time.monotonic() < self.until

    def keep(self, name: str, result: Any) -> None:
        self.results[name] = result
        if self.file:
            self.file.write_text(json.dumps({**self.head, "runs": self.results}, indent=1) + "\n")


def command_by_parts(
    doc: str | None, measure: Callable[[Parts], None], table: Callable[[dict[str, Any]], str], *, root: bool
) -> int:
    """Command line of a benchmark in parts: a part that ``--json FILE`` has already is not measured again."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, to check that it works")
    parser.add_argument("--json", type=Path, help="keep the results in this file, and measure what it lacks")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no part after so many seconds")
    arguments = parser.parse_args()
    if root and os.geteuid() != 0:
        parser.error("creates network namespaces: run as root")
    exit_on_sigterm()
    head = {"machine": machine(), "load": load(), "quick": arguments.quick}
    parts = Parts(arguments.json, time.monotonic() + arguments.seconds, arguments.quick, head)
    if arguments.json and arguments.json.exists():
        parts.results.update(json.loads(arguments.json.read_text())["runs"])
    measure(parts)
    print(table({**head, "runs": parts.results}))
    return 0
