"""fiberd of the machine's compiler (glibc) compared with that of ziglang (static musl), interleaved: memory, lateness.

The sources and the control of both are the same; only the C library and the compiler differ. Each repeat starts each
binary once on the same fibers, in turn, and measures resident memory at three times: at rest before any traffic, the
most while packets are in flight, and at rest again, after fiberd had time to return what it no longer needs. In
between it measures round trips at rest, lateness (sent - due, fiberd's own histogram) while another flow loads the
fiber, and bulk TCP, which fills large frames.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bed import Bed, bed, run
from benchmarks.common import ROOT, command, cpu_s, median, percentile, resident_bytes, spread
from testbed.core.physics.impairment import Impairment
from testbed.host.emulators import fiberd
from testbed.host.emulators.fiberd import Fiberd

REFERENCE, PROBED, LONG, BULK = 0, 1, 2, 3
DELAYS_S = {PROBED: 200e-6, LONG: 0.3, BULK: 20e-3}
"""Of the fiber that is probed and loaded, of one that holds many small packets, of one for TCP's super-packets."""

RATE_BPS, SHARE = 200e6, 0.8
WIDE_BPS = 10e9  # a fiber without a queue: lateness is the emulator's, not the fiber's
CARRIER_S = 1.5  # the kernel may take a second until it uses a carrier that came back
IDLE_S = 2.5
"""fiberd returns memory a second after the last packet."""


def binaries(folder: Path) -> dict[str, Path]:
    """Compile fiberd as an install does, with the machine's compiler and with ziglang; by name of the C library."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    made = {}
    for name, compiler in (("glibc", hook.find_compiler()), ("musl", hook.fetched_compiler())):
        made[name] = folder / f"fiberd-{name}"
        if why := hook.compile_fiberd(made[name], compiler, ROOT / "testbed" / "fiberd", ROOT / "build" / "zig"):
            raise SystemExit(f"fiberd was not compiled with {name}: {why}")
    return made


def most_resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def measured(it: Bed, binary: Path, folder: Path, quick: bool) -> dict[str, Any]:
    """One start of one binary."""
    count, seconds = (60, 1.0) if quick else (500, 3.0)
    fiberd._BINARY = binary  # type: ignore[misc]
    fibers = {path: Impairment(delay_s, WIDE_BPS, 100_000_000) for path, delay_s in DELAYS_S.items()}
    for one in it.directions(fibers):  # fiberd took them down when it ended
        run("ip", "-n", it.plant, "link", "set", one.ingress, "up")
    time.sleep(CARRIER_S)
    began = time.monotonic()
    emulator = Fiberd.start(it.plant, it.directions(fibers), 0, folder / "log")
    try:
        found: dict[str, Any] = {"start_s": time.monotonic() - began, "scheduling": emulator.info.scheduling}
        found["bounds_s"] = emulator.stats()[0].lateness_bounds_s
        found["rest"] = resident_bytes(emulator.pid)
        trips = it.round_trips([REFERENCE, PROBED], count, 0.004)
        base = median(trips[REFERENCE])
        found["error"] = {
            name: percentile(trips[PROBED], share) - 2 * DELAYS_S[PROBED] - base
            for name, share in (("median", 0.5), ("p99", 0.99))
        }
        before, cpu_before = stats(emulator, PROBED), cpu_s(emulator.pid)
        with it.load(PROBED, RATE_BPS, SHARE, seconds):
            pass
        found["late"] = [now - then for now, then in zip(stats(emulator, PROBED), before, strict=True)]
        found["cpu_us"] = (cpu_s(emulator.pid) - cpu_before) / max(sum(found["late"]), 1) * 1e6
        with it.load(LONG, RATE_BPS, SHARE, seconds):
            pass
        end = it.iperf(BULK, seconds, "-P", "4")["sum_received"]
        found["gbps"] = end["bits_per_second"] / 1e9
        found["most"] = most_resident_bytes(emulator.pid)
        time.sleep(IDLE_S)
        found["after"] = resident_bytes(emulator.pid)
    finally:
        emulator.stop()
    return found


def stats(emulator: Fiberd, path: int) -> tuple[int, ...]:
    """Return the histogram of lateness toward b."""
    return next(it.lateness_counts for it in emulator.stats() if it.direction == f"p{path}:b")


def measure(quick: bool) -> dict[str, Any]:
    repeats = 1 if quick else 3
    samples: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder, bed() as it:
        made = binaries(Path(folder))
        it.fibers(REFERENCE, *DELAYS_S)
        it.redirect(REFERENCE)
        it.serve()
        for _ in range(repeats):
            for name, binary in made.items():
                samples.setdefault(name, []).append(measured(it, binary, Path(folder), quick))
        sizes = {name: binary.stat().st_size for name, binary in made.items()}
    return {"repeats": repeats, "samples": samples, "sizes": sizes}


def late_share(rows: list[dict[str, Any]], beyond_s: float) -> str:
    shares = []
    for row in rows:
        first = next(number for number, bound in enumerate(row["bounds_s"]) if bound >= beyond_s) + 1
        shares.append(100 * sum(row["late"][first:]) / max(sum(row["late"]), 1))
    return spread(shares, " %", digits=2)


def errors(rows: list[dict[str, Any]], name: str) -> str:
    return spread([it["error"][name] * 1e6 for it in rows], digits=0)


def table(result: dict[str, Any]) -> str:
    """Return a row for each quantity, a column for each C library."""
    samples = result["samples"]
    quantities = [
        ("resident at rest, MB", lambda rows: spread([it["rest"] / 1e6 for it in rows])),
        ("the most under load, MB", lambda rows: spread([it["most"] / 1e6 for it in rows], digits=1)),
        ("2.5 s after the load, MB", lambda rows: spread([it["after"] / 1e6 for it in rows], digits=1)),
        ("error of the RTT at rest, us: median", lambda rows: errors(rows, "median")),
        ("p99", lambda rows: errors(rows, "p99")),
        ("left > 20 us late, loaded", lambda rows: late_share(rows, 20e-6)),
        ("left > 100 us late, loaded", lambda rows: late_share(rows, 100e-6)),
        ("CPU per packet, loaded, us", lambda rows: spread([it["cpu_us"] for it in rows], digits=1)),
        ("TCP, 4 flows, Gb/s", lambda rows: spread([it["gbps"] for it in rows], digits=1)),
    ]  # fmt: skip
    names = list(samples)
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    lines += [f"| {what} | {' | '.join(cell(samples[name]) for name in names)} |" for what, cell in quantities]
    sizes = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in result["sizes"].items())
    scheduling = ", ".join(sorted({it["scheduling"] for rows in samples.values() for it in rows}))
    return "\n".join([*lines, "", f"{scheduling}; {result['repeats']} repeats; the binary has: {sizes}."])


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
