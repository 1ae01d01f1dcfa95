"""Time and CPU time of `testbed up metro-40km`, with and without training agents, interleaved.

All times are of whole commands, from exec to exit; the phases are timed by the arrival of their progress lines on
stderr. The CPU time is that of the command and, after its end, of the keeper and all processes below it. On a busy
machine, compare CPU times. Needs root, and torch for agents.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from typing import Any

import psutil

from benchmarks.common import command, median, spread
from benchmarks.containers import PAUSE_S, PHASES, phases, run
from benchmarks.lab_vs_mininet import TESTBED

TOPOLOGY = "metro-40km"
WAYS = {"with agents": ("--agents",), "without agents": ("--no-agents",)}


def _command_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lab_cpu_s(state: str) -> float:
    """Return the CPU seconds of the keeper below ``state`` and of all processes below it."""
    commands = {process: " ".join(process.cmdline()) for process in psutil.process_iter()}
    (keeper,) = (process for process, line in commands.items() if f"testbed.keeper.main {state}" in line)
    return sum(sum(process.cpu_times()[:4]) for process in (keeper, *keeper.children(recursive=True)))


def bring_up(words: tuple[str, ...]) -> dict[str, Any]:
    lab = f"bench{os.getpid()}"
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "TESTBED_STATE": state}
        time.sleep(PAUSE_S)
        before_s = _command_cpu_s()
        try:
            driver = ("--driver", "netns", "--allow-uncertified")
            lines = run([*TESTBED, "up", TOPOLOGY, "--name", lab, *driver, *words], environment)
            cpu_s = _command_cpu_s() - before_s + _lab_cpu_s(state)
        finally:
            run([*TESTBED, "down", lab], environment)
    return {"up_s": lines[-1][0], "cpu_s": cpu_s, "phases": phases(lines)}


def measure(quick: bool) -> dict[str, Any]:
    samples: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(2 if quick else 10):
        for way, words in WAYS.items():
            samples[way].append(bring_up(words))
    return {"samples": samples}


def table(result: dict[str, Any]) -> str:
    names = ("fibers, agents" if phase == "fibers" else phase for phase in PHASES)
    lines = [f"| {TOPOLOGY} | `up`, s | CPU, s | {' | '.join(names)} |", "|---" * (3 + len(PHASES)) + "|"]
    for way, samples in result["samples"].items():
        figures = [spread([sample[key] for sample in samples]) for key in ("up_s", "cpu_s")]
        figures += [f"{median([sample['phases'][phase] for sample in samples]):.2f}" for phase in PHASES]
        lines.append(f"| {way} | {' | '.join(figures)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
