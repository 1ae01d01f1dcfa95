"""Build and removal times of a lab compared with Mininet for the same shape, and of the whole `up`.

Interleaved: each repeat measures all variants one after the other, on each shape:

- ``testbed``: the engine applies the lab's plan (namespaces, cables, bridges, addresses, routes, sysctls, the emulator
  with all fibers) through its journal, and undoes it.
- ``mininet-whole``: Mininet creates the same namespaces and cables, and applies the rest of the plan by one `ip -batch`
  per node, without emulator. Shape, addresses and routes are the same: a ping crosses it (``mininet_lab.py --check``).
- ``mininet-bare``: Mininet's namespaces and cables alone, without addresses: its minimum.
- ``up``: `testbed up --no-agents` as run by a user, from a cold Python to a certified lab; and `down`.

A node of the testbed has its own network, mount, IPC and UTS namespaces and a hosts file; Mininet's has network and
mount namespaces and a shell. Mininet's switches are not used (see ``mininet_lab.py``). Needs root and Debian's
`mininet`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import MININET_PYTHON, ROOT, SHAPES, command, ring, shape, spread, topology_text
from testbed.core.plan import build
from testbed.core.plan.codec import to_dict
from testbed.core.plan.properties import Shape
from testbed.core.plan.resources import Fibers
from testbed.core.plan.step import Step
from testbed.core.topology.model import Topology
from testbed.host.drivers.driver import Handler
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.linux import process
from testbed.keeper import engine, handlers
from testbed.keeper.journal import Journal

TESTBED = (sys.executable, "-m", "testbed.cli.app")
WAYS = ("testbed", "mininet-whole", "mininet-bare", "up")
BOUND_S = 240.0


def by_engine(topology: Topology, emulator_name: str = "fiberd") -> dict[str, float]:
    """Return the seconds of apply and undo as performed by the keeper, without agents."""
    plan = build.build(topology, agents=False, emulator=emulator_name)
    with tempfile.TemporaryDirectory() as name:
        folder, lab, pid = Path(name), f"bench{os.getpid()}", os.getpid()
        journal = Journal.create(folder / "journal", lab, process.boot_id(), (pid, process.started(pid)))
        driver = NetnsDriver(lab, folder / "handles")
        emulator = handlers.EmulatorHandler(driver, folder / "emulator.log", lambda status: None)
        made: dict[type[Step], Handler] = {**dict.fromkeys(driver.kinds, driver), Fibers: emulator, Shape: emulator}
        worker = engine.Engine(journal, made)
        began = time.perf_counter()
        try:
            worker.apply(engine.LAB, plan)
        finally:
            built = time.perf_counter()
            worker.undo_all()
            driver.close()
            journal.close()
        return {"build_s": built - began, "remove_s": time.perf_counter() - built}


def by_mininet(plan: str, *options: str) -> dict[str, float]:
    argv = [MININET_PYTHON, str(ROOT / "benchmarks" / "mininet_lab.py"), *options]
    done = subprocess.run(argv, input=plan, capture_output=True, text=True, timeout=BOUND_S)
    if done.returncode:
        raise SystemExit(f"mininet: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return {"build_s": found["build_s"], "remove_s": found["remove_s"]}


def by_up(topology_file: str, options: tuple[str, ...] = ("--no-agents",)) -> dict[str, float]:
    """Return the seconds of the commands `up` and `down`, for a lab of namespaces."""
    lab = f"bench{os.getpid()}"
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", "TESTBED_STATE": state}

        def call(*words: str) -> float:
            began = time.perf_counter()
            done = subprocess.run([*TESTBED, *words], env=environment, capture_output=True, text=True, timeout=BOUND_S)
            if done.returncode:
                raise SystemExit(f"testbed {words[0]}: {done.stderr.strip()[-600:]}")
            return time.perf_counter() - began

        try:
            # On a busy machine the lab may be out of tolerance; its times are still of interest.
            up_s = call("up", topology_file, "--name", lab, "--driver", "netns", "--allow-uncertified", *options)
        finally:
            down_s = call("down", "--all")
        return {"build_s": up_s, "remove_s": down_s}


def built(way: str, topology: Topology) -> dict[str, float]:
    if way == "testbed":
        return by_engine(topology)
    if way == "up":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, f"{topology.name}.yaml")
            pairs = ring(len(topology.sites))
            file.write_text(topology_text(len(topology.sites), topology.sites[0].nodes, pairs))
            return by_up(str(file))
    plan = json.dumps([to_dict(step) for step in build.build(topology, agents=False)])
    return by_mininet(plan, *(["--whole"] if way == "mininet-whole" else []))


def table(result: dict[str, Any]) -> str:
    lines = [
        "| sites × nodes | | testbed's engine | Mininet, same shape | Mininet, bare | `up` / `down`, whole command |",
        "|---|---|---|---|---|---|",
    ]
    for name, ways in result["shapes"].items():
        for key, words in (("build_s", "build, s"), ("remove_s", "remove, s")):
            cells = [spread([it[key] for it in ways[way]]) for way in WAYS]
            lines.append(f"| {name} | {words} | {' | '.join(cells)} |")
    agents = result["metro_up"]
    lines += [
        "",
        f"Whole `up metro-40km` with its 4 agents, command to prompt: {spread([it['build_s'] for it in agents])} s "
        f"(goal 6); `down`: {spread([it['remove_s'] for it in agents])} s.",
    ]
    return "\n".join(lines)


def measure(quick: bool) -> dict[str, Any]:
    repeats = 1 if quick else 5
    shapes: dict[str, dict[str, list[dict[str, float]]]] = {}
    for sites, nodes in SHAPES[:2] if quick else SHAPES:
        topology = shape(sites, nodes)
        ways = shapes.setdefault(f"{sites} × {nodes}", {way: [] for way in WAYS})
        for _ in range(repeats if sites < 64 else max(1, repeats // 2)):
            for way in WAYS:
                ways[way].append(built(way, topology))
    return {"shapes": shapes, "metro_up": [by_up("metro-40km", ()) for _ in range(repeats)]}


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
