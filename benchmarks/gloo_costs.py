"""Costs of gloo's operations: time of an operation alone, by kind, ranks, bytes, one-way delay and rate.

    seconds = network_s(kind, ranks, bytes, one-way delay, payload rate) + software(kind, ranks, bytes)

Every lab has 8 ranks; groups are its first ranks, or the same number of each of two sites. `local` has no fiber: its
times are software alone. In `mesh-…` each rank has a site of its own, with a fiber to each other site; `pair-…` has
two sites of 4 ranks. All ranks start an operation at one time of the machine's clock; it lasts from the last start to
the last end. Connections are warm, unless a cell has an idle time. Needs root and torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import exit_on_sigterm, load, machine, median
from testbed.core.prediction.network import payload_rate_bps
from testbed.core.units import parse_rate_bps

RANKS = 8
KB, MB = 1_000, 1_000_000
SIZES = (4 * KB, 64 * KB, 1 * MB, 4 * MB, 16 * MB)
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "exchange", "barrier")
REPEATS = ((4 * MB, 7, 1), (MB, 9, 2), (0, 15, 2))
"""(from these bytes on, repeats, repeats before them that do not count)."""
MAX_SEGMENT_BYTES = 1 << 20
"""Of gloo's ring all_reduce."""
KM_PER_S = 200_000.0


@dataclass(frozen=True)
class LabShape:
    sites: int
    delay_s: float = 0.0
    rate: str = "5G"
    groups: tuple[int, ...] = (2, 3, 4, 8)
    in_flight: bool = False
    after_idle: bool = False

    def topology(self) -> str:
        """Return a topology file whose sites are joined by a fiber per pair of sites."""
        sites = [f"s{number}" for number in range(self.sites)]
        lines = ["scale: 1", "sites:", *(f"  {site}: {{nodes: {RANKS // self.sites}}}" for site in sites)]
        fiber = f"km: {self.delay_s * KM_PER_S:g}, rate: {self.rate}, optics: OTN"
        pairs = list(itertools.combinations(sites, 2))
        lines += ["links:"] if pairs else []
        lines += [f"  {a}{b}: {{between: [{a}, {b}], {fiber}}}" for a, b in pairs]
        return "\n".join(lines) + "\n"

    def members(self, ranks: int) -> list[int]:
        """Return the ranks of a group: the same number in each of two sites, else the first ones."""
        if self.sites != 2:
            return list(range(ranks))
        return [*range(ranks // 2), *range(RANKS // 2, RANKS // 2 + ranks // 2)]


LABS = {
    "local": LabShape(1, in_flight=True),
    "mesh-10us": LabShape(8, 10e-6),
    "mesh-500us": LabShape(8, 500e-6, after_idle=True),
    "mesh-5ms": LabShape(8, 5e-3, in_flight=True, after_idle=True),
    "mesh-20ms": LabShape(8, 20e-3, groups=(2, 4)),
    "mesh-5ms-800M": LabShape(8, 5e-3, "800M", groups=(2, 4), after_idle=True),
    "pair-5ms": LabShape(2, 5e-3, groups=(4, 8)),
    "pair-5ms-800M": LabShape(2, 5e-3, "800M", groups=(4, 8)),
}

PROGRAM = """
import json, os, sys, time
import torch
import torch.distributed as dist

gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
groups = {}

def begin(kind, group, members, whole, part):
    if kind == "all_reduce":
        return [dist.all_reduce(whole, group=group, async_op=True)]
    if kind == "reduce_scatter":
        return [reduce_scatter(part, whole, group=group, async_op=True)]
    if kind == "all_gather":
        return [gather(whole, part, group=group, async_op=True)]
    if kind == "all_to_all":
        return [dist.all_to_all_single(part, whole, group=group, async_op=True)]
    if kind == "broadcast":
        return [dist.broadcast(whole, src=members[0], group=group, async_op=True)]
    if kind == "barrier":
        return [dist.barrier(group=group, async_op=True)]
    peer = members[1 - members.index(rank)]  # an exchange
    return [dist.irecv(part, peer, group), dist.isend(whole, peer, group)]

def measure(kind, group, members, size, together, idle_s, repeats):
    elements = max(1, -(-size // 4 // len(members))) * len(members)
    whole = [torch.ones(elements) for _ in range(together)]
    part_elements = elements if kind in ("all_to_all", "exchange") else elements // len(members)
    part = [torch.ones(part_elements) for _ in range(together)]
    times = []
    for repeat in range(repeats):
        start = torch.tensor([time.monotonic()], dtype=torch.float64)
        dist.all_reduce(start, op=dist.ReduceOp.MAX, group=group)  # ranks leave it up to 2 n delays later
        settle_s = 20e-3 + 2 * len(members) * delay_s
        time.sleep(max(0.0, start.item() + settle_s + idle_s - time.monotonic()))
        began, cpu_s = time.monotonic(), time.process_time()
        works = [work for w, p in zip(whole, part) for work in begin(kind, group, members, w, p)]
        for work in works:
            work.wait()
        times.append((began, time.monotonic(), time.process_time() - cpu_s))
    mine = torch.tensor(times, dtype=torch.float64)
    every = torch.zeros(len(members) * repeats, 3, dtype=torch.float64)
    gather(every, mine, group=group)
    every = every.view(len(members), repeats, 3)
    return (every[:, :, 1].amax(0) - every[:, :, 0].amax(0)).tolist(), every[:, :, 2].mean(0).tolist()

cells, delay_s = json.loads(sys.argv[1]), float(sys.argv[2])
for cell in cells:
    members = cell["members"]
    key = tuple(members)
    if key not in groups:
        groups[key] = dist.new_group(members)
    if rank in members:
        warm_up = cell["warm_up"]
        times, cpu = measure(cell["kind"], groups[key], members, cell["bytes"], cell["together"], cell["idle_s"],
                             cell["repeats"] + warm_up)
        cell |= {"first_s": times[:warm_up], "times_s": times[warm_up:], "cpu_s": cpu[warm_up:]}
        if rank == members[0]:
            print("CELL " + json.dumps(cell), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def ring_s(messages: int, message_s: float, delay_s: float) -> float:
    """Return the time of a ring with two messages in flight, each of which waits until its receipt is announced."""
    rounds = math.ceil(messages / 2)
    by_delay_s = rounds * (2 * delay_s + message_s) + (message_s if messages % 2 == 0 else 0.0)
    return max(by_delay_s, messages * message_s + 2 * delay_s)


def network_s(kind: str, ranks: int, size: int, delay_s: float, rate_bps: float, sites: int) -> float:
    """Return the time that an operation takes without software: one-way delays, and bytes at the payload rate."""
    wire_s = 8 * size / rate_bps
    if kind in ("all_reduce", "reduce_scatter"):  # gloo has no reduce_scatter: torch runs an all_reduce
        segments = max(2, math.ceil(math.ceil(size / MAX_SEGMENT_BYTES) / ranks))
        return 2 * ring_s((ranks - 1) * segments, wire_s / ranks / segments, delay_s)
    if kind == "all_gather":
        return ring_s(2 * (ranks - 1), wire_s / ranks / 2, delay_s)
    if kind == "barrier":
        return 2 * (ranks - 1).bit_length() * delay_s
    if kind == "broadcast" and sites > 2:  # a binomial tree; a rank has as many hops as its number has ones
        hops = max(rank.bit_count() for rank in range(ranks))
        return (1 + hops) * delay_s + hops * wire_s
    if kind == "broadcast":
        return 2 * delay_s + ranks / 2 * wire_s
    if kind == "all_to_all":
        return 2 * delay_s + wire_s / ranks * (1 if sites > 2 else (ranks / 2) ** 2)
    return 2 * delay_s + wire_s


def cells(shape: LabShape, quick: bool) -> list[dict[str, Any]]:
    """Return what is measured in a lab: operations alone, after idling, and several in flight."""
    planned: list[dict[str, Any]] = []

    def cell(kind: str, ranks: int, size: int, together: int = 1, idle_s: float = 0.0) -> None:
        repeats, warm_up = next((repeats, warm_up) for least, repeats, warm_up in REPEATS if size >= least)
        if quick or idle_s:
            repeats, warm_up = 3 if quick else 7, 1
        planned.append(
            {"kind": kind, "ranks": ranks, "members": shape.members(ranks), "bytes": size, "together": together,
             "idle_s": idle_s, "repeats": repeats, "warm_up": warm_up}
        )  # fmt: skip

    for ranks, kind in itertools.product(shape.groups, KINDS):
        if kind == "exchange" and ranks > 2:
            continue
        sizes = SIZES[::2] if quick or kind == "reduce_scatter" else SIZES
        large = (64 * MB,) if kind == "all_reduce" and not quick else ()
        for size in (4,) if kind == "barrier" else (*sizes, *large):
            cell(kind, ranks, size)
    if shape.in_flight:
        for ranks, size, together in itertools.product((2, 4), (64 * KB, MB), (1, 2, 4, 8)):
            cell("all_reduce", ranks, size, together)
    if shape.after_idle:
        for size, idle_s in itertools.product((64 * KB, MB, 16 * MB), (0.3, 1.0)):
            cell("all_reduce", 2, size, idle_s=idle_s)
    return planned


def measure(name: str, quick: bool) -> list[dict[str, Any]]:
    """Bring a lab up, and return its cells with their times."""
    shape, output = LABS[name], list[str]()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are not root
        program, topology = Path(folder, "costs.py"), Path(folder, f"{name}.yaml".lower())
        program.write_text(PROGRAM)
        topology.write_text(shape.topology())
        with testbed.up(testbed.load(str(topology)), name="gloo-costs", agents=False, allow_uncertified=True) as lab:
            certified = lab.certificate is not None and lab.certificate.certified
            argv = [sys.executable, str(program), json.dumps(cells(shape, quick)), str(shape.delay_s)]
            job = lab.launch(argv, directory=Path(folder), echo=output.append)
            if job.exit_status():
                raise SystemExit("the program failed:\n" + "\n".join(output[-20:]))
    lines = [json.loads(line.partition("CELL ")[2]) for line in output if "CELL " in line]
    fields = {"lab": name, "delay_s": shape.delay_s, "rate": shape.rate, "certified": certified, "load": load()}
    return [{**fields, **cell} for cell in lines]


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a row per cell: its time, the network's part by formula, and what is left; the least time counts.

    On shared cores the median has the time that other programs took.
    """
    head = ("lab", "operation", "ranks", "bytes", "ms: least (median – most)", "network, ms", "rest, ms", "CPU, ms")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for cell in results:
        title = cell["kind"] + (f" x {cell['together']}" if cell["together"] > 1 else "")
        title += f" after {cell['idle_s']:g} s" if cell["idle_s"] else ""
        low, middle, high = (1e3 * function(cell["times_s"]) for function in (min, median, max))
        shape = LABS[cell["lab"]]
        network_ms = 0.0
        if shape.delay_s:
            rate_bps = payload_rate_bps(parse_rate_bps(shape.rate))
            network_ms = 1e3 * network_s(
                cell["kind"], cell["ranks"], cell["bytes"], shape.delay_s, rate_bps, shape.sites
            )
        lines.append(
            f"| {cell['lab']} | {title} | {cell['ranks']} | {cell['bytes']} | {low:.2f} ({middle:.2f} – {high:.2f})"
            f" | {network_ms:.2f} | {low - network_ms:.2f} | {1e3 * median(cell['cpu_s']):.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats and sizes, to check that it works")
    parser.add_argument("--lab", action="append", choices=tuple(LABS), help="only this lab; may be repeated")
    parser.add_argument("--lines", type=Path, help="also append every cell to this file, a JSON object a line")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("creates network namespaces: run as root")
    exit_on_sigterm()
    results = []
    for name in arguments.lab or LABS:
        print(f"{name}: load {load()}, {machine()}", file=sys.stderr)
        results += measure(name, arguments.quick)
        if arguments.lines:
            with arguments.lines.open("a") as file:
                file.writelines(json.dumps(cell) + "\n" for cell in results if cell["lab"] == name)
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
