"""The testbed's netem and Mininet's TCLink compared with a bare cable, on one kernel: Debian's User-Mode Linux.

All paths join the same two hosts (Mininet's), so that one program probes all of them in turn. TCLink has the same
delay, loss and rate and otherwise its defaults: netem on both ends of one cable, a limit of 1000 packets, HTB with a
burst of 15 kB if there is a rate, unchanged offloads.

The testbed's fiber is two cables with the plant between them. Each emulator is compared with its own path without
delay: the testbed's with the same two cables and a redirect, Mininet's with one cable. The machine has one CPU, so only
ratios are meaningful.

Build time: seconds of the testbed's engine for a lab of two sites with N fibers (gateways, nodes, management, journal,
netem), and of Mininet for two hosts with N TCLinks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import fiberd_vs_veth, loss
from benchmarks.bed import Bed, bed
from benchmarks.common import DELAYS_S, MININET_PYTHON, ROOT, command, delay, machine, median, percentile, shape, spread
from benchmarks.lab_vs_mininet import by_engine
from testbed.core.physics.impairment import Impairment
from testbed.host.emulators.netem import Netem

BOUND_S = 600.0
CABLE, REFERENCE = 0, 1
OURS, THEIRS = 10, 40
"""First path of each emulator: paths of the delays, then of the losses, then of the rate."""
LOSSES = (1e-3, 1e-2)
PACKETS, PPS = 100_000, 8_000
RATE_BPS = 100e6
LOSS_DELAY_S = 200e-6
COUNTS = (1, 8, 32)
WAYS = (("netem", OURS), ("mininet", THEIRS))

POINTS = [
    *(Impairment(seconds) for seconds in DELAYS_S),
    *(Impairment(LOSS_DELAY_S, loss=share) for share in LOSSES),
    Impairment(LOSS_DELAY_S, RATE_BPS, 1_000_000),
]
BULK, LOSSY, RATED = DELAYS_S.index(200e-6), len(DELAYS_S), len(DELAYS_S) + len(LOSSES)
"""Positions in :data:`POINTS`."""


def as_tclink(it: Impairment) -> dict[str, Any]:
    options: dict[str, Any] = {"delay": f"{it.delay_s * 1e6:g}us"}
    if it.loss:
        options["loss"] = it.loss * 100
    if it.rate_bps:
        options["bw"] = it.rate_bps / 1e6
    return options


@contextlib.contextmanager
def mininet(first: int, links: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run a Mininet of two hosts inside the block; yield ``pids`` and ``build_s``, and ``remove_s`` after it."""
    argv = [MININET_PYTHON, str(ROOT / "benchmarks" / "mininet_links.py"), str(first)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    try:
        child.stdin.write(json.dumps(links) + "\n")
        child.stdin.flush()
        found = json.loads(child.stdout.readline())
        yield found
    finally:
        output, _ = child.communicate(timeout=60)
    found |= json.loads(output)


def accuracy(it: Bed, count: int) -> dict[str, Any]:
    """Measure one repeat of RTT errors, each relative to its own path without delay."""
    numbers = range(len(DELAYS_S))
    found = it.round_trips([CABLE, REFERENCE, *(first + k for _, first in WAYS for k in numbers)], count, 0.006)
    base = {"netem": median(found[REFERENCE]), "mininet": median(found[CABLE])}
    rows: dict[str, Any] = {"cable_s": base["mininet"], "reference_s": base["netem"]}
    for way, first in WAYS:
        for k, seconds in enumerate(DELAYS_S):
            ordered = found[first + k]
            error = [percentile(ordered, share) - 2 * seconds - base[way] for share in (0.5, 0.99)]
            rows[f"{way} {delay(seconds)}"] = {"median": error[0], "p99": error[1], "probes": len(ordered)}
    return rows


def loaded(it: Bed, count: int) -> dict[str, Any]:
    """Measure one repeat of the fibers with a rate at 80 % load; both results include queueing."""
    rows: dict[str, Any] = {}
    for way, first in WAYS:
        with it.load(first + RATED, RATE_BPS, fiberd_vs_veth.SHARE, 1.5 + count * 0.006) as load:
            ordered = it.round_trips([first + RATED], count, 0.006)[first + RATED]
        rows[way] = fiberd_vs_veth.errors_s(ordered, 2 * LOSS_DELAY_S) | load
    return rows


def bulk(it: Bed, flows: int, seconds: float) -> dict[str, float]:
    """Return the TCP throughput in Gb/s of the bare cable, the fibers of 200 us, and the fibers with a rate."""
    paths = {"cable": CABLE, **{way: first + BULK for way, first in WAYS}}
    paths |= {f"{way} rated": first + RATED for way, first in WAYS}
    return {
        name: it.iperf(path, seconds, "-P", str(flows))["sum_received"]["bits_per_second"] / 1e9
        for name, path in paths.items()
    }


def building(quick: bool) -> dict[str, list[dict[str, float]]]:
    rows: dict[str, list[dict[str, float]]] = {}
    for count in COUNTS[:2] if quick else COUNTS:
        for _ in range(1 if quick else 2):
            ours = by_engine(shape(2, 2, [(0, 1)] * count), "netem")
            with mininet(THEIRS, [as_tclink(Impairment(LOSS_DELAY_S))] * count) as theirs:
                pass
            rows.setdefault(str(count), []).append(
                {"netem": ours["build_s"], "mininet": theirs["build_s"], "mininet_remove": theirs["remove_s"]}
                | {"netem_remove": ours["remove_s"]}
            )
    return rows


def inside(quick: bool) -> dict[str, Any]:
    """Measure; runs on the User-Mode kernel."""
    repeats, count, seconds = (1, 40, 1.0) if quick else (3, 150, 2.0)
    samples: dict[str, Any] = {"accuracy": [], "loaded": [], "tcp1": [], "tcp4": []}
    with mininet(THEIRS, [as_tclink(it) for it in POINTS]) as theirs, bed(tuple(theirs["pids"])) as it:
        it.cable(CABLE)
        ours = {OURS + k: point for k, point in enumerate(POINTS)}
        it.fibers(REFERENCE, *ours)
        it.redirect(REFERENCE)
        senders = {}
        for path in ours:
            for host, end in ((it.a, f"p{path}-a"), (it.b, f"p{path}-b")):
                senders[end] = (Path("/run/netns", host), f"via{path}")
        emulator = Netem.start(it.plant, it.directions(ours), senders)
        it.serve()
        try:
            for _ in range(repeats):
                samples["accuracy"].append(accuracy(it, count))
                samples["loaded"].append(loaded(it, count))
                for flows in (1, 4):
                    samples[f"tcp{flows}"].append(bulk(it, flows, seconds))
            packets = PACKETS // 10 if quick else PACKETS
            samples["loss"] = {
                way: [it.losses(first + LOSSY + k, packets, PPS, share) for k, share in enumerate(LOSSES)]
                for way, first in WAYS
            }
        finally:
            emulator.stop()
    samples["build"] = building(quick)
    return {"guest": machine(), "repeats": repeats, "samples": samples}


def measure(quick: bool) -> dict[str, Any]:
    """Boot the User-Mode kernel and measure inside it."""
    sys.path.insert(0, str(ROOT / "tests" / "netem_vm"))
    import vm  # type: ignore[import-not-found]  # importable once its folder is in sys.path

    if vm.choose_backend() != "uml":
        raise SystemExit("User-Mode Linux does not boot here, and QEMU does not measure netem's times")
    with tempfile.TemporaryDirectory() as name:
        words = [sys.executable, "-m", "benchmarks.netem_vs_mininet", "--inside", "/mnt/out/result.json"]
        status, output = vm.run(words + ["--quick"] * quick, Path(name), timeout_s=BOUND_S)
        if status:
            raise SystemExit(f"on the User-Mode kernel: status {status}: {output.strip()[-1500:]}")
        result: dict[str, Any] = json.loads(Path(name, "result.json").read_text())
    return result


def table(result: dict[str, Any]) -> str:
    samples = result["samples"]
    rows = samples["accuracy"]
    base = [spread([it[key] * 1e6 for it in rows], digits=0) for key in ("cable_s", "reference_s")]
    lines = [
        "| error of the RTT, us | netem: median | netem: p99 | TCLink: median | TCLink: p99 |",
        "|---|---|---|---|---|",
    ]
    for seconds in DELAYS_S:
        each = [f"{way} {delay(seconds)}" for way, _ in WAYS]
        cells = [fiberd_vs_veth.us(rows, row, key) for row in each for key in ("median", "p99")]
        lines.append(f"| {delay(seconds)} one way | {' | '.join(cells)} |")
    busy = [fiberd_vs_veth.us(samples["loaded"], way, key) for way, _ in WAYS for key in ("median", "p99")]
    shares = [median([it[way]["share"] for it in samples["loaded"]]) for way, _ in WAYS]
    title = f"200 us, 100 Mb/s, {shares[0]:.0%} and {shares[1]:.0%} load: RTT above 400 us"
    lines.append(f"| {title} | {' | '.join(busy)} |")
    lines += ["", f"Without delay: one cable {base[0]} us, reference {base[1]} us.", ""]
    lines += ["| TCP, Gb/s | bare cable | netem, 200 us | TCLink, 200 us | netem, 100 Mb/s | TCLink, 100 Mb/s |"]
    lines += ["|---|---|---|---|---|---|"]
    for flows in (1, 4):
        runs = samples[f"tcp{flows}"]
        cells = [spread([it["cable"] for it in runs])]
        for way in ("netem", "mininet", "netem rated", "mininet rated"):
            ratio = median([it[way] / it["cable"] for it in runs])
            cells.append(
                spread([it[way] for it in runs], digits=3) + ("" if "rated" in way else f", ratio {ratio:.2f}")
            )
        lines.append(f"| {flows} flow{'s' * (flows > 1)} | {' | '.join(cells)} |")
    for way, title in (("netem", "testbed's netem"), ("mininet", "Mininet's TCLink")):
        lines += ["", f"{title}:", "", loss.table({"points": samples["loss"][way]})]
    lines += ["", "| links | testbed: build, s | Mininet: build, s | testbed: remove, s | Mininet: remove, s |"]
    lines += ["|---|---|---|---|---|"]
    for count, built in samples["build"].items():
        cells = [spread([it[key] for it in built]) for key in ("netem", "mininet", "netem_remove", "mininet_remove")]
        lines.append(f"| {count} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Guest: {result['guest']}; {result['repeats']} repeats."])


if __name__ == "__main__":
    if "--inside" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--inside", type=Path)
        parser.add_argument("--quick", action="store_true")
        arguments = parser.parse_args()
        arguments.inside.write_text(json.dumps(inside(arguments.quick)))
    else:
        sys.exit(command(__doc__, measure, table))
