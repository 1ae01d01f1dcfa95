"""All benchmarks, one after the other: `make bench`. Takes about eight minutes; needs root.

Samples go into benchmarks/results.json, and from it alone the tables of docs/performance.md are written, between its
``<!-- name -->`` and ``<!-- end -->`` marks. `--tables` writes the tables anew without measuring.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import fiberd_vs_veth, lab_vs_mininet, rtt_under_load
from benchmarks.common import MININET_PYTHON, ROOT, load, machine

RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "performance.md"
BOUND_S = 900


def fiberd_table(result: dict[str, Any]) -> str:
    links = result["links32"]
    medians = result["medians"]
    text = fiberd_vs_veth.table(
        medians.__getitem__, links["resident_mb"], links["idle_cpu_ticks"], result["scheduling"]
    )
    return text.rpartition("\n\n")[0]  # its last line names the machine that writes the table, not the one measured


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "fiberd_vs_veth": fiberd_table,
    "rtt_under_load": rtt_under_load.table,
    "lab_vs_mininet": lab_vs_mininet.table,
}


def lacking(name: str) -> str:
    """Why a benchmark cannot run here; empty when it can."""
    if name == "lab_vs_mininet":
        probe = subprocess.run([MININET_PYTHON, "-c", "import mininet"], capture_output=True, check=False)
        if probe.returncode:
            return "Mininet is missing; install it with: apt-get install mininet"
    if name == "rtt_under_load" and importlib.util.find_spec("torch") is None:
        return "torch is missing; install it with: pip install 'scale-across-testbed[agents]'"
    return ""


def measure(name: str) -> dict[str, Any]:
    """Run one benchmark in a process of its own; its result, with the load around it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        before = load()
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}
        argv = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--json", str(file)]
        subprocess.run(argv, env=environment, check=True, timeout=BOUND_S)
        result: dict[str, Any] = json.loads(file.read_text())
    return {**result, "load_before": before, "load_after": load(), "taken": time.strftime("%Y-%m-%d")}


def write_tables(results: dict[str, Any]) -> None:
    page = PAGE.read_text()
    for name, table in TABLES.items():
        if name not in results:
            continue
        result = results[name]
        around = f"Load average (1 / 5 / 15 min) before: {result['load_before']}, after: {result['load_after']}."
        text = f"{table(result)}\n\n{result['machine']}; {result['taken']}. {around}"
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        page = before + begin + text + "\n" + end + rest.partition(end)[2]
    PAGE.write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(TABLES)}; all of them by default")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(TABLES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there is {', '.join(TABLES)}")
    if not arguments.tables and os.geteuid() != 0:
        parser.error("makes network namespaces: needs root")
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in [] if arguments.tables else arguments.names or list(TABLES):
        if why := lacking(name):
            print(f"{name}: left out: {why}", flush=True)
            continue
        print(f"{name}: {machine()}, load {load()}", flush=True)
        results[name] = measure(name)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_tables(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
