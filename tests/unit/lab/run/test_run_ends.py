"""However a run ends, its exit status, run.json, report and JUnit say the same, also when they are made again."""

from __future__ import annotations

import contextlib
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import run_factory
from builders.tables import table

from testbed.core.report.junit import junit
from testbed.core.workload.workload import Workload
from testbed.errors import HostError, Interrupted, JobFailed, LabError, StorageError, TestbedError, UserError
from testbed.host.files import store
from testbed.host.files.store import RunDirectory
from testbed.lab import own_lab
from testbed.lab.jobs import run_metadata
from testbed.lab.jobs.job_run import JobRun
from testbed.lab.jobs.recorder import Recorder
from testbed.lab.progress import Silent
from testbed.lab.run import run as run_module

STATUS = {"pass": 0, "fail": 1, "unknown": 3}
EMULATOR_DIED = {"event": "emulator-died", "t": 1.0, "status": -9}
CONTAINER_DIED = {"event": "container-died", "t": 1.0, "node": "west-0"}


class Lab:
    """A lab of which only the run directory is real: the factory's, of a run that goes on."""

    name = "metro"
    certificate = None
    stop_requested = ""

    def claimed(self, kind: str, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(SimpleNamespace(release=lambda *how: None))

    def __init__(self, folder: Path) -> None:
        self.folder = run_factory.make_run(folder / "run")
        self.current_run: Any = None
        self.events: list[dict[str, Any]] = []
        self.trouble = ""
        self.job_error: TestbedError | None = None
        self.heal_error: TestbedError | None = None
        self.down_error: TestbedError | None = None

    def open_run(self, root: Path) -> RunDirectory:
        self.current_run = JobRun(RunDirectory(self.folder))
        run_metadata.amend(self.run_directory, status="running", reason="", expectations=[], unknown_because="")
        return self.run_directory

    @property
    def run_directory(self) -> RunDirectory:
        directory: RunDirectory = self.current_run.directory
        return directory

    @property
    def recorder(self) -> Any:
        return self.current_run.recorder

    def start(self, workload: Workload, **more: Any) -> object:
        recorder: Any = Recorder.__new__(Recorder)
        self.current_run.recorder = recorder
        recorder.events, recorder.error = self.events, self.trouble
        recorder.stop = lambda: None
        job = self.current_run.job = SimpleNamespace(
            close=lambda interrupted=False: None, over=lambda: True, interrupted="", error=lambda: None
        )
        return job

    def heal(self) -> None:
        if self.heal_error:
            raise self.heal_error

    def down(self) -> None:
        if self.down_error:
            raise self.down_error


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path)

    def follow() -> None:
        if made.job_error:
            raise made.job_error

    monkeypatch.setattr(own_lab.deploy, "up", lambda *words, **more: made)
    monkeypatch.setattr(run_module.agent_host, "missing", lambda: "")
    monkeypatch.setattr(run_module.client, "keeper", lambda folder: SimpleNamespace(hello=dict))
    monkeypatch.setattr(run_module, "LiveMetrics", lambda *words: SimpleNamespace(began={0: 1}, hear=lambda: None))
    monkeypatch.setattr(run_module, "FaultPlayer", lambda *words: contextlib.nullcontext())
    monkeypatch.setattr(run_module, "Follower", lambda *words: SimpleNamespace(follow=follow))
    return made


CUT = "schedule: [{at: 2s, inject: cut, target: north, for: 1s}]"


def run(tmp_path: Path, *lines: str, **options: Any) -> run_module.RunOutcome:
    """Run an experiment on metro-40km with these lines."""
    file = tmp_path / "x.yaml"
    file.write_text("\n".join(["topology: metro-40km", *(lines or [CUT]), ""]))
    return run_module.run(str(file), runs=tmp_path, progress=Silent(), **options)


def info(lab: Lab) -> Any:
    return json.loads((lab.folder / "run.json").read_text())


def written(lab: Lab) -> tuple[str, set[str]]:
    """Return the verdict in all files of the report, which is one, and the results of JUnit's cases."""

    def verdict() -> str:
        found = str(json.loads((lab.folder / "report.json").read_text())["verdict"])
        assert f'class="badge {found}"' in (lab.folder / "index.html").read_text()
        return found

    first = verdict()
    again = store.write_report(RunDirectory(lab.folder))
    assert first == verdict() == again.verdict
    assert f"; verdict: {first}." in (lab.folder / "report.md").read_text().splitlines()[2]
    return first, {case[0].tag if len(case) else "passed" for case in ET.fromstring(junit(again)).iter("testcase")}


def trained(report: Any) -> Any:
    return next(answer for answer in report.answers if answer.id == "trained")


BROKEN = JobFailed("rank 2 on west-0 failed: Connection reset by peer")


@table(
    "events, verdict, why",
    {
        "all is well": ({}, "pass", ""),
        "the job fails": ({"job_error": BROKEN}, "fail", ""),
        "no step is committed": (
            {"job_error": LabError("no step was committed for 123 s")},
            "unknown",
            "no step was committed for 123 s",
        ),
        "the disk is full": ({"job_error": StorageError("cannot write: disk full")}, "unknown", "disk full"),
        "the emulator dies": ({"job_error": BROKEN, "events": [EMULATOR_DIED]}, "unknown", "the emulator died"),
        "a container dies": (
            {"job_error": BROKEN, "events": [CONTAINER_DIED]},
            "unknown",
            "the container of west-0 died",
        ),
        "the keeper ends": (
            {"job_error": BROKEN, "trouble": "the keeper ended in the middle of 'events'"},
            "unknown",
            "the keeper ended",
        ),
        "the recorder cannot write": (
            {"trouble": "cannot write events.jsonl"},
            "unknown",
            "cannot write events.jsonl",
        ),
        "a fault cannot be undone": (
            {"heal_error": HostError("undo failed: no interface")},
            "unknown",
            "undo failed",
        ),
        "the job fails and the keeper is stuck": (
            {"job_error": BROKEN, "heal_error": LabError("the keeper is stuck")},
            "unknown",
            "the keeper is stuck",
        ),
    },
)
def test_run_exits_with_the_verdict_of_its_page(
    lab: Lab, tmp_path: Path, events: dict[str, Any], verdict: str, why: str
) -> None:
    vars(lab).update(events)
    outcome = run(tmp_path)
    unknown = info(lab)["unknown_because"]
    assert why in unknown and bool(why) == bool(unknown)
    assert (outcome.report.verdict, outcome.exit_code) == (verdict, STATUS[verdict])
    page, cases = written(lab)
    assert page == verdict
    assert {"pass": cases == {"passed"}, "fail": "error" in cases, "unknown": "error" in cases}[verdict]
    assert not (verdict == "unknown" and "failure" in cases)


def test_run_whose_keeper_died_is_unknown(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: object) -> None:
        raise LabError("the keeper of lab metro is gone")

    monkeypatch.setattr(run_module.client, "keeper", refuse)
    lab.job_error = BROKEN
    assert run(tmp_path).exit_code == 3
    assert written(lab)[0] == "unknown"
    assert info(lab)["unknown_because"] == "the keeper of lab metro is gone"


@pytest.mark.parametrize("job_error", [None, BROKEN])
def test_run_whose_lab_cannot_be_taken_down_is_unknown(
    lab: Lab, tmp_path: Path, job_error: TestbedError | None
) -> None:
    lab.job_error, lab.down_error = job_error, HostError("docker does not run")
    with pytest.raises(HostError) as raised:
        run(tmp_path)
    assert raised.value.exit_code == 3
    assert written(lab)[0] == "unknown"
    assert info(lab)["unknown_because"] == "docker does not run"
    assert info(lab)["reason"] == str(job_error or "docker does not run")


def test_run_that_is_interrupted_is_no_failure_of_the_lab(lab: Lab, tmp_path: Path) -> None:
    lab.job_error = Interrupted("by hand")
    with pytest.raises(Interrupted):
        run(tmp_path)
    assert (info(lab)["status"], info(lab)["unknown_because"]) == ("interrupted", "")


def test_run_with_too_few_steps_in_a_lab_that_failed_is_unknown(lab: Lab, tmp_path: Path) -> None:
    """Fewer steps than planned is the job's failure in a lab that is whole, perhaps the lab's in one that is not."""
    for path in (lab.folder / "ranks").glob("rank-?.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:100]))
    lab.job_error, lab.events = BROKEN, [EMULATOR_DIED]
    answer = trained(run(tmp_path).report)
    assert answer.answer == "unknown"
    assert "did not reach its last step" in answer.text
    assert answer.text.endswith("The cause may be: the emulator died, so all fibers are dark.")
    run_metadata.amend(RunDirectory(lab.folder), unknown_because="")
    assert trained(store.build_report(RunDirectory(lab.folder))).answer == "no"


def test_run_whose_expectations_the_disk_did_not_take_is_unknown(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails after the end was written down: the report that is made later passes nothing that is missing."""

    def judged(*given: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(run_module, "judged", judged)
    with pytest.raises(StorageError):
        run(tmp_path, "expect: [goodput >= 0.1]")
    assert store.write_report(RunDirectory(lab.folder)).verdict == "unknown"


@pytest.mark.parametrize("by_file", [False, True])
def test_run_is_strict_by_the_file_or_the_option(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool
) -> None:
    strict_of_up: Any = []
    monkeypatch.setattr(own_lab.deploy, "up", lambda *words, **more: strict_of_up.append(more["strict"]) or lab)
    lines = [CUT, "strict: true"] if by_file else [CUT]
    with pytest.raises(UserError, match="exclude each other"):
        run(tmp_path, *lines, strict=not by_file, allow_uncertified=True)
    assert strict_of_up == []
    run(tmp_path, *lines, strict=not by_file)
    assert strict_of_up == [True]
