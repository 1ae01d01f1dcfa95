"""fiberd against a bare veth pair, in one interleaved run.

Needs root, ping and iperf3. On a machine that does other things, too, only the ratios mean something: every repeat
measures both paths one after the other, and the medians over the repeats are printed. Takes under two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "netns")]

from fiberd_lab import Lab, run  # noqa: E402

from testbed.core.physics.impairment import Direction, Impairment  # noqa: E402
from testbed.host.fiberd import Fiberd  # noqa: E402

DELAY_S = 200e-6
FLOOD_PAYLOAD_BYTES = 22  # a frame of 64 B with its headers
PACED_PPS = 50_000
BARE, FIBER = "10.76.0.2", "10.77.0.2"


def add_bare_pair(lab: Lab) -> None:
    """A veth pair that joins the two hosts directly, beside the fiber."""
    run("ip", "link", "add", "bare0", "netns", lab.a, "type", "veth",
        "peer", "name", "bare0", "netns", lab.b, "index", "900")  # fmt: skip
    for side, namespace in enumerate((lab.a, lab.b), 1):
        run("ip", "-n", namespace, "addr", "add", f"10.76.0.{side}/24", "dev", "bare0")
        run("ip", "-n", namespace, "link", "set", "bare0", "up")


def start(lab: Lab, log: Path) -> Fiberd:
    directions = []
    for link in range(lab.links):
        near, far = lab.ends(link)
        directions += [
            Direction(f"l{link}:b", near, far, Impairment(DELAY_S)),
            Direction(f"l{link}:a", far, near, Impairment(DELAY_S)),
        ]
    return Fiberd.start(lab.plant, directions, 0, log)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(lab: Lab, emulator: Fiberd, samples: dict[str, list[float]]) -> None:
    """One repeat: each quantity on the bare pair, then on the fiber."""

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    for name, target in (("bare", BARE), ("fiberd", FIBER)):
        rtts = lab.rtts_s(300, 0.003, target)
        note(f"rtt_median_us {name}", statistics.median(rtts) * 1e6)
        note(f"rtt_p99_us {name}", percentile(rtts, 0.99) * 1e6)

    for flows in (1, 4):
        for name, target in (("bare", BARE), ("fiberd", FIBER)):
            before_s = cpu_s(emulator.pid)
            end = lab.iperf(2, "-P", str(flows), target=target)
            gbit = end["sum_received"]["bytes"] * 8e-9
            note(f"tcp{flows}_gbps {name}", end["sum_received"]["bits_per_second"] / 1e9)
            if name == "fiberd":
                note(f"tcp{flows}_cpu_s_per_gbit", (cpu_s(emulator.pid) - before_s) / gbit)

    for name, target, device in (("bare", BARE, "bare0"), ("fiberd", FIBER, "fib0")):
        for pace, bits in (("paced", PACED_PPS * FLOOD_PAYLOAD_BYTES * 8), ("flood", 0)):
            before = emulator.stats()[0].drops
            sent, got = link_packets(lab, device)
            end = lab.iperf(1, "-u", "-b", str(bits), "-l", str(FLOOD_PAYLOAD_BYTES), target=target)["sum"]
            sent, got = (now - then for now, then in zip(link_packets(lab, device), (sent, got), strict=True))
            note(f"{pace}_kpps {name}", end["packets"] / end["seconds"] / 1e3)
            note(f"{pace}_lost_between_hosts {name}", sent - got)
            note(f"{pace}_lost_in_socket_percent {name}", end["lost_percent"])
            if name == "fiberd":
                note(f"{pace}_dropped_by_fiberd", sum(emulator.stats()[0].drops.values()) - sum(before.values()))


def link_packets(lab: Lab, device: str) -> tuple[int, int]:
    """Packets that host a has sent and that have reached host b."""
    sent = lab.links_of(lab.a)[device]["stats64"]["tx"]["packets"]
    got = lab.links_of(lab.b)[device]["stats64"]["rx"]["packets"]
    return sent, got


def many_links(log: Path) -> tuple[float, int]:
    """Resident memory (MB) and CPU ticks in a second of fiberd with 32 idle links."""
    lab = Lab(f"fbm{os.getpid()}", links=32)
    try:
        lab.build()
        emulator = start(lab, log)
        try:
            lab.rtts_s(2, 0.01, "10.77.31.2")
            status = Path(f"/proc/{emulator.pid}/status").read_text()
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            before_s = cpu_s(emulator.pid)
            emulator.wait(1.0)
            return resident / 1000, round((cpu_s(emulator.pid) - before_s) * os.sysconf("SC_CLK_TCK"))
        finally:
            emulator.stop()
    finally:
        lab.destroy()


def table(m: Callable[[str], float], resident_mb: float, idle_ticks: int, scheduling: str) -> str:
    target_us = 2 * DELAY_S * 1e6
    error_us = m("rtt_median_us fiberd") - m("rtt_median_us bare") - target_us
    rows: list[tuple[str, float, float, str]] = [
        ("RTT median, us", m("rtt_median_us bare"), m("rtt_median_us fiberd"), f"error {error_us:+.0f} (reach for 10)"),
        ("RTT p99, us", m("rtt_p99_us bare"), m("rtt_p99_us fiberd"), f"target {target_us:.0f} + bare"),
    ]
    for flows in (1, 4):
        bare, fiber = m(f"tcp{flows}_gbps bare"), m(f"tcp{flows}_gbps fiberd")
        note = f"ratio {fiber / bare:.2f} (reach for 0.6); {m(f'tcp{flows}_cpu_s_per_gbit') * 1e3:.1f} ms CPU per Gbit"
        rows.append((f"TCP, {flows} flow{'s' * (flows > 1)}, Gb/s", bare, fiber, note))
    for pace, words in (("paced", f"64 B at {PACED_PPS / 1000:.0f} kpps"), ("flood", "64 B flood")):
        dropped = f"dropped by fiberd: {m(f'{pace}_dropped_by_fiberd'):.0f} (reach for 0)"
        for quantity, title, note in (
            ("kpps", "sent, kpps", ""),
            ("lost_between_hosts", "lost between the hosts", dropped),
            ("lost_in_socket_percent", "lost in all, %", "the rest found the receiver's socket full"),
        ):
            values = m(f"{pace}_{quantity} bare"), m(f"{pace}_{quantity} fiberd")
            rows.append((f"{words}: {title}", *values, note))
    lines = ["| | bare veth | fiberd, 200 us | |", "|---|---|---|---|"]
    lines += [f"| {name} | {bare:.4g} | {fiber:.4g} | {note} |" for name, bare, fiber, note in rows]
    lines.append(f"| 32 links: resident, MB | | {resident_mb:.1f} | {idle_ticks} CPU ticks in an idle second |")
    return "\n".join([*lines, "", f"fiberd: {scheduling}; {machine()}"])


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every sample to this file, too")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("makes network namespaces: needs root")

    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "fiberd.log"
        lab = Lab(f"fb{os.getpid()}")
        try:
            lab.build()
            add_bare_pair(lab)
            emulator = start(lab, log)
            try:
                scheduling = emulator.info.scheduling
                for _ in range(arguments.repeats):
                    measure(lab, emulator, samples)
            finally:
                emulator.stop()
        finally:
            lab.destroy()
        resident_mb, idle_ticks = many_links(log)

    medians = {name: statistics.median(values) for name, values in samples.items()}
    print(table(medians.__getitem__, resident_mb, idle_ticks, scheduling))
    result = {
        "machine": machine(),
        "scheduling": scheduling,
        "medians": medians,
        "samples": samples,
        "links32": {"resident_mb": resident_mb, "idle_cpu_ticks": idle_ticks},
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    else:
        print(json.dumps({**medians, "links32": result["links32"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
