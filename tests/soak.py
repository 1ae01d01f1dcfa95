"""Soak test: a training job under random faults of every kind for any duration, observed from outside.

::

    python tests/soak.py --seconds 3600 --seed 7 --out soak        # as root; make soak SOAK_SECONDS=3600

``tests/soak_job.py`` is the orchestrator, a separate process. This process only observes, by /proc, ``ip`` and psutil,
and shares no code with the testbed. Every five seconds it samples the lab's processes, their open descriptors and
memory, the journal and the run directory. At the end it checks for leftovers, growth and wrong sums. ``soak.json`` has
the series, ``soak.md`` the summary; the status is 0 if every check passes. docs/soak.md has the result of an hour.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from oracles import exact_state, oracle
from soak_verdict import faults_of, growth, judged, summary

TESTS = Path(__file__).resolve().parent  # Python has it in its path, as the folder of the script
EVERY_S = 5.0
BOUNDS_S = {"up": 180.0, "training": 180.0, "healed": 240.0, "stopped": 60.0, "report": 900.0, "down": 60.0}


class Hung(AssertionError):
    """The orchestrator made no progress within its time limit."""


class Orchestrator:
    """``tests/soak_job.py`` as a process; its messages go into ``said``."""

    def __init__(self, folder: Path, name: str, seed: int, seconds: float, environment: dict[str, str]) -> None:
        argv = [sys.executable, str(TESTS / "soak_job.py"), str(folder), name, str(seed), str(seconds)]
        self.errors = folder / "orchestrator.log"
        with self.errors.open("wb") as log:
            self.process = subprocess.Popen(
                argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def until(self, what: str, bound_s: float) -> dict[str, Any]:
        """Wait for a message. Raises Hung."""
        deadline = time.monotonic() + bound_s
        while True:
            try:
                word = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Hung(f"orchestrator did not report '{what}' within {bound_s:g} s") from None
            if word is None:
                raise Hung(f"orchestrator ended before '{what}': {self.errors.read_text()[-2000:]}")
            self.said.append(word)
            if word["said"] == what:
                return word

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


class Watch:
    """Sample in a thread until stopped; each sample has the current ``phase``."""

    def __init__(self, lab: str, state: Path, orchestrator: int) -> None:
        self._lab, self._state, self._orchestrator = lab, state, orchestrator
        self.phase = "up"
        self.run: Path | None = None
        self.samples: list[dict[str, Any]] = []
        self._began_t = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += EVERY_S
            self.samples.append(self._sample())

    def _sample(self) -> dict[str, Any]:
        folder = self._state / "labs" / self._lab
        roles: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        zombies = 0
        for role, process in self._processes():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    zombies += 1
                    continue
                memory = process.memory_full_info()
                roles[role].append(
                    {
                        "pid": process.pid,
                        "fds": process.num_fds(),
                        "threads": process.num_threads(),
                        "rss": memory.rss,
                        "pss": memory.pss,
                    }
                )
        return {
            "t": round(time.monotonic() - self._began_t, 3),
            "phase": self.phase,
            "roles": dict(roles),
            "zombies": zombies,
            "namespaces": len(oracle.namespaces(self._lab)),
            "journal_bytes": _size(folder / "journal.jsonl"),
            "logs_bytes": sum(_size(path) for path in folder.glob("*.log")),
            "run_bytes": sum(_size(path) for path in self.run.rglob("*")) if self.run else 0,
            "load": os.getloadavg()[0],
        }

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yield (role, process) of the soak's processes; zombies have no environment and are known by their parent."""
        marked = {}
        for pid, words, environment in oracle.processes():
            if environment.get("TESTBED_STATE") == str(self._state):
                marked[pid] = words
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = marked.get(process.pid, [])
                if not words:
                    if process.status() == psutil.STATUS_ZOMBIE and process.ppid() in marked:
                        yield "zombie", process
                elif process.pid == self._orchestrator:
                    yield "orchestrator", process
                elif "testbed.keeper.main" in words:
                    yield "keeper", process
                elif words[0].endswith("/fiberd"):
                    yield "fiberd", process
                elif "testbed_agents.fork_server" in words:
                    forked = "testbed_agents.fork_server" in marked.get(process.ppid(), [])
                    yield "rank" if forked else "fork server", process
                else:
                    yield "other", process


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("soak"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    folder.chmod(0o711)  # ranks without privileges write below it
    state, name = folder / "state", f"soak{os.getpid()}"
    environment = {**os.environ, "TESTBED_STATE": str(state), "TESTBED_RUNS": str(folder / "runs")}
    environment["PYTHONPATH"] = os.pathsep.join((str(TESTS.parent), str(TESTS.parent / "agents")))
    found: dict[str, Any] = {
        "seconds": asked.seconds,
        "seed": asked.seed,
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
    }
    orchestrator = Orchestrator(folder, name, asked.seed, asked.seconds, environment)
    watch = Watch(name, state, orchestrator.process.pid)
    try:
        _follow(orchestrator, watch, name, asked.seconds, found)
    except Hung as error:
        print(f"{error}\nfiles are kept in {folder}", file=sys.stderr)
        return 1
    finally:
        watch.stop()
        orchestrator.process.kill()
        orchestrator.process.wait()
        down = [sys.executable, "-m", "testbed", "down", name]
        subprocess.run(down, env=environment, capture_output=True, timeout=60, check=False)
        (asked.out / "soak.json").write_text(json.dumps({**found, "samples": watch.samples, "said": orchestrator.said}))
    groups = [f"control group {path}" for path in Path("/sys/fs/cgroup").rglob(f"*{name}*")]
    found["left"] = [*oracle.left_behind(name, state), *oracle.started_under(state), *groups]
    found |= {"samples": watch.samples, "growth": growth(watch.samples), "faults": faults_of(Path(found["run"]))}
    said = [it for it in orchestrator.said if it["said"] == "segment"]
    found["stuck"] = sum(it["steps"][0] == it["steps"][1] for it in said)
    found["journal_bytes"] = max(it["journal_bytes"] for it in watch.samples)
    found["run_bytes"] = max(it["run_bytes"] for it in watch.samples)
    found["report_rss"] = max(
        (one["rss"] for it in watch.samples if it["phase"] == "report" for one in it["roles"].get("orchestrator", ())),
        default=0,
    )
    verdicts = judged(asked.seconds, found)
    found["verdicts"] = [vars(it) for it in verdicts]
    (asked.out / "soak.json").write_text(json.dumps({**found, "said": orchestrator.said}))
    (asked.out / "soak.md").write_text(summary(found, verdicts))
    print(summary(found, verdicts))
    if not all(it.good for it in verdicts):
        print(f"files are kept in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


def _follow(orchestrator: Orchestrator, watch: Watch, name: str, seconds: float, found: dict[str, Any]) -> None:
    orchestrator.until("up", BOUNDS_S["up"])
    before = exact_state.at_rest(name)
    orchestrator.go_on()
    found["run"] = orchestrator.until("training", BOUNDS_S["training"])["run"]
    watch.run, watch.phase = Path(found["run"]), "faults"
    orchestrator.until("healed", seconds + BOUNDS_S["healed"])
    watch.phase = "healed"
    left: list[str] = []

    def same() -> bool:
        left[:] = exact_state.differences(before, exact_state.picture(name))
        return not left

    with contextlib.suppress(AssertionError):
        oracle.until(same, 10.0, "state is as before")
    found["not_as_before"] = left
    watch.phase = "report"
    orchestrator.go_on()
    orchestrator.until("stopped", BOUNDS_S["stopped"])
    found["report"] = orchestrator.until("report", BOUNDS_S["report"])
    orchestrator.until("down", BOUNDS_S["down"])
    watch.phase = "down"
    orchestrator.process.wait(30)
    found["orchestrator_status"] = orchestrator.process.returncode


if __name__ == "__main__":
    sys.exit(main())
