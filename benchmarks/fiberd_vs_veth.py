"""fiberd compared with bare veth pairs, interleaved: accuracy of the delay, idle and loaded, bulk TCP, packet rate.

On a shared machine only differences and ratios are meaningful. Every repeat measures all paths, and the table has
medians over repeats. Paths between the same two hosts:

- *cable*: one veth pair.
- *reference*: two veth pairs with the plant between them, as a fiber has, and a kernel redirect without delay. The
  error of a fiber is its round trip minus the target minus the reference's median: the cost of the emulator alone.
- fibers with five delays.

Loaded: another flow sends full UDP packets at 80 % of the fiber's rate in the direction of the probes. Packets then
queue, which is a property of the network and not an error of the emulator. The benchmark therefore subtracts the round
trip of a fiber of that rate *without* delay under the same load. For comparison it measures the kernel's shaper (tbf,
two packets of burst) at that rate. fiberd's own histogram of lateness (sent - due) isolates the emulator's share.

The experiment *no queue* tells the fiber's queue from the emulator: the same load, interleaved, on a fiber of 10 Gb/s,
where a packet takes 1.2 us instead of 62. What remains there is the emulator and the hosts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bed import Bed, bed
from benchmarks.common import DELAYS_S, command, cpu_s, delay, median, percentile, spread
from testbed.core.physics.impairment import Impairment
from testbed.host.emulators.fiberd import Fiberd

CABLE, REFERENCE, SHAPER, UNDELAYED = 0, 1, 2, 3
FIRST = 4
"""Path of the first of :data:`DELAYS_S`."""
FIBERS = {FIRST + number: seconds for number, seconds in enumerate(DELAYS_S)}
BULK = next(path for path, seconds in FIBERS.items() if seconds == 200e-6)

RATE_BPS, SHARE = 200e6, 0.8
WIDE_BPS = 10e9
"""Rate at which the same load forms no queue."""
QUEUE_BYTES = 1_000_000
FLOOD_PAYLOAD_BYTES = 22  # a frame of 64 B with its headers
PACED_PPS = 50_000


def plain() -> dict[int, Impairment]:
    return {UNDELAYED: Impairment(), **{path: Impairment(seconds) for path, seconds in FIBERS.items()}}


def loaded(rate_bps: float) -> dict[int, Impairment]:
    return {path: Impairment(it.delay_s, rate_bps, QUEUE_BYTES) for path, it in plain().items()}


def errors_s(ordered: list[float], base: float) -> dict[str, float]:
    """Return minimum, median and p99 of round trips minus ``base``, and the number of probes."""
    shares = (("min", 0.0), ("median", 0.5), ("p99", 0.99))
    return {name: percentile(ordered, share) - base for name, share in shares} | {"probes": len(ordered)}


def idle(it: Bed, count: int) -> dict[str, Any]:
    """Measure one repeat of round trips over all paths, with a probe every 4 ms in total."""
    found = it.round_trips([CABLE, REFERENCE, *FIBERS], count, 0.004)
    base = median(found[REFERENCE])
    rows = {"cable": errors_s(found[CABLE], 0.0), "reference": errors_s(found[REFERENCE], 0.0)}
    return rows | {delay(seconds): errors_s(found[path], 2 * seconds + base) for path, seconds in FIBERS.items()}


def under_load(it: Bed, emulator: Fiberd, count: int) -> dict[str, Any]:
    """Measure one repeat under load: each path in turn carries load and probes; fibers have a rate meanwhile."""
    found: dict[int, list[float]] = {}
    wide: dict[int, list[float]] = {}
    late: dict[int, list[int]] = {}
    shares: dict[int, float] = {}

    def loaded_trips(path: int, rate_bps: float) -> list[float]:
        emulator.set({one.name: one.impairment for one in it.directions(loaded(rate_bps))})
        with it.load(path, RATE_BPS, SHARE, 1.5 + count * 0.005) as load:
            trips = it.round_trips([path], count, 0.005)[path]
        shares[path] = load["share"]
        return trips

    for path in (SHAPER, UNDELAYED, *FIBERS):
        if path != SHAPER:
            wide[path] = loaded_trips(path, WIDE_BPS)
        before = counts(emulator, path)
        found[path] = loaded_trips(path, RATE_BPS)
        late[path] = [now - then for now, then in zip(counts(emulator, path), before, strict=True)]
    emulator.set({one.name: one.impairment for one in it.directions(plain())})
    base, wide_base = median(found[UNDELAYED]), median(wide[UNDELAYED])
    rows: dict[str, Any] = {
        "shaper": errors_s(found[SHAPER], 0.0),
        "undelayed": errors_s(found[UNDELAYED], 0.0),
        "wide": errors_s(wide[UNDELAYED], 0.0),
    }
    for path, seconds in FIBERS.items():
        no_queue = errors_s(wide[path], 2 * seconds + wide_base)["median"]
        measured = errors_s(found[path], 2 * seconds + base)
        rows[delay(seconds)] = measured | {"late": late[path], "share": shares[path], "no_queue": no_queue}
    return rows


def counts(emulator: Fiberd, path: int) -> tuple[int, ...]:
    """Return fiberd's histogram of lateness toward b; empty for other paths."""
    return next((it.lateness_counts for it in emulator.stats() if it.direction == f"p{path}:b"), ())


def bulk(it: Bed, emulator: Fiberd, flows: int, seconds: float) -> dict[str, float]:
    found = {}
    for name, path in (("cable", CABLE), ("fiberd", BULK)):
        before_s = cpu_s(emulator.pid)
        end = it.iperf(path, seconds, "-P", str(flows))["sum_received"]
        found[name] = end["bits_per_second"] / 1e9
        if path == BULK:
            found["cpu_s_per_gbit"] = (cpu_s(emulator.pid) - before_s) / (end["bytes"] * 8e-9)
    return found


def packet_rate(it: Bed, emulator: Fiberd, bits_per_second: float, seconds: float) -> dict[str, float]:
    """Send 64 B frames; as fast as iperf3 can if ``bits_per_second`` is 0."""
    found: dict[str, float] = {}
    for name, path in (("cable", CABLE), ("fiberd", BULK)):
        dropped = sum(sum(one.drops.values()) for one in emulator.stats())
        before = it.packets(path)
        end = it.iperf(path, seconds, "-u", "-b", f"{bits_per_second:.0f}", "-l", str(FLOOD_PAYLOAD_BYTES))["sum"]
        time.sleep(0.1)  # packets still in flight
        sent, got = (now - then for now, then in zip(it.packets(path), before, strict=True))
        found[f"{name}_kpps"] = end["packets"] / end["seconds"] / 1e3
        found[f"{name}_lost"] = sent - got
        found[f"{name}_lost_in_all"] = end["lost_percent"] / 100
        if path == BULK:
            found["dropped_by_fiberd"] = sum(sum(one.drops.values()) for one in emulator.stats()) - dropped
    return found


def measure(quick: bool) -> dict[str, Any]:
    repeats, count, seconds = (1, 60, 1.0) if quick else (3, 300, 2.0)
    samples: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder, bed() as it:
        it.cable(CABLE)
        it.fibers(REFERENCE, SHAPER, UNDELAYED, *FIBERS)
        it.redirect(REFERENCE)
        it.redirect(SHAPER, RATE_BPS)
        it.serve()
        emulator = Fiberd.start(it.plant, it.directions(plain()), 0, Path(folder, "log"))
        try:
            bounds = emulator.stats()[0].lateness_bounds_s
            for _ in range(repeats):
                samples.setdefault("idle", []).append(idle(it, count))
                samples.setdefault("loaded", []).append(under_load(it, emulator, count))
                for flows in (1, 4):
                    samples.setdefault(f"tcp{flows}", []).append(bulk(it, emulator, flows, seconds))
                for pace, pps in (("paced", PACED_PPS), ("flood", 0)):
                    bits = pps * FLOOD_PAYLOAD_BYTES * 8
                    samples.setdefault(pace, []).append(packet_rate(it, emulator, bits, seconds))
            scheduling = emulator.info.scheduling
        finally:
            emulator.stop()
    return {"scheduling": scheduling, "repeats": repeats, "lateness_bounds_s": bounds, "samples": samples}


def us(rows: list[dict[str, Any]], row: str, key: str) -> str:
    return spread([it[row][key] * 1e6 for it in rows], digits=0)


def late_share(rows: list[dict[str, Any]], row: str, bounds: list[float], beyond_s: float) -> float:
    """Return the share of packets later than the first histogram bound at or above ``beyond_s``."""
    counted: list[int] = [sum(column) for column in zip(*(it[row]["late"] for it in rows), strict=True)]
    first = next(number for number, bound in enumerate(bounds) if bound >= beyond_s)
    return sum(counted[first + 1 :]) / max(1, sum(counted))


def table(result: dict[str, Any]) -> str:
    samples, bounds = result["samples"], result["lateness_bounds_s"]
    quiet, busy = samples["idle"], samples["loaded"]
    lines = [
        "| RTT, us | minimum | median | p99 |",
        "|---|---|---|---|",
        *(
            f"| {title}, idle | {us(quiet, row, 'min')} | {us(quiet, row, 'median')} | {us(quiet, row, 'p99')} |"
            for row, title in (("cable", "one cable"), ("reference", "reference (redirect)"))
        ),
        *(
            f"| {title}, loaded | {us(busy, row, 'min')} | {us(busy, row, 'median')} | {us(busy, row, 'p99')} |"
            for row, title in (
                ("shaper", "kernel's shaper"),
                ("undelayed", "fiberd, no delay"),
                ("wide", "fiberd, no delay, 10 Gb/s"),
            )
        ),
        "",
        "| error of the RTT, us | idle: median | p99 | loaded: median | p99 | no queue: median | > 100 us late |",
        "|---|---|---|---|---|---|---|",
    ]
    for seconds in DELAYS_S:
        row = delay(seconds)
        cells = [us(rows, row, key) for rows in (quiet, busy) for key in ("median", "p99")]
        cells.append(us(busy, row, "no_queue"))
        lines.append(f"| {row} one way | {' | '.join(cells)} | {late_share(busy, row, bounds, 100e-6):.2%} |")
    lines += ["", "| | bare cable | fiberd, 200 us | |", "|---|---|---|---|"]
    for flows in (1, 4):
        rows = samples[f"tcp{flows}"]
        ratio = spread([it["fiberd"] / it["cable"] for it in rows])
        note = f"ratio {ratio}; {median([it['cpu_s_per_gbit'] for it in rows]) * 1e3:.1f} ms CPU per Gbit"
        cells = [spread([it[name] for it in rows], digits=1) for name in ("cable", "fiberd")]
        lines.append(f"| TCP, {flows} flow{'s' * (flows > 1)}, Gb/s | {cells[0]} | {cells[1]} | {note} |")
    for pace, label in (("paced", f"64 B at {PACED_PPS / 1000:.0f} kpps"), ("flood", "64 B flood")):
        rows = samples[pace]
        cells = [spread([it[f"{name}_kpps"] for it in rows], digits=1) for name in ("cable", "fiberd")]
        lost = [f"{max(it[f'{name}_lost'] for it in rows):.0f}" for name in ("cable", "fiberd")]
        dropped = f"at most {max(it['dropped_by_fiberd'] for it in rows):.0f} dropped by fiberd"
        lines.append(f"| {label}: sent, kpps | {cells[0]} | {cells[1]} | {dropped} |")
        lines.append(f"| {label}: lost between the hosts, at most | {lost[0]} | {lost[1]} | |")
    return "\n".join(
        [
            *lines,
            "",
            f"fiberd: {result['scheduling']}; {result['repeats']} repeats; loaded: {RATE_BPS / 1e6:.0f} Mb/s, "
            f"achieved load {spread([it[delay(one)]['share'] for it in busy for one in DELAYS_S])}.",
        ]
    )


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
