"""Two-level exchange over 1000 km: its time against the bound d + n/B, and its exposed time against that of flat DDP.

`exchange`: two ranks at each of two sites exchange 5.2 MB by the agents' own two-level mean, in 8 buckets that are
ready at once, on warm connections. d and the rate are those of the certificate; B is the TCP payload of the rate. With
the lab's default congestion control (cubic), and with `congestion: bbr`. Beside it gloo's flat all_reduce of the same.

`exposed`: 16 ranks train a declared model of 260 k parameters with DDP and in two levels, in 1 and 8 buckets.

Ratios are medians over the repeats. Needs root and torch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import ROOT, command, median, spread
from testbed.core.prediction.network import payload_rate_bps
from testbed.errors import TestbedError

TOPOLOGY, SCALE = "longhaul-1000km", 5000
EXCHANGED_BYTES, BUCKETS = 5_200_000, 8

NODES, MODEL, COMPUTE, STEPS = 8, "1.3B", "300ms", 12
"""Of the 16 ranks: nodes a site, and declared compute that two cores can carry."""
WAYS = ("ddp:buckets=1", "hierarchical:buckets=1", "ddp:buckets=8", "hierarchical:buckets=8")

PROGRAM = """
import json, os, sys, time
import torch
import torch.distributed as dist
from testbed_agents.process_groups import watched
from testbed_agents.strategies.hierarchical import TwoLevelMean
from testbed_agents.strategies.strategy import Context

WARM = 6
byte_count, buckets, times = map(int, sys.argv[1:])
torch.set_num_threads(1)
dist.init_process_group(watched.BACKEND)
two_level = TwoLevelMean(Context.of_default_group(os.environ["TESTBED_SITE"])).reduce
ways = {
    "two-level": lambda parts: [two_level(each) for each in parts],
    "flat": lambda parts: [dist.all_reduce(each, async_op=True) for each in parts],
}
found = {}
for name, begin in ways.items():
    taken = []
    for repeat in range(WARM + times):
        parts = list(torch.ones(byte_count // 4).chunk(buckets))
        # All begin at once, by the clock of the host: ranks leave a barrier at different times.
        at = torch.tensor([time.monotonic() + 0.05], dtype=torch.float64)
        dist.broadcast(at, 0)
        time.sleep(max(0.0, at.item() - time.monotonic()))
        began = time.monotonic()
        for each in begin(parts):
            each.wait()
        if repeat >= WARM:
            taken.append((began, time.monotonic()))
    spans = [None] * dist.get_world_size()
    dist.all_gather_object(spans, taken)
    found[name] = [max(end for _, end in once) - min(began for began, _ in once) for once in zip(*spans)]
if dist.get_rank() == 0:
    print("TIMES " + json.dumps(found), flush=True)
dist.barrier()
time.sleep(0.2)  # the store is rank 0's
os._exit(0)  # not before the threads of the exchange
"""


def measure(quick: bool, parts: tuple[str, ...] = ()) -> dict[str, Any]:
    repeats = 1 if quick else 3
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # ranks are no root
        for part, congestion in (("exchange-cubic", "cubic"), ("exchange-bbr", "bbr")):
            if not parts or part in parts:
                found[part] = _exchanges(congestion, repeats, 5 if quick else 15, Path(folder))
        if not parts or "exposed" in parts:
            found["exposed"] = _exposed(repeats, Path(folder))
    return found


def _exchanges(congestion: str, repeats: int, times: int, folder: Path) -> dict[str, Any]:
    program = folder / "exchange.py"
    program.write_text(PROGRAM)
    topology = testbed.load(TOPOLOGY, {"sites.*.nodes": 2, "scale": SCALE, "congestion": congestion})
    runs = []
    with testbed.up(topology, name="two-level", agents=False) as lab:
        assert lab.certificate is not None
        certificate: Any = lab.certificate.to_dict()
        north = [it for link in certificate["links"] if link["name"] == "north" for it in link["directions"]]
        delay_s = max(it["measured_s"]["median"] for it in north)
        rate_bps = min(it["rate"]["measured_bps"] for it in north)
        for _ in range(repeats):
            said: list[str] = []
            job = lab.launch(
                [sys.executable, str(program), str(EXCHANGED_BYTES), str(BUCKETS), str(times)],
                environment={"PYTHONPATH": str(ROOT / "agents")},
                directory=folder,
                echo=said.append,
            )
            if job.exit_status():
                raise SystemExit("the program failed:\n" + "\n".join(said[-20:]))
            line = next(it for it in said if "TIMES " in it)
            runs.append(json.loads(line.partition("TIMES ")[2]))
            print(
                congestion,
                {name: round(1e3 * median(it)) for name, it in runs[-1].items()},
                os.getloadavg(),
                flush=True,
            )
    return {
        "delay_s": delay_s,
        "rate_bps": rate_bps,
        "bound_s": delay_s + 8 * EXCHANGED_BYTES / payload_rate_bps(rate_bps),
        "congestion_control": certificate["host"].get("congestion_control"),
        "runs_s": runs,
    }


def _exposed(repeats: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    topology = testbed.load(TOPOLOGY, {"sites.*.nodes": NODES, "scale": SCALE})
    with testbed.up(topology, name="two-level") as lab:
        for _ in range(repeats):
            for way in WAYS:
                found.setdefault(way, []).append(_job(lab, way, folder))
                print(way, found[way][-1], os.getloadavg(), flush=True)
    return found


def _job(lab: Any, way: str, folder: Path) -> dict[str, Any]:
    """Return the median exposed time of a step, as the rank that waited least has it: without waiting for others."""
    try:
        lab.open_run(folder)
        job = lab.train(steps=STEPS, strategy=way, compute=COMPUTE, model=MODEL, checkpoint_every=0)
        job.wait(120.0)
    except TestbedError as error:
        return {"error": str(error)}
    ranks = []
    for file in sorted(lab.run_directory.path.rglob("rank-*.jsonl")):
        records = [json.loads(line) for line in file.read_text().splitlines()] if ".checks" not in file.name else []
        steps = {it["step"]: it for it in records if it.get("kind") == "step" and it["step"] > 2}
        if steps:
            ranks.append(steps)
    least = [min(rank[step]["exposed_s"] for rank in ranks) for step in ranks[0]]
    return {"ranks": len(ranks), "exposed_s": median(least)}


def table(result: dict[str, Any]) -> str:
    lines = ["| | bound, ms | measured, ms | bound ÷ measured |", "|---|---|---|---|"]
    for part in ("exchange-cubic", "exchange-bbr"):
        if part not in result:
            continue
        found = result[part]
        bound_s = found["bound_s"]
        for name in found["runs_s"][0]:
            each = [median(run[name]) for run in found["runs_s"]]
            shown = spread([1e3 * it for it in each], digits=0)
            ratio = spread([bound_s / it for it in each])
            lines.append(f"| {name}, {found['congestion_control']} | {1e3 * bound_s:.0f} | {shown} | {ratio} |")
    if "exposed" in result:
        lines += ["", "| 16 ranks | exposed, ms | of flat DDP's |", "|---|---|---|"]
        flat = 0.0
        for way, runs in result["exposed"].items():
            each = [it["exposed_s"] for it in runs if "error" not in it]
            if not each:
                lines.append(f"| `{way}` | {runs[0]['error']} | – |")
                continue
            flat = median(each) if way.startswith("ddp") else flat
            share = f"{median(each) / flat:.2f}" if flat else "–"
            lines.append(f"| `{way}` | {spread([1e3 * it for it in each], digits=0)} | {share} |")
    return "\n".join(lines)


PARTS = ("exchange-cubic", "exchange-bbr", "exposed")

if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table, PARTS))
