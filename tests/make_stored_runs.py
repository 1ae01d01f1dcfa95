"""Make the run directories of tests/golden/stored_runs, one of each kind, in labs of namespaces.

``python tests/make_stored_runs.py FOLDER [KIND…]`` needs root and ten minutes; it writes each run to ``FOLDER/KIND``.
``python tests/stored_runs.py --pack FOLDER`` stores them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from builders.commands import Child, argv_of, captured, piped
from killed_runs import committed_in
from oracles import oracle

LAB = "golden"
TIMEOUT_S = 400.0
END_STEP = 5
"""Committed step from which on a run that is ended early is ended."""

SMALL = {"layers": 4, "width": 32, "heads": 2, "batch": 2, "context": 16, "checkpoint": 0}
DECLARED = {**SMALL, "compute": "60ms", "model": "200M"}
REAL = {**SMALL, "compute": {"real": True, "at_least": "60ms"}}


def interrupt(child: Child) -> None:
    child.send_signal(signal.SIGINT)


def kill_holder(child: Child) -> None:
    child.kill()


def kill_keeper(child: Child) -> None:
    oracle.kill(oracle.keeper_pids(LAB, Path(os.environ["TESTBED_STATE"])))


def kill_program(child: Child) -> None:
    oracle.kill(oracle.inside_pids(f"tb.{LAB}.west-1"))


@dataclass(frozen=True)
class Kind:
    """A run: its workload, what else the experiment has, and how it is ended early."""

    workload: dict[str, Any]
    experiment: dict[str, Any] = field(default_factory=dict)
    topology: str = "metro-40km"
    end: Callable[[Child], None] | None = None
    breakage: str = ""


def fault(at: str, kind: str, target: str, lasting: str = "", **parameters: object) -> dict[str, Any]:
    """Return an entry of a schedule; ``at`` is a time or ``step N``."""
    due = {"after": at} if at.startswith("step") else {"at": at}
    return {
        **due,
        "inject": kind,
        "target": target,
        **({"for": lasting} if lasting else {}),
        **({"with": parameters} if parameters else {}),
    }


def program(script: str, **more: object) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], **more}


STEADY = {
    "before": ["ranks_up == 4", "links_up == 2"],
    "during": ["links_up == 1"],
    "after": [{"check": "tokens_per_s >= 20% of before", "within": "5s"}],
    "always": ["train_loss < 9"],
}
CUT = {
    "hypothesis": STEADY,
    "schedule": [fault("5s", "cut", "north", "1s", cause="excavator")],
    "expect": ["goodput >= 0.1", "recovery <= 10s", "steps_lost == 0", "wrong_sums == 0", "wire_ratio <= 2"],
}
OVERLAPPING = {
    "schedule": [
        fault("1s", "impair", "north", "3s", delay="3ms", jitter="100us", loss="0.5%"),
        fault("1500ms", "rate-squeeze", "north:west", "2s", to="30%"),
        fault("2s", "latency-step", "south", "2s", extra="2ms"),
        fault("2500ms", "cut", "south:east", "800ms"),
        fault("2500ms", "brown-out", "north:east", "2s", loss="1%", over="1s"),
        fault("3s", "straggler", "1", "1s", slower="2x"),
        fault("3s", "flap", "south", "", down="50ms", up="100ms", times=4),
    ],
    "expect": ["goodput >= 0.01", "hangs == 0"],
}
STEPS = "for s in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.3; echo step $s loss 0.$((99 - s)); done"
LINE = {"line": r"step (?P<step>\d+) loss (?P<train_loss>[\d.]+)", "tokens": 64}

KINDS: dict[str, Kind] = {
    "ddp-passed-real": Kind({**SMALL, "steps": 24}, {"expect": ["goodput >= 0.01", "train_loss_drop >= 0"]}),
    "ddp-cut-recovered": Kind(
        {**DECLARED, "steps": 100}, {**CUT, "hypothesis": {**STEADY, "always": ["ranks_up == 4"]}}
    ),
    "ddp-cut-cpu-bound": Kind({**REAL, "steps": 100}, CUT),
    "diloco-overlapping-faults": Kind({**DECLARED, "strategy": "diloco", "every": 4, "steps": 60}, OVERLAPPING),
    "local-sgd-expectation-failed": Kind(
        {**DECLARED, "strategy": "local-sgd", "every": 4, "steps": 24},
        {"expect": ["goodput >= 0.999999", "compute_utilization >= 0.9999", "recovery <= 1s"]},
    ),
    "ddp-recovery-failed": Kind(
        {**DECLARED, "steps": 200, "restarts": 0, "timeout": "4s"},
        {
            "hypothesis": {"after": [{"check": "steps_per_s >= 50% of before", "within": "3s"}]},
            "schedule": [fault("2s", "cut", "north"), fault("2s", "cut", "south", carrier="silent")],
            "expect": ["recovery <= 3s"],
        },
    ),
    "ddp-lost-input": Kind({**REAL, "steps": 12}, breakage="lost-input:rank=2,step=4"),
    "diloco-applied-twice": Kind(
        {**DECLARED, "strategy": "diloco", "every": 3, "steps": 15},
        {"expect": ["lost_updates == 0"]},
        breakage="applied-twice:step=6",
    ),
    "async-diloco-interrupted": Kind(
        {**DECLARED, "strategy": "async-diloco", "every": 3, "steps": 4000}, end=interrupt
    ),
    "decoupled-holder-killed": Kind({**DECLARED, "strategy": "decoupled", "every": 3, "steps": 4000}, end=kill_holder),
    "local-sgd-keeper-killed": Kind({**DECLARED, "strategy": "local-sgd", "every": 3, "steps": 4000}, end=kill_keeper),
    "hierarchical-rank-killed": Kind(
        {**DECLARED, "strategy": "hierarchical", "steps": 24, "checkpoint": 5, "restarts": 2, "timeout": "5s"},
        {
            "schedule": [fault("step 50%", "rank-kill", "3")],
            "expect": ["restarts == 1", "steps_lost <= 12", "time_to_resume <= 60s", "detection <= 20s"],
        },
    ),
    "ddp-power-loss": Kind(
        {**DECLARED, "steps": 24, "checkpoint": 5, "restarts": 2, "timeout": "5s"},
        {
            "schedule": [fault("step 40%", "power-loss", "west", "2s")],
            "expect": ["restarts == 1", "steps_lost <= 3"],
        },
    ),
    "random-faults": Kind(
        {**REAL, "steps": 90, "seed": 11},
        {
            "compress": {"time": "1 year = 500ms", "repair": "12 h = 200ms"},
            "random": {"from": "1s", "to": "6s", "seed": 11},
            "schedule": [
                {"when": "train_loss < 100", "inject": "flap", "target": "south", "with": {"times": 2, "down": "50ms"}},
                fault("3s", "rank-pause", "1", "300ms"),
            ],
            "expect": ["goodput >= 0.2"],
        },
    ),
    "streaming-diloco": Kind(
        {
            **DECLARED,
            "strategy": "streaming-diloco",
            "every": 4,
            "fragments": 2,
            "overlap": 1,
            "bits": 4,
            "steps": 16,
        }
    ),
    "sparse-loco": Kind({**DECLARED, "strategy": "sparse-loco", "every": 3, "steps": 12}),
    "multi-tier": Kind(
        {**DECLARED, "strategy": "multi-tier", "every": 2, "every_regions": 4, "steps": 12}, topology="metro-triangle"
    ),
    "pipeline": Kind({**DECLARED, "strategy": "pipeline", "micro_batches": 4, "batch": 4, "steps": 8}),
    "tensor": Kind({**REAL, "strategy": "tensor", "steps": 5}),
    "moe": Kind({**REAL, "strategy": "moe", "steps": 5}),
    "fsdp": Kind({**DECLARED, "strategy": "fsdp", "steps": 8}),
    "hsdp": Kind({**DECLARED, "strategy": "hsdp", "steps": 8}),
    "protected-three-sites": Kind(
        {**DECLARED, "steps": 50},
        {
            "schedule": [fault("1s", "cut", "river-bridge", "2s"), fault("step 60%", "gateway-down", "costa", "500ms")],
            "expect": ["recovery <= 10s"],
        },
        topology="regional-protected",
    ),
    "program-without-steps": Kind(program("echo begun; sleep 2; echo done")),
    "program-with-steps": Kind(
        program(STEPS, progress=LINE, steps=12),
        {
            "schedule": [fault("1s", "cut", "north", "500ms")],
            "expect": ["recovery <= 5s", "goodput >= 0.01"],
        },
    ),
    "program-failed": Kind(program("test $RANK = 0 && sleep 1 && exit 7; exec sleep 600")),
    "program-killed-from-outside": Kind(program("echo begun; exec sleep 600"), end=kill_program),
}


def far_enough(run: Path) -> bool:
    log = run / "ranks" / "rank-3.log"
    return committed_in(run) >= END_STEP or (log.exists() and "begun" in log.read_text())


def make(name: str, kind: Kind, folder: Path) -> None:
    """Run one kind of KINDS, and move its run directory to ``folder``."""
    with working_folder() as work:
        experiment = {"topology": kind.topology, "workload": kind.workload, **kind.experiment}
        (work / f"{name}.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False, allow_unicode=True))
        argv = argv_of("run --allow-uncertified --wait --driver netns --name", LAB, "--runs", work / "runs")
        environment = {**os.environ, **({"TESTBED_BREAK": kind.breakage} if kind.breakage else {})}
        with (work / "output").open("w") as output:
            child = subprocess.Popen(
                [*argv, str(work / f"{name}.yaml")], stdout=output, stderr=output, text=True, env=environment
            )
            try:
                if kind.end is not None:
                    oracle.until(
                        lambda: child.poll() is not None or any(map(far_enough, work.glob("runs/*/"))),
                        TIMEOUT_S,
                        "steps",
                    )
                    kind.end(child)
                status = child.wait(timeout=TIMEOUT_S)
            finally:
                child.kill()
        print(f"{name}: status {status}: {(work / 'output').read_text()[-300:]}", flush=True)
        captured(argv_of("down", LAB))
        keep(work / "runs", folder, name)


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stored-runs-") as made:
        work = Path(made)
        work.chmod(0o777)
        yield work


def keep(runs: Path, folder: Path, name: str) -> None:
    """Move the run directory of ``runs`` to ``folder``; the second, third … of several get a number."""
    records = ("run.json", "validate.json")
    made = sorted(path for path in runs.glob("*/") if any((path / record).exists() for record in records))
    for number, run in enumerate(made, 1):
        kept = folder / (name if number == 1 else f"{name}-{number}")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.move(run, kept)
        for page in ("index.html", "report.md", "report.json"):
            (kept / page).unlink(missing_ok=True)


def compared(folder: Path) -> None:
    with working_folder() as work:
        options = (
            "--steps 16 --evaluations 2 --compute 60ms --model 200M --seeds 1 --allow-uncertified --wait --driver netns"
        )
        line = f"compare metro-40km --strategies ddp,diloco:every=4 {options} --inject 'cut north after=40% for=500ms'"
        report(captured(argv_of(line, "--name", LAB, "--runs", work / "runs"), timeout=TIMEOUT_S), "compared")
        keep(work / "runs", folder, "compared")


def audited(folder: Path) -> None:
    with working_folder() as work:
        line = "audit regional-ring --measure --only river-bridge --hold 2s --allow-uncertified --wait --driver netns"
        report(captured(argv_of(line, "--name", LAB, "--runs", work / "runs"), timeout=TIMEOUT_S), "audited")
        keep(work / "runs", folder, "audited")


def validated(folder: Path) -> None:
    """Validate a library that works, and one that is wrong."""
    for name, words in (("validated", "torch-gloo"), ("validated-defective", "ring-wrong-sum --only correctness")):
        with working_folder() as work:
            line = f"validate {words} --allow-uncertified --wait --driver netns"
            report(captured(argv_of(line, "--name", LAB, "--runs", work / "runs"), timeout=TIMEOUT_S), name)
            keep(work / "runs", folder, name)


def in_a_lab(folder: Path) -> None:
    """An observed lab in which agents train and a program is launched, also by MPI."""
    with working_folder() as work:
        line = "up metro-40km --observe --allow-uncertified --driver netns --name"
        report(captured(argv_of(line, LAB), timeout=TIMEOUT_S), "up")
        try:
            train = "train --strategy sparse-loco:every=3 --compute 60ms --model 100M --steps 40 --allow-uncertified"
            child = piped(argv_of(f"{train} -l {LAB} --runs", work / "observed"))
            oracle.until(lambda: any(map(far_enough, work.glob("observed/*/"))), TIMEOUT_S, "steps")
            captured(argv_of(f"inject -l {LAB} rate-squeeze north --for 500ms"))
            print(child.communicate(timeout=TIMEOUT_S)[0][-300:])
            for name, words in (
                ("launched", "-- sh -c 'sleep 1; echo hello'"),
                ("launched-with-steps", f"--progress '{LINE['line']}' --progress tokens=64 -- sh -c '{STEPS}'"),
                ("launched-per-node", "--per-node -- sh -c 'sleep 1; exit 3'"),
            ):
                line = f"launch -l {LAB} --allow-uncertified --read-only --runs {work / name} {words}"
                report(captured(argv_of(line), timeout=TIMEOUT_S, cwd=work), name)
                keep(work / name, folder, name)
        finally:
            captured(argv_of("down", LAB))
        keep(work / "observed", folder, "sparse-loco-observed")


def report(done: subprocess.CompletedProcess[str], name: str) -> None:
    print(f"{name}: status {done.returncode}: {(done.stdout + done.stderr)[-300:]}", flush=True)


OTHERS: dict[str, Callable[[Path], None]] = {
    "compared": compared,
    "audited": audited,
    "in-a-lab": in_a_lab,
    "validated": validated,
}


def main() -> None:
    """Make the kinds that are named, by default all."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stored-state-") as state:
        os.environ["TESTBED_STATE"] = state
        for name in sys.argv[2:] or [*KINDS, *OTHERS]:
            try:
                if name in KINDS:
                    make(name, KINDS[name], folder)
                else:
                    OTHERS[name](folder)
            except Exception as error:  # the other kinds are made all the same
                print(f"{name}: {error!r}", flush=True)


if __name__ == "__main__":
    main()
