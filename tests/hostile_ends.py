"""Hostile ends of every strategy in a lab of two sites of two ranks: a rank, the command or the keeper is killed, a
rank is stopped for a while, or the disk of the run directory is full.

::

    python tests/hostile_ends.py --json FILE --seconds 240      # as root; again until nothing is missing
    python tests/hostile_ends.py --only diloco --end disk-full

A cell is one job of ``testbed train`` or ``testbed run``, 40 steps of 100 ms of declared compute with the model inside,
a checkpoint every 10 steps, and its end from step 13 on. :data:`ENDS` has what is done to it. Checked is what a user
sees:

- the command ends in time, with the exit status of the table, and in words that name what ended;
- no traceback is in what it prints, nor the only reason in run.json;
- what was measured stays: the report is built again from the run directory, has at least the steps that all ranks had
  committed, and the same verdict;
- no checker but ``hangs`` has a finding: the end itself is no wrong sum and no wrong parameter;
- a restarted job ends with the parameters of an undisturbed one, bit for bit, where the strategy is deterministic;
- after ``down`` nothing is left: no namespace, mount, process, folder, by /proc and `ip netns`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[0]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
sys.path.insert(2, str(Path(__file__).resolve().parents[1] / "agents"))

import killed_runs
from oracles import oracle

WAYS = (
    "ddp",
    "hierarchical",
    "fsdp",
    "hsdp",
    "local-sgd:every=5",
    "diloco:every=5",
    "streaming-diloco:every=8,fragments=4,overlap=2",
    "sparse-loco:every=5",
    "multi-tier:every=4,every_regions=8",
    "async-diloco:every=5",
    "decoupled:every=5",
    "pipeline",
    "tensor",
    "moe",
    "torchft-diloco:every=5",
)
OWN_PACE = ("async-diloco", "decoupled", "torchft-diloco")
"""What is merged when is a matter of time, so an interrupted job ends with other bits."""

STEPS, CHECKPOINT, AT, TIMEOUT_S, STOPPED_S = 40, 10, 13, 5.0, 8.0
RANK, NODE = 3, "west-1"
BOUND_S = 90.0
"""Limit of a command, from its end on: two timeouts, restarts and the report on busy cores."""

EXPERIMENT = """
topology: metro-40km
workload:
  strategy: {name}
{options}  steps: {steps}
  checkpoint: {checkpoint}
  timeout: {timeout:g}s
  compute: {{real: true, at_least: 100ms}}
"""


@dataclass(frozen=True)
class End:
    """What is done to a job. ``statuses``: exit statuses that are right. ``words``: one of them is said."""

    words: str
    statuses: tuple[int, ...]
    says: tuple[str, ...]
    run: bool = False
    """Whether the command is `testbed run`, with a timeout of 5 s, rather than `testbed train` in a lab that is up."""
    ends_lab: bool = False
    options: tuple[str, ...] = ()


ENDS = {
    "undisturbed": End("nothing", (0,), ()),
    "rank-killed": End("rank 3 killed", (3,), ("rank 3",)),
    "rank-killed-once": End(
        "rank 3 killed, no restart allowed", (3,), ("rank 3 on west-1",), options=("--restarts", "0")
    ),
    "disk-full": End("disk of the run directory full", (3,), ("No space left on device",)),
    "keeper-killed": End("keeper killed", (3,), ("keeper",), ends_lab=True),
    "rank-stopped": End(f"rank 3 stopped for {STOPPED_S:g} s, timeout {TIMEOUT_S:g} s", (0, 3), (), run=True),
    "run-killed": End("`testbed run` killed", (-signal.SIGKILL,), (), run=True),
    "train-killed": End("`testbed train` killed", (-signal.SIGKILL,), ()),
}


@dataclass
class Bed:
    """Folders and environment of the commands, and the lab that is up, if any."""

    folder: Path
    python: str
    name: str = ""
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        root = Path(__file__).parents[1]
        self.environment = {
            **os.environ,
            "TESTBED_STATE": str(self.state),
            "TESTBED_RUNS": str(self.folder / "runs"),
            "TESTBED_DRIVER": "netns",
            "PYTHONPATH": os.pathsep.join((str(root), str(root / "agents"))),
        }

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def testbed(self, *words: str, bound_s: float = BOUND_S) -> subprocess.CompletedProcess[str]:
        argv = [self.python, "-m", "testbed", *words]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=bound_s)

    def up(self) -> None:
        if not self.name:
            name = oracle.unused_name()
            done = self.testbed("up", "metro-40km", "--name", name, "--allow-uncertified")
            assert done.returncode == 0, f"up: {done.stderr}"
            self.name = name

    def down(self) -> list[str]:
        """Take the lab down, and return what is wrong then."""
        if not self.name:
            return []
        name, self.name = self.name, ""
        done = self.testbed("down", name)
        wrong = [] if done.returncode == 0 else [f"down ended with status {done.returncode}: {done.stderr}"]
        with contextlib.suppress(AssertionError):
            oracle.until(lambda: not self._left(name), 10.0, "nothing is left")
        return wrong + [f"left after down: {it}" for it in self._left(name)]

    def _left(self, name: str) -> list[str]:
        return [*oracle.left_behind(name, self.state), *oracle.started_under(self.state)]


@contextlib.contextmanager
def bed(python: str = sys.executable, disk: str = "64m") -> Iterator[Bed]:
    folder = Path(tempfile.mkdtemp(prefix="ends"))
    folder.chmod(0o711)  # ranks without privileges enter it
    found = Bed(folder, python)
    found.disk.mkdir()
    # Before a lab: its nodes have copies of the mounts that are there when they are made.
    oracle.run("mount", "-t", "tmpfs", "-o", f"size={disk},mode=755", "tmpfs", found.disk)
    try:
        yield found
    finally:
        found.down()
        oracle.run("umount", "--lazy", found.disk)
        shutil.rmtree(folder, ignore_errors=True)


def cell(of: Bed, way: str, end: str, undisturbed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Begin a job, end it, and return what became of it; ``wrong`` has what should not be."""
    asked = ENDS[end]
    wrong: list[str] = []
    runs = of.disk if end == "disk-full" else of.folder / "runs"
    before = {*runs.glob("*")}
    if asked.run:
        wrong += of.down()
        name, _, options = way.partition(":")
        lines = "".join(f"  {it.replace('=', ': ')}\n" for it in options.split(",") if it)
        fields = {"name": name, "options": lines, "steps": STEPS, "checkpoint": CHECKPOINT, "timeout": TIMEOUT_S}
        file = of.folder / "experiment.yaml"
        file.write_text(EXPERIMENT.format(**fields))
        of.name = oracle.unused_name()
        words = ["run", str(file), "--name", of.name, "--allow-uncertified"]
    else:
        of.up()
        words = ["train", "-l", of.name, "--strategy", way, "--steps", str(STEPS), "--checkpoint", str(CHECKPOINT)]
        words += ["--compute", "real:100ms", "--runs", str(runs), "--allow-uncertified", *asked.options]
    said = of.folder / "said"
    with said.open("w") as stream:
        argv = [of.python, "-m", "testbed", *words]
        child = subprocess.Popen(argv, env=of.environment, stdout=stream, stderr=subprocess.STDOUT)
    try:
        reached = _reached(child, runs, before)
        ended_t = time.monotonic()
        run = max({*runs.glob("*")} - before, default=None)
        committed = killed_runs.committed_in(run) if run else 0
        if reached and run:
            _end(of, end, child)
        elif end != "undisturbed":
            wrong.append("the job was over before its end")
        try:
            status: int | None = child.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            status = None
            wrong.append(f"the command goes on {BOUND_S:g} s after the end")
        seconds = time.monotonic() - ended_t
    finally:
        child.kill()
        child.wait()
        (of.disk / "ballast").unlink(missing_ok=True)
    text = said.read_text()
    if "Traceback" in text:
        wrong.append("a traceback is printed")
    found: dict[str, Any] = {"status": status, "seconds": seconds, "said": text[-3000:], "wrong": wrong}
    if status not in asked.statuses:
        wrong.append(f"exit status {status}, expected {' or '.join(map(str, asked.statuses))}")
    if missing := [it for it in asked.says if it not in text.replace("\n", " ")]:
        wrong.append(f"not said: {missing}")
    if end in ("run-killed", "train-killed"):
        wrong += _freed(of, run)
    if run is None:
        wrong.append("no run directory")
    else:
        found |= _rebuilt(of, run, committed, wrong)
        if asked.statuses in ((3,), (0, 3), (0,)):
            _verdict(found, status, wrong)
        _restored(found, way, end, undisturbed, wrong)
    if asked.run or asked.ends_lab:
        wrong += of.down()
    if run is not None and runs == of.disk:
        shutil.rmtree(run, ignore_errors=True)
    return found


def _reached(child: subprocess.Popen[bytes], runs: Path, before: set[Path]) -> bool:
    """Wait until all ranks have committed the step, or the command is over."""

    def there() -> bool:
        return any(killed_runs.committed_in(it) >= AT for it in {*runs.glob("*")} - before)

    oracle.until(lambda: there() or child.poll() is not None, BOUND_S, f"step {AT}")
    return there() and child.poll() is None


def _end(of: Bed, end: str, child: subprocess.Popen[bytes]) -> None:
    if end.startswith("rank-"):
        (victim,) = oracle.inside_pids(oracle.netns(of.name, NODE))
        if end == "rank-stopped":
            os.kill(victim, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            with contextlib.suppress(ProcessLookupError):  # a restart has ended it
                os.kill(victim, signal.SIGCONT)
        else:
            os.kill(victim, signal.SIGKILL)
    elif end == "disk-full":
        with contextlib.suppress(OSError), (of.disk / "ballast").open("ab", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
    elif end == "keeper-killed":
        oracle.kill(oracle.keeper_pids(of.name, of.state))
    elif end in ("run-killed", "train-killed"):
        child.kill()


def _freed(of: Bed, run: Path | None) -> list[str]:
    """Check that the keeper ends the job of a killed command, and says so in run.json."""

    def interrupted() -> bool:
        return run is not None and json.loads((run / "run.json").read_text()).get("status") == "interrupted"

    try:
        oracle.until(interrupted, 30.0, "run.json says that the job was interrupted")
        oracle.until(lambda: not _training(of), 10.0, "no rank trains")
    except AssertionError as error:
        return [str(error)]
    return []


def _training(of: Bed) -> bool:
    done = of.testbed("jobs", "-l", of.name, "--json")
    return done.returncode != 0 or any(it["state"] == "running" for it in json.loads(done.stdout))


def _rebuilt(of: Bed, run: Path, committed: int, wrong: list[str]) -> dict[str, Any]:
    """Build the report again, and return what it says."""
    own = json.loads((run / "report.json").read_text())["verdict"] if (run / "report.json").exists() else None
    for name in ("report.json", "index.html", "report.md"):
        (run / name).unlink(missing_ok=True)
    done = of.testbed("report", str(run))
    if done.returncode not in (0, 1, 3) or "Traceback" in done.stderr or not (run / "index.html").exists():
        wrong.append(f"report ended with status {done.returncode}: {done.stderr[-1000:]}")
        return {}
    report, info = (json.loads((run / name).read_text()) for name in ("report.json", "run.json"))
    if own not in (None, report["verdict"]):
        wrong.append(f"the verdict was {own}, and is {report['verdict']} of the report built again")
    training = report["training"]  # what sites trained alone since they last met is measured, too: as lost
    if (kept := training["steps_committed"] + training["steps_lost"]) < committed:
        wrong.append(f"all ranks had ended {committed} steps, the report has {kept}")
    findings = {it["id"]: it for it in report["checkers"] if it["holds"] is False and it["id"] != "hangs"}
    for name, it in findings.items():
        wrong.append(f"checker {name}: {[each['text'] for each in it['findings'][:2]]}")
    if report["wire"]["ok"] is False:
        wrong.append(f"wire: {report['wire']['sentence']}")
    if "Traceback" in str(info.get("reason", "")):
        wrong.append(f"run.json: {info['reason']}")
    return {
        "rebuilt": done.returncode,
        "own_verdict": own,
        "verdict": report["verdict"],
        "headline": report["headline"],
        "reason": info.get("reason", ""),
        "run_status": info.get("status"),
        "attempts": len(report["attempts"]),
        "why": [it["why"] for it in report["attempts"] if it["why"]],
        "cause": [it["cause"] for it in report["attempts"] if it["why"]],
        "resumed_from": [it["resumed_from"] for it in report["attempts"]],
        "steps": report["training"]["steps_committed"],
        "steps_lost": report["training"]["steps_lost"],
        "hangs": sum(it["found"] for it in report["checkers"] if it["id"] == "hangs"),
        "unknown": [it["id"] for it in report["checkers"] if it["holds"] is None],
        "parameters": _parameters(run),
    }


def _parameters(run: Path) -> list[str]:
    """Return the SHA-256 of each rank's parameters at the end of the job; empty if it has not come to its end."""
    ends = []
    for file in sorted(run.glob("ranks/rank-?.jsonl")):
        try:
            ends.append(json.loads(file.read_bytes().splitlines()[-1]))
        except (ValueError, IndexError):  # the disk was full
            return []
    found = [it.get("parameters_sha256", "") for it in ends if it.get("status") == "ok"]
    return found if len(found) == len(ends) else []


def _verdict(found: Mapping[str, Any], status: int | None, wrong: list[str]) -> None:
    """The command's exit status is that of its report."""
    if found.get("own_verdict") is None:
        wrong.append("the command wrote no report")
    elif "rebuilt" in found and found["rebuilt"] != status:
        wrong.append(f"exit status {status}, and {found['rebuilt']} of the report built again")


def _restored(
    found: Mapping[str, Any], way: str, end: str, undisturbed: Mapping[str, Any] | None, wrong: list[str]
) -> None:
    if end not in ("undisturbed", "rank-killed", "rank-killed-once", "rank-stopped") or "steps" not in found:
        return
    if end != "rank-killed-once" and found["steps"] != STEPS:
        wrong.append(f"{found['steps']} of {STEPS} steps are committed")
    if end == "rank-killed" and (found["attempts"] != 2 or found["resumed_from"][1] < CHECKPOINT):
        wrong.append(f"{found['attempts']} attempts, from {found['resumed_from']}")
    if end in ("rank-killed", "rank-killed-once") and not any(f"rank {RANK}" in it for it in found["cause"]):
        wrong.append(f"the cause is {found['cause']}")
    suspended = f"rank {RANK} on {NODE}"
    if end == "rank-stopped" and found["attempts"] > 1 and not any(suspended in it for it in found["why"]):
        wrong.append(f"the reason of the attempt is {found['why']}")
    if (
        undisturbed
        and end != "rank-killed-once"
        and way.partition(":")[0] not in OWN_PACE
        and found["parameters"] != undisturbed.get("parameters")
    ):
        wrong.append("other parameters than an undisturbed job")


def outcome(it: Mapping[str, Any]) -> str:
    if "error" in it:
        return f"not measured: {it['error']}"
    shown = f"{it['status']}"
    if it.get("attempts", 1) > 1:
        shown += f", {it['attempts']} attempts, {it['steps_lost']} steps lost"
    shown += f", {it['seconds']:.0f} s"
    return shown + ("" if not it["wrong"] else f" **{'; '.join(it['wrong'])}**")


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| strategy | " + " | ".join(it.words for it in ENDS.values()) + " |", "|---" * (len(ENDS) + 1) + "|"]
    for way in WAYS:
        row = cells.get(way, {})
        lines.append(f"| `{way}` | " + " | ".join(outcome(row[it]) if it in row else "–" for it in ENDS) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="strategies of this name; may be repeated")
    parser.add_argument("--end", action="append", default=[], choices=ENDS, help="only this end; may be repeated")
    parser.add_argument("--json", type=Path, help="keep the results in this file, and measure what it lacks")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after so many seconds")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the commands, as one with torchft")
    asked = parser.parse_args()
    cells: dict[str, dict[str, Any]] = {}
    if asked.json and asked.json.exists():
        cells = json.loads(asked.json.read_text())
    until = time.monotonic() + asked.seconds
    wanted = [way for way in WAYS if not asked.only or way.partition(":")[0] in asked.only]
    with bed(asked.python) as of:
        for way in wanted:
            row = cells.setdefault(way, {})
            for end in ENDS:
                if (asked.end and end not in asked.end) or end in row or time.monotonic() > until:
                    continue
                try:
                    row[end] = cell(of, way, end, row.get("undisturbed"))
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    row[end] = {"error": str(error)}
                print(f"{way}, {end}: {outcome(row[end])}", flush=True)
                if asked.json:
                    asked.json.write_text(json.dumps(cells, indent=1) + "\n")
        left = of.down()
    print(table(cells))
    print("\n".join(left))
    return 1 if left or any(it.get("wrong") or "error" in it for row in cells.values() for it in row.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
