"""What ``--on HOST`` adds to a command, on a host of namespaces with a real sshd on this machine (tests/netns).

Each command is run there (by nsenter) and from here (by ``--on``), in turn, so both meet the same load. Lines: a
program writes the time each 20 ms, and how late each line arrives here is seen. Fetch: a run directory of random bytes,
against ``ssh HOST tar``. The network between is a bridge without delay. The testbed is compiled to byte code before,
as pip does it where it installs a package.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, command, median, percentile, spread

PARTS = ("status", "run", "lines", "fetch")
LAB, LINES, LINES_EVERY_S = "far", 200, 0.02
RUN_BYTES, QUICK_BYTES = 1 << 30, 1 << 25
WRITER = (
    "import time\n"
    f"for _ in range({LINES}):\n"
    f"    time.sleep({LINES_EVERY_S})\n"
    "    print(time.monotonic_ns(), flush=True)\n"
)


def _timed(words: Sequence[str], environment: dict[str, str] | None = None) -> float:
    began = time.monotonic()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return time.monotonic() - began


class _Bed:
    def __init__(self, hosts: Any) -> None:
        self.hosts = hosts
        (self.host,) = hosts.hosts
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}", "TESTBED_SSH_CONFIG": str(hosts.config)}
        self.environment = {**os.environ, **paths}

    def here(self, verb: str, *words: str) -> list[str]:
        return [*self.hosts.client(sys.executable, "-m", "testbed"), verb, "--on", "h1", *words]

    def there(self, *words: str) -> list[str]:
        first = str(self.host.first())
        return ["nsenter", "-t", first, "-m", "-u", "-i", "-n", "-p", "--", *words]

    def pairs(self, verb: str, words: Sequence[str], count: int, more: Sequence[str] = ()) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"there": [], "here": []}
        for number in range(count + 1):
            there = _timed(self.there("/usr/local/bin/testbed", verb, *words))
            here = _timed(self.here(verb, *words, *more), self.environment)
            if number:  # the first of each reads files from the disk
                found["there"].append(there)
                found["here"].append(here)
        return found


def _lines(bed: _Bed) -> list[float]:
    words = bed.here("exec", "-l", LAB, "east-0", "--", sys.executable, "-c", WRITER)
    with subprocess.Popen(words, env=bed.environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as client:
        assert client.stdout is not None
        return sorted(time.monotonic_ns() / 1e9 - int(line) / 1e9 for line in client.stdout)


def _fetch(bed: _Bed, quick: bool) -> dict[str, list[float]]:
    size = QUICK_BYTES if quick else RUN_BYTES
    run = bed.host.path("/var/lib/testbed/runs/big-1")
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"status": "finished"}')
    with (run / "data").open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    found: dict[str, list[float]] = {"here": [], "ssh tar": []}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for number in range(1 if quick else 3):
            target = Path(folder, str(number))
            found["here"].append(_timed(bed.here("fetch", "big-1", "--runs", str(target)), bed.environment))
            plain = Path(folder, f"tar-{number}")
            plain.mkdir()
            script = 'ssh -F "$1" h1 tar -C /var/lib/testbed/runs -cf - big-1 | tar -C "$2" -xf -'
            found["ssh tar"].append(
                _timed(bed.hosts.client("sh", "-c", script, "sh", str(bed.hosts.config), str(plain)))
            )
            same = ["cmp", str(target / "big-1/data"), str(plain / "big-1/data")]
            subprocess.run(same, check=True)
            for each in (target / "big-1/data", plain / "big-1/data"):
                each.unlink()
    return found


def measure(quick: bool, parts: Sequence[str]) -> dict[str, Any]:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "netns")]
    import ssh_hosts  # type: ignore[import-not-found]

    for folder in ("testbed", "agents"):
        compileall.compile_dir(str(ROOT / folder), quiet=1)
    count = 2 if quick else 7
    result: dict[str, Any] = {}
    with ssh_hosts.hosts("h1") as hosts:
        bed = _Bed(hosts)
        _timed(bed.here("up", "metro-single", "--name", LAB, "--no-agents", "--allow-uncertified"), bed.environment)
        run = ("metro-single", "--name", "timed", "--steps", "20", "--allow-uncertified")
        with tempfile.TemporaryDirectory() as runs:
            works: dict[str, Callable[[], Any]] = {
                "status": lambda: bed.pairs("status", ("-l", LAB), count),
                "run": lambda: bed.pairs("run", run, count, ("--runs", runs)),
                "lines": lambda: _lines(bed),
                "fetch": lambda: _fetch(bed, quick),
            }
            for part in parts or PARTS:
                result[part] = works[part]()
                print(f"{part}: {json.dumps(result[part])[:300]}", file=sys.stderr, flush=True)
        _timed(bed.here("down", LAB), bed.environment)
    return result


def table(result: dict[str, Any]) -> str:
    lines = ["| | there | with --on | more (median of pairs) |", "|---|---|---|---|"]
    for part in ("status", "run"):
        if part in result:
            there, here = result[part]["there"], result[part]["here"]
            more = median([b - a for a, b in zip(there, here, strict=True)])
            lines.append(f"| {part} | {spread(there, ' s')} | {spread(here, ' s')} | {more:.2f} s |")
    if "lines" in result:
        found = result["lines"]
        p99 = percentile(found, 0.99)
        lines.append(f"| a line arrives after | | {median(found) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms | |")
    if "fetch" in result:
        here, plain = result["fetch"]["here"], result["fetch"]["ssh tar"]
        lines.append(f"| fetch, against ssh and tar | {spread(plain, ' s')} | {spread(here, ' s')} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table, PARTS))
