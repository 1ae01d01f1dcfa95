"""Cost of the containerlab driver: `up` and `down` compared with plain containerlab and with namespaces; idle CPU.

Interleaved: each repeat builds and removes every topology in three ways, without agents. Every other repeat uses the
opposite order, because the kernel's cleanup of a destroyed lab slows the next one:

- ``netns``: `testbed up --driver netns`, and `down`.
- ``containerlab``: `testbed up --driver containerlab`, and `down`.
- ``plain``: `containerlab deploy` and `destroy --cleanup` of the file that the
  containerlab driver deploys, printed by `testbed render`. It creates containers, addresses and routes; fibers have no
  carrier and are not measured.

All times are of whole commands, from exec to exit. `up` therefore includes what plain containerlab lacks: keeper,
journal, emulator, certificate. Its phases are timed by the arrival of their progress lines on stderr.

At rest: CPU time of the keeper (all threads) and of the emulator over 30 s in a lab whose agents have no job; then
again with the recorder of a run, which scrapes every rank each second, in this process. Needs root, docker,
containerlab, the image, and torch for agents in namespaces.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import ROOT, command, median, spread
from benchmarks.lab_vs_mininet import BOUND_S, TESTBED
from testbed.core.topology.model import topology_to_dict
from testbed.host import lab_folder
from testbed.host.files.store import RunDirectory
from testbed.keeper import client
from testbed.lab.jobs.recorder import Recorder

TOPOLOGIES = {"metro-40km": ("metro-40km", 8), "8 × 4": (str(ROOT / "benchmarks" / "ring-8x4.yaml"), 4)}
"""Name in the table: (topology, repeats)."""

WAYS = ("netns", "containerlab", "plain")
DRIVERS = ("netns", "containerlab")
PHASES = ("begin", "keeper", "nodes", "fibers", "certify", "end")
"""End of each phase: plan computed · plan received by the keeper · namespaces or containers created · fibers up ·
certified · prompt."""

REST_S = 30.0
PAUSE_S = 2.0
"""Pause before each lab, until the kernel and docker have cleaned up the previous one."""
SETTLE_S = 3.0
"""Pause after `up`: agents finish their imports, and the emulator returns memory after a second."""

_BEGINS = {
    "plan": "keeper",
    "namespaces": "nodes",
    "containers": "nodes",
    "fibers": "fibers",
    "certify": "certify",
    "certified": "end",
    "outside": "end",
}
"""Phase that begins with a progress line, by the line's first word."""


def run(argv: Sequence[str], environment: dict[str, str]) -> list[tuple[float, str]]:
    """Return a command's stderr lines with their times in seconds since exec; the last, empty line is its end."""
    began = time.perf_counter()
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        start_new_session=True,  # a session has its own CPU share, as the keeper has (sched(7), autogroup)
    ) as child:  # fmt: skip
        assert child.stderr is not None
        lines = [(time.perf_counter() - began, line) for line in child.stderr]
        status = child.wait(BOUND_S)
    lines.append((time.perf_counter() - began, ""))
    if status:
        raise SystemExit(f"{' '.join(argv)}: {''.join(line for _, line in lines)[-600:]}")
    return lines


def phases(lines: list[tuple[float, str]]) -> dict[str, float]:
    """Return the duration of each of :data:`PHASES` in seconds, from the progress lines of `up`."""
    found = dict.fromkeys(PHASES, 0.0)
    phase, since = PHASES[0], 0.0
    for t, line in lines:
        word = re.match(r"\[ *[\d.]+ s\] (\w+)", line)
        following = _BEGINS.get(word[1]) if word else None
        if following or not line:
            found[phase] += t - since
            phase, since = following or phase, t
    return found


def by_testbed(driver: str, topology: str, lab: str, environment: dict[str, str]) -> dict[str, Any]:
    words = ["--driver", driver, "--no-agents", "--allow-uncertified"]
    try:
        lines = run([*TESTBED, "up", topology, "--name", lab, *words], environment)
    finally:
        removed = run([*TESTBED, "down", lab], environment)
    return {"up_s": lines[-1][0], "down_s": removed[-1][0], "phases": phases(lines)}


def by_containerlab(topology: str, lab: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    file = folder / f"{lab}.clab.yml"
    run([*TESTBED, "render", topology, "--name", lab, "--output", str(file)], environment)
    # Without it, each deployment looks up the newest version, and waits 3 s if there is no internet.
    environment = {**environment, "CLAB_VERSION_CHECK": "disable"}
    try:
        up_s = run(["containerlab", "deploy", "--topo", str(file)], environment)[-1][0]
    finally:
        down_s = run(["containerlab", "destroy", "--topo", str(file), "--cleanup"], environment)[-1][0]
    return {"up_s": up_s, "down_s": down_s}


def made(way: str, topology: str) -> dict[str, Any]:
    lab = f"bench{os.getpid()}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", "TESTBED_STATE": str(folder / "state")}
        if way == "plain":
            return by_containerlab(topology, lab, folder, environment)
        return by_testbed(way, topology, lab, environment)


def cpu_s(pid: int | None) -> float:
    """Return the CPU seconds of all live threads of a process (proc(5), schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir() if pid else ()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def at_rest(driver: str) -> dict[str, float]:
    """Return shares of one core: keeper and emulator, idle and observed, and the observer."""
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"TESTBED_STATE": f"{name}/state", "TESTBED_RUNS": f"{name}/runs"}
        with testbed.up("metro-40km", name=f"bench{os.getpid()}", driver=driver, allow_uncertified=True) as lab:
            folder = lab_folder.folder(lab.name)
            hello = client.keeper(folder).hello()
            run_directory = RunDirectory.create(Path(name, "runs"), lab.name)
            run_directory.write_json("topology.json", topology_to_dict(lab.topology))
            found: dict[str, float] = {}
            for suffix, observer in (("", None), (" observed", Recorder(folder, lab.topology, run_directory))):
                if observer is not None:
                    observer.start()
                time.sleep(SETTLE_S)
                before, mine = [cpu_s(hello[pid]) for pid in ("pid", "emulator_pid")], time.process_time()
                time.sleep(REST_S)
                keeper, emulator = (
                    cpu_s(hello[pid]) - was for pid, was in zip(("pid", "emulator_pid"), before, strict=True)
                )
                found |= {f"keeper{suffix}": keeper / REST_S, f"emulator{suffix}": emulator / REST_S}
                if observer is not None:
                    found["observer"] = (time.process_time() - mine) / REST_S
                    observer.stop()
                    if observer.trouble:
                        raise SystemExit(observer.trouble)
            return found


def measure(quick: bool) -> dict[str, Any]:
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, (topology, repeats) in TOPOLOGIES.items():
        ways = found.setdefault(name, {way: [] for way in WAYS})
        for number in range(1 if quick else repeats):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                time.sleep(PAUSE_S)
                ways[way].append(made(way, topology))
    return {"topologies": found, "rest": {driver: at_rest(driver) for driver in DRIVERS}}


def ratios(ways: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """Return driver / plain of each repeat: `up`, `up` without certification, creation of containers alone, `down`."""
    pairs = list(zip(ways["containerlab"], ways["plain"], strict=True))
    return {
        "up": [ours["up_s"] / plain["up_s"] for ours, plain in pairs],
        "uncertified": [(ours["up_s"] - ours["phases"]["certify"]) / plain["up_s"] for ours, plain in pairs],
        "nodes": [ours["phases"]["nodes"] / plain["up_s"] for ours, plain in pairs],
        "down": [ours["down_s"] / plain["down_s"] for ours, plain in pairs],
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        "| | namespaces | containerlab driver | plain containerlab | driver / plain |",
        "|---|---|---|---|---|",
    ]
    for name, ways in result["topologies"].items():
        ratio = ratios(ways)
        for key, word in (("up_s", "up"), ("down_s", "down")):
            cells = [spread([it[key] for it in ways[way]]) for way in WAYS]
            lines.append(f"| {name}: `{word}`, s | {' | '.join(cells)} | {spread(ratio[word])} |")
        both = [spread([it["up_s"] - it["phases"]["certify"] for it in ways[way]]) for way in DRIVERS]
        lines.append(
            f"| {name}: `up` without certification, s | {' | '.join(both)} | | {spread(ratio['uncertified'])} |"
        )
        both = [spread([it["phases"]["nodes"] for it in ways[way]]) for way in DRIVERS]
        lines.append(f"| {name}: nodes alone, s | {' | '.join(both)} | | {spread(ratio['nodes'])} |")
    lines += [
        "",
        f"| phases of `up`, s (medians) | {' | '.join(PHASES)} |",
        f"|---|{'---|' * len(PHASES)}",
    ]
    for name, ways in result["topologies"].items():
        for way in DRIVERS:
            cells = [f"{median([it['phases'][phase] for it in ways[way]]):.2f}" for phase in PHASES]
            lines.append(f"| {name}, {way} | {' | '.join(cells)} |")
    lines += [
        "",
        "| at rest, of one core | keeper | emulator | keeper, observed | emulator, observed | observer |",
        "|---|---|---|---|---|---|",
    ]
    for driver, found in result["rest"].items():
        cells = [
            f"{found[key]:.2%}" for key in ("keeper", "emulator", "keeper observed", "emulator observed", "observer")
        ]
        lines.append(f"| {driver} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
