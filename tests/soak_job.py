"""Orchestrator of ``tests/soak.py``: a lab, an endless job, and random faults of every kind.

::

    python tests/soak_job.py FOLDER NAME SEED SECONDS

It reports progress on stdout, one JSON object per line; after "up" and "healed" it waits for a line on stdin, so that
the observer can take a sample. Faults of fibers are drawn by the testbed itself from failure statistics
(core/experiment/draw.py), all others here; the keeper gets both at the beginning of a segment
(lab/run/fault_player.py).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import yaml

import testbed
from testbed.core.experiment import fault_schedule
from testbed.errors import HostError
from testbed.host import lab_folder
from testbed.host.files import catalog
from testbed.host.linux import cgroup
from testbed.keeper import client
from testbed.lab.run.fault_player import FaultPlayer

SEGMENT_S = 60.0
QUIET_S = 14.0
"""Time without new faults at the end of each segment, so that a restart can complete."""
BETWEEN_S = 3.0
"""Mean time between two faults drawn here; faults of fibers are additional."""
AHEAD_S = 0.5
TRAINED_STEPS = 20
"""Steps that the job must complete after the last fault."""

TOPOLOGY = """
scale: 1000
defaults: {link: {optics: 400G-LH, waves: 2}}
sites:
  alba:  {nodes: 2, power: grid-a}
  brava: {nodes: 1, power: grid-b}
  costa: {nodes: 1, power: grid-c}
ducts: {bridge: 3 km, motorway: 497 km, coast: 650 km, valley: 540 km, railway: 710 km}
links:
  alba-brava:
    between: [alba, brava]
    via: [bridge, motorway]
    protection: {type: 1+1, via: [railway], wait_to_restore: 1s}
  brava-costa: {between: [brava, costa], via: [valley]}
  costa-alba:  {between: [costa, alba], via: [coast, bridge]}
"""
"""Fibers so long that a step waits more than it computes, which leaves CPU time to others during an hour."""

LINKS = ("alba-brava", "brava-costa", "costa-alba")
BARE = LINKS[1:]
"""Links without a second path, whose ports lose their carriers."""
DIRECTIONS = ("brava-costa:brava", "brava-costa:costa", "costa-alba:alba", "costa-alba:costa")
SITES, NODES, RANKS = ("alba", "brava", "costa"), ("alba-0", "alba-1", "brava-0", "costa-0"), ("0", "1", "2", "3")

FAULTS: tuple[tuple[int, str, tuple[str, ...], dict[str, str]], ...] = (
    # weight, fault, targets, parameters; each lasts 0.2 to 3 s, or for its own duration
    (4, "cut", LINKS, {}),
    (3, "cut", DIRECTIONS, {}),
    (2, "cut", DIRECTIONS, {"carrier": "both"}),
    (2, "cut", BARE, {"carrier": "silent"}),
    (2, "cut", ("bridge", "motorway", "valley"), {}),
    (1, "cut", ("alba-brava",), {"path": "both"}),
    (1, "cut", ("alba-brava",), {"path": "protection"}),
    (4, "flap", BARE, {"down": "40ms", "up": "200ms", "times": "5"}),
    (3, "latency-step", LINKS, {"extra": "1ms", "gap": "50ms"}),
    (2, "brown-out", BARE, {"loss": "5%", "over": "1s", "hold": "500ms"}),
    (2, "impair", LINKS, {"delay": "5ms", "loss": "0.5%"}),
    (2, "jitter", LINKS, {}),
    (2, "rate-squeeze", LINKS, {}),
    (2, "corruption", LINKS, {"survives": "true"}),
    (1, "mtu-black-hole", DIRECTIONS, {"largest": "1000B"}),
    (2, "management-partition", SITES, {}),
    (1, "gateway-down", SITES, {}),
    (3, "rank-pause", RANKS, {}),
    (3, "straggler", RANKS, {"slower": "3x"}),
    (1, "rank-kill", RANKS, {}),
    (1, "node-kill", NODES, {}),
    (1, "power-loss", ("grid-b", "grid-c"), {}),
    (1, "evacuation", SITES, {"warning": "500ms"}),
)
THROTTLED = (2, "straggler", RANKS, {"cpu": "30%"})
"""Drawn too if the host supports control groups."""


def say(what: str, **more: Any) -> None:
    print(json.dumps({"said": what, "t": time.monotonic(), **more}), flush=True)


def faults(chance: random.Random, until_s: float) -> list[dict[str, Any]]:
    """Return lines of a schedule up to ``until_s``."""
    found, t = [], 0.0
    kinds = (*FAULTS, THROTTLED) if _has_control_groups() else FAULTS
    while (t := t + chance.expovariate(1 / BETWEEN_S)) < until_s:
        ((_, fault, targets, parameters),) = chance.choices(kinds, [it[0] for it in kinds])
        line = {"at": f"{t:.3f}s", "inject": fault, "target": chance.choice(targets), "with": dict(parameters)}
        if fault == "rank-kill":  # instantaneous; its own parameter delays the restart
            line["with"] = {"away": f"{chance.uniform(0.2, 2.0):.3f}s"}
        else:
            line["for"] = f"{chance.uniform(0.2, 3.0):.3f}s"
        found.append(line)
    return found


def _has_control_groups() -> bool:
    try:
        cgroup.hierarchy()
    except HostError:
        return False
    return True


def segment(folder: Path, topology: str, seed: int, number: int) -> tuple[fault_schedule.Planned, ...]:
    """Return the planned faults of a segment, parsed by the testbed's own experiment reader."""
    until_s = SEGMENT_S - QUIET_S
    content = {
        "topology": topology,
        "workload": {"steps": 1000, "seed": seed},
        "compress": {"time": "1 year = 90s", "repair": "12 h = 1500ms"},
        "random": {"to": f"{until_s}s", "seed": seed * 1000 + number},
        "schedule": faults(random.Random(f"{seed} {number}"), until_s),
    }
    file = folder / f"segment-{number:03}.yaml"
    file.write_text(yaml.safe_dump(content))
    experiment = catalog.load_experiment(str(file))
    return fault_schedule.plan(experiment, catalog.load_topology_of(experiment))


def main(folder: Path, name: str, seed: int, seconds: float) -> None:
    file = folder / "soak.yaml"
    file.write_text(TOPOLOGY)
    with testbed.up(str(file), name=name, driver="netns", allow_uncertified=True) as lab:
        say("up")
        sys.stdin.readline()
        job = lab.train(
            10_000_000, seed=seed, restarts=1_000_000, timeout_s=6.0, layers=2, heads=2, width=32, checkpoint_every=50
        )
        job.wait_for(TRAINED_STEPS, timeout=120)
        assert lab.run_directory is not None
        say("training", run=str(lab.run_directory.path))
        began_t, number = time.monotonic(), 0
        while time.monotonic() < began_t + seconds:
            planned = segment(folder, str(file), seed, number)
            segment_t, before = time.monotonic() + AHEAD_S, job.step
            with FaultPlayer(lab_folder.folder(name), planned) as player:
                player.hand_over(segment_t, segment_t, 0, {})
                while time.monotonic() < segment_t + SEGMENT_S and not job.over():
                    time.sleep(0.5)
            if job.over():
                raise RuntimeError(f"the job ended: {job.failure()}")
            say("segment", number=number, faults=len(planned), steps=[before, job.step], attempt=job.attempt)
            number += 1
        lab.heal()
        job.wait_for(job.step + TRAINED_STEPS, timeout=120)
        say("healed")
        sys.stdin.readline()
        job.stop()
        while not job.over():
            time.sleep(0.1)
        standing = [it["type"] for it in client.keeper(lab_folder.folder(name)).faults() if it["ended_t"] is None]
        say("stopped", step=job.step, attempt=job.attempt, standing=standing)
        report = lab.report()
        say(
            "report",
            checkers=[dataclasses.asdict(it) for it in report.checkers],
            attempts=len(report.attempts),
            causes=dict(collections.Counter(it.cause.partition(" ")[0] for it in report.attempts)),
            steps_committed=report.training.steps_committed,
            steps_lost=report.training.steps_lost,
            goodput=report.goodput,
            malformed=dict(report.malformed),
            missing=list(report.missing),
        )
    say("down")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
