"""Run all benchmarks: `make bench`. Takes about half an hour; needs root. `NAME…` runs selected ones, `--quick` uses
few repeats (about five minutes) and keeps nothing.

Samples are kept in build/benchmarks/results.json. At the end the tables of docs/performance.md are printed, each to be
pasted between the markers with its name there; `--tables` prints those of the kept samples without measuring.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import MININET_PYTHON, ROOT, exit_on_sigterm, load, machine
from testbed.lab import containers

RESULTS = ROOT / "build" / "benchmarks" / "results.json"
BOUND_S = {
    "fiberd_vs_veth": 480,
    "fiberd_libc": 420,
    "loss": 240,
    "links": 360,
    "netem_vs_mininet": 660,
    "rtt_under_load": 240,
    "lab_vs_mininet": 480,
    "containers": 900,
    "bring_up": 300,
    "prediction": 120,
    "operations_in_flight": 180,
    "strategy_bytes": 900,
    "strategy_faults": 3600,
    "strategy_prediction": 1800,
    "strategy_utilization": 900,
    "many_ranks": 300,
    "two_level": 600,
    "on_host": 1200,
}
"""Time limit of each benchmark in seconds: about twice its usual duration (docs/performance.md)."""
UNDO_S = 60.0
"""Time limit for taking down its lab."""


def lacking(name: str) -> str:
    """Return why a benchmark cannot run on this host; empty if it can."""
    if name in ("lab_vs_mininet", "netem_vs_mininet"):
        probe = subprocess.run([MININET_PYTHON, "-c", "import mininet"], capture_output=True, check=False)
        if probe.returncode:
            return "Mininet is missing; install it with: apt-get install mininet"
    if name == "containers" and (why := containers.why_not()[1]):
        return why
    if name in ("fiberd_vs_veth", "fiberd_libc", "netem_vs_mininet") and shutil.which("iperf3") is None:
        return "iperf3 is missing; install it with: apt-get install iperf3"
    if name == "on_host" and not Path("/usr/sbin/sshd").exists():
        return "sshd is missing; install it with: apt-get install openssh-server"
    if name == "fiberd_libc":
        if shutil.which("cc") is None:
            return "a C compiler is missing; install it with: apt-get install gcc libc6-dev"
        if importlib.util.find_spec("ziglang") is None:
            return f"ziglang is missing; install it with: {sys.executable} -m pip install ziglang==0.15.2"
    if (
        name
        in ("rtt_under_load", "containers", "bring_up", "operations_in_flight", "many_ranks", "two_level", "on_host")
        or name.startswith("strategy_")
    ) and importlib.util.find_spec("torch") is None:
        return "torch is missing; install it with: pip install 'scale-across-testbed[agents]'"
    return ""


def measure(name: str, quick: bool) -> dict[str, Any] | None:
    """Run one benchmark in a process of its own; return its result and the load around it; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        before, began = load(), time.monotonic()
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}
        argv = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file), *(["--quick"] if quick else [])]
        with subprocess.Popen(argv, env=environment, cwd=ROOT) as child:
            try:
                status = child.wait(BOUND_S[name])
            except subprocess.TimeoutExpired:
                _end(child)
                print(f"{name}: did not finish within {BOUND_S[name]} s", file=sys.stderr)
                return None
            except KeyboardInterrupt:
                _end(child)
                raise
        if status:
            return None
        result: dict[str, Any] = json.loads(file.read_text())
    around = {"load_before": before, "load_after": load(), "taken": time.strftime("%Y-%m-%d")}
    return {**result, **around, "took_s": round(time.monotonic() - began)}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a benchmark, which first undoes what it has begun."""
    child.terminate()
    try:
        child.wait(UNDO_S)
    except subprocess.TimeoutExpired:
        child.kill()


def print_tables(results: dict[str, Any]) -> None:
    """Print the tables in Markdown, with the markers that surround them in docs/performance.md."""
    for name, result in results.items():
        around = f"Load average (1 / 5 / 15 min) before: {result['load_before']}, after: {result['load_after']}."
        table = importlib.import_module(f"benchmarks.{name}").table(result)
        print(f"<!-- {name} -->\n{table}\n\n{result['machine']}; {result['taken']}. {around}\n<!-- end -->\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run, of {', '.join(BOUND_S)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="few repeats, to check that it works; keeps nothing")
    parser.add_argument("--json", type=Path, help="also write the results of this run to this file")
    parser.add_argument("--tables", action="store_true", help="print the tables of the kept samples; measure nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BOUND_S):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))} (available: {', '.join(BOUND_S)})")
    if not arguments.tables and os.geteuid() != 0:
        parser.error("creates network namespaces: run as root")
    exit_on_sigterm()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    taken: dict[str, Any] = {}
    failed = []
    for name in [] if arguments.tables else arguments.names or list(BOUND_S):
        if why := lacking(name):
            print(f"{name}: skipped: {why}", flush=True)
            continue
        print(f"{name}: {machine()}, load {load()}", flush=True)
        result = measure(name, arguments.quick)
        if result is None:
            failed.append(name)
            continue
        taken[name] = result
        if not arguments.quick:
            kept[name] = result
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(taken, indent=1) + "\n")
    if not arguments.quick:
        print_tables(kept)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
