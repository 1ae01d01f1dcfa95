"""However a run ends, its exit status, run.json, report and JUnit say the same, also when they are made again."""

from __future__ import annotations

import contextlib
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import run_factory

from testbed.core.report.junit import junit
from testbed.core.workload.workload import Workload
from testbed.errors import HostError, Interrupted, JobFailed, LabError, StorageError, TestbedError, UserError
from testbed.host.files import store
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import run_metadata
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
        self.run_directory: RunDirectory | None = None
        self.recorder: Any = None
        self.events: list[dict[str, Any]] = []
        self.trouble = ""
        self.job_error: TestbedError | None = None
        self.heal_error: TestbedError | None = None
        self.down_error: TestbedError | None = None

    def open_run(self, root: Path) -> RunDirectory:
        self.run_directory = RunDirectory(self.folder)
        run_metadata.amend(self.run_directory, status="running", reason="", expectations=[], unknown_because="")
        return self.run_directory

    def start(self, workload: Workload, **more: Any) -> object:
        self.recorder = Recorder.__new__(Recorder)
        self.recorder.events, self.recorder.error = self.events, self.trouble
        self.recorder.stop = lambda: None
        return SimpleNamespace(close=lambda interrupted=False: None, over=lambda: True)

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

    monkeypatch.setattr(run_module.deploy, "up", lambda *words, **more: made)
    monkeypatch.setattr(run_module.agent_host, "missing", lambda: "")
    monkeypatch.setattr(run_module.client, "ask", lambda folder, request: {})
    monkeypatch.setattr(run_module, "LiveMetrics", lambda *words: SimpleNamespace(began={0: 1}, hear=lambda: None))
    monkeypatch.setattr(run_module, "FaultPlayer", lambda *words: contextlib.nullcontext())
    monkeypatch.setattr(run_module, "Follower", lambda *words: SimpleNamespace(follow=follow))
    return made


def run(lab: Lab, tmp_path: Path) -> run_module.RunOutcome:
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nschedule: [{at: 2s, inject: cut, target: north, for: 1s}]\n")
    return run_module.run(str(file), runs=tmp_path, progress=Silent())


def told(lab: Lab) -> tuple[str, set[str]]:
    """The verdict of all that was written, which is one, and the results of JUnit's cases."""
    page = (lab.folder / "index.html").read_text()
    written = json.loads((lab.folder / "report.json").read_text())["verdict"]
    again = store.write_report(RunDirectory(lab.folder))
    assert again.verdict == written
    assert json.loads((lab.folder / "report.json").read_text())["verdict"] == written
    for text in (page, (lab.folder / "index.html").read_text()):
        assert f'class="badge {written}"' in text
    assert f"; verdict: {written}." in (lab.folder / "report.md").read_text().splitlines()[2]
    return written, {case[0].tag if len(case) else "passed" for case in ET.fromstring(junit(again)).iter("testcase")}


def lab_of(**trouble: Any) -> Callable[[Lab], None]:
    return lambda lab: lab.__dict__.update(trouble)


BROKEN = JobFailed("rank 2 on west-0 failed: Connection reset by peer")


@pytest.mark.parametrize(
    ("happens", "verdict", "why"),
    [
        (lab_of(), "pass", ""),
        (lab_of(job_error=BROKEN), "fail", ""),
        (lab_of(job_error=LabError("no step was committed for 123 s")), "unknown", "no step was committed for 123 s"),
        (lab_of(job_error=StorageError("cannot write: disk full")), "unknown", "disk full"),
        (lab_of(job_error=BROKEN, events=[EMULATOR_DIED]), "unknown", "the emulator died"),
        (lab_of(job_error=BROKEN, events=[CONTAINER_DIED]), "unknown", "the container of west-0 died"),
        (lab_of(job_error=BROKEN, trouble="the keeper ended in the middle of 'events'"), "unknown", "the keeper ended"),
        (lab_of(trouble="cannot write events.jsonl"), "unknown", "cannot write events.jsonl"),
        (lab_of(heal_error=HostError("undo failed: no interface")), "unknown", "undo failed"),
        (lab_of(job_error=BROKEN, heal_error=LabError("the keeper is stuck")), "unknown", "the keeper is stuck"),
    ],
)
def test_the_status_is_what_the_page_says(
    lab: Lab, tmp_path: Path, happens: Callable[[Lab], None], verdict: str, why: str
) -> None:
    happens(lab)
    outcome = run(lab, tmp_path)
    written = json.loads((lab.folder / "run.json").read_text())
    assert why in written["unknown_because"] and bool(why) == bool(written["unknown_because"])
    assert (outcome.report.verdict, outcome.exit_code) == (verdict, STATUS[verdict])
    said, cases = told(lab)
    assert said == verdict
    assert {"pass": cases == {"passed"}, "fail": "error" in cases, "unknown": "error" in cases}[verdict]
    assert not (verdict == "unknown" and "failure" in cases)


def test_a_job_that_fails_because_its_keeper_died_tells_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(folder: object, request: object) -> None:
        raise LabError("the keeper of lab metro is gone")

    monkeypatch.setattr(run_module.client, "ask", ask)
    lab.job_error = BROKEN
    assert run(lab, tmp_path).exit_code == 3
    assert told(lab)[0] == "unknown"
    assert json.loads((lab.folder / "run.json").read_text())["unknown_because"] == "the keeper of lab metro is gone"


@pytest.mark.parametrize("job_error", [None, BROKEN])
def test_a_lab_that_cannot_be_taken_down_changes_what_the_page_says(
    lab: Lab, tmp_path: Path, job_error: TestbedError | None
) -> None:
    lab.job_error, lab.down_error = job_error, HostError("docker does not run")
    with pytest.raises(HostError) as raised:
        run(lab, tmp_path)
    assert raised.value.exit_code == 3
    assert told(lab)[0] == "unknown"
    written = json.loads((lab.folder / "run.json").read_text())
    assert written["unknown_because"] == "docker does not run"
    assert written["reason"] == (str(job_error) if job_error else "docker does not run")


def test_an_interrupted_run_is_no_failure_of_the_lab(lab: Lab, tmp_path: Path) -> None:
    lab.job_error = Interrupted("by hand")
    with pytest.raises(Interrupted):
        run(lab, tmp_path)
    written = json.loads((lab.folder / "run.json").read_text())
    assert (written["status"], written["unknown_because"]) == ("interrupted", "")


def test_what_is_bad_in_a_lab_that_failed_is_unknown_and_says_why(lab: Lab, tmp_path: Path) -> None:
    """Fewer steps than planned is the job's failure in a lab that is whole, perhaps the lab's in one that is not."""
    for path in (lab.folder / "ranks").glob("rank-?.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:100]))
    lab.job_error, lab.events = BROKEN, [EMULATOR_DIED]
    answers = {it.id: it for it in run(lab, tmp_path).report.answers}
    assert answers["trained"].answer == "unknown"
    assert "did not reach its last step" in answers["trained"].text
    assert answers["trained"].text.endswith("The cause may be: the emulator died, so all fibers are dark.")
    run_metadata.amend(RunDirectory(lab.folder), unknown_because="")
    assert {it.id: it.answer for it in store.build_report(RunDirectory(lab.folder)).answers}["trained"] == "no"


def test_what_was_asked_is_unknown_where_the_disk_took_no_answer(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails after the end was written down: the report that is made later passes nothing that is missing."""

    def full(*given: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(run_module, "judged", full)
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nexpect: [goodput >= 0.1]\n")
    with pytest.raises(StorageError):
        run_module.run(str(file), runs=tmp_path, progress=Silent())
    assert store.write_report(RunDirectory(lab.folder)).verdict == "unknown"


@pytest.mark.parametrize("by_file", [False, True])
def test_a_noisy_host_is_refused_by_the_file_or_the_option(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool
) -> None:
    strict_of_up: list[object] = []
    monkeypatch.setattr(run_module.deploy, "up", lambda *words, **more: strict_of_up.append(more["strict"]) or lab)
    file = tmp_path / "x.yaml"
    strict = "strict: true\n" if by_file else ""
    file.write_text(f"{strict}topology: metro-40km\nschedule: [{{at: 2s, inject: cut, target: north, for: 1s}}]\n")
    with pytest.raises(UserError, match="exclude each other"):
        run_module.run(str(file), runs=tmp_path, strict=not by_file, allow_uncertified=True)
    assert strict_of_up == []
    run_module.run(str(file), runs=tmp_path, strict=not by_file, progress=Silent())
    assert strict_of_up == [True]
