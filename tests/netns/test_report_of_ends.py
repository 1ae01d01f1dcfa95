"""However a run ends, what it printed and wrote is what a later `report` of its directory has: no rank records anything
after the report was made."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import killed_runs
import pytest
from builders.commands import Child, Command, argv_of, piped, run_line
from builders.conditions import ALONE, TORCH, thorough
from builders.json_files import read_json
from builders.labs import Lab, OwnLab, shared_lab
from oracles import oracle

from testbed.lab import api

pytestmark = [*ALONE, TORCH]

BOUND_S = 240.0
STEPS, FEW, AT = 4000, 12, 5
"""Steps of a job that is ended, and of one that finishes; and the committed step from which on it is ended."""

training = shared_lab(agents=True)


def agents(strategy: str = "ddp", steps: int = STEPS) -> str:
    name, _, every = strategy.partition(":")
    fields = {"strategy": name, "steps": steps, "checkpoint": 10, "restarts": 0}
    if every:
        fields["every"] = int(every)
    return json.dumps({**fields, "compute": {"real": True, "at_least": "50ms"}})


def program(script: str) -> str:
    return json.dumps({"command": ["sh", "-c", script]})


@dataclass
class Running:
    """A run that has come far enough to be ended: its process, its lab, and the folder of its runs, a small disk."""

    child: Child
    lab: OwnLab
    runs: Path

    def send(self, number: int) -> None:
        self.child.send_signal(number)

    def kill_rank(self) -> None:
        oracle.kill(oracle.inside_pids(oracle.netns(self.lab, "west-1")))

    def kill_keeper(self) -> None:
        oracle.kill(self.lab.keepers())

    def take_down(self) -> None:
        api.down(self.lab)

    def fill_disk(self) -> None:
        with contextlib.suppress(OSError), (self.runs / "ballast").open("ab", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))


@dataclass(frozen=True)
class End:
    """``status``: of the command. ``prints``: whether it prints its report on stdout."""

    workload: str
    status: int
    do: Callable[[Running], None] = lambda run: None
    prints: bool = True


SLEEP = "echo begun; exec sleep 600"
LOCAL = "local-sgd:1000"
"""Ranks that do not wait for each other: peers of one that is killed train on."""


def interrupt(run: Running) -> None:
    run.send(signal.SIGINT)


def terminate(run: Running) -> None:
    run.send(signal.SIGTERM)


ENDS: dict[str, End] = {
    "finished": End(agents(steps=FEW), 0),
    "rank killed, its peers train on": End(agents(LOCAL), 3, Running.kill_rank),
    "interrupted": End(agents(), 130, interrupt, prints=False),
    "disk full": End(agents(), 3, Running.fill_disk, prints=False),
    "program interrupted": End(program(SLEEP), 130, interrupt, prints=False),
}
MORE_ENDS: dict[str, End] = {
    "rank killed, its peers fail": End(agents(), 3, Running.kill_rank),
    "interrupted, ranks apart": End(agents(LOCAL), 130, interrupt, prints=False),
    "terminated": End(agents(), 130, terminate, prints=False),
    "keeper killed": End(agents(LOCAL), 3, Running.kill_keeper),
    "lab taken down": End(agents(LOCAL), 130, Running.take_down, prints=False),
    "program fails": End(program("test $RANK = 0 && exit 7; exec sleep 600"), 1),
}


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """Provide the folder of runs, a disk of 64 MB."""
    folder = tmp_path / "runs"
    folder.mkdir()
    run_line(f"mount -t tmpfs -o size=64m,mode=755 tmpfs {folder}")
    yield folder
    run_line(f"umount --lazy {folder}")


def far_enough(run: Path) -> bool:
    log = run / "ranks" / "rank-3.log"
    return killed_runs.committed_in(run) >= AT or (log.exists() and "begun" in log.read_text())


def ended(end: End, lab: OwnLab, runs: Path, folder: Path) -> tuple[Path, str]:
    """Run the end's workload and end it; return the run directory, and what was printed on stdout."""
    (folder / "x.yaml").write_text(f"topology: metro-40km\nworkload: {end.workload}\n")
    words = ("--name", lab, "--allow-uncertified")
    child = piped(argv_of("run", folder / "x.yaml", *words))
    try:
        if end.do is not End.do:
            oracle.until(
                lambda: child.poll() is not None or any(map(far_enough, runs.glob("*/"))), BOUND_S, "it can be ended"
            )
            end.do(Running(child, lab, runs))
        out, err = child.communicate(timeout=BOUND_S)
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
            api.down(lab)
        (runs / "ballast").unlink(missing_ok=True)
    assert child.returncode == end.status, err
    assert bool(out) == end.prints, out
    (run,) = runs.glob("*/")
    return run, out


@pytest.mark.parametrize(
    "end",
    [
        *(pytest.param(it, id=name) for name, it in ENDS.items()),
        *(thorough(it, id=name) for name, it in MORE_ENDS.items()),
    ],
)
def test_a_run_and_the_report_of_its_directory_agree(
    own: OwnLab, command: Command, runs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, end: End
) -> None:
    monkeypatch.setenv("TESTBED_RUNS", str(runs))
    run, printed = ended(end, own, runs, folder)
    written = read_json(run / "report.json")
    page = (run / "report.md").read_text() if end is not ENDS["disk full"] else ""
    verdict = written["verdict"]

    (listed,) = json.loads(command("ls runs --json").stdout)
    assert (listed["verdict"], listed["state"]) == (verdict, written["run"]["status"])
    again = command(f"report {run}")
    if printed:
        assert again.stdout == printed
    assert again.returncode == (3 if end.status == 130 else end.status)
    if page:
        assert (run / "report.md").read_text() == page
    assert read_json(run / "report.json") == written
    assert json.loads(command(f"report {run} --json").stdout) == written
    sides = json.loads(command(f"report {run} {run} --json --out {folder}/both").stdout)
    assert (sides["a"]["verdict"], sides["b"]["verdict"]) == (verdict, verdict)


def test_a_rank_whose_step_does_not_end_records_nothing_after_the_report(training: Lab, tmp_path: Path) -> None:
    step_s = 6.0
    training.open_run(tmp_path)
    job = training.train(STEPS, compute={"real": True, "at_least": f"{step_s:g}s"}, checkpoint_every=0)
    job.wait_for(1, timeout=BOUND_S)
    training.report()
    assert job.over()
    (run,) = tmp_path.iterdir()
    written = read_json(run / "report.json")
    time.sleep(step_s + 2.0)  # until its step would have ended
    api.report(run)
    assert read_json(run / "report.json") == written
