"""A session with invalid answers; ranks are simulated, no process is started."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders.tables import table

from testbed.core.validation.offers import parse_offers
from testbed.core.validation.operation import Group, Operation
from testbed.core.validation.output_judge import Answer, judge
from testbed.errors import LabError, StorageError
from testbed.keeper import client
from testbed.lab.validation import fault_cells
from testbed.lab.validation import worker_set as worker_sets
from testbed.lab.validation.disturbance import FaultedOperation
from testbed.lab.validation.library_session import Performed, Session
from testbed.lab.validation.rank_channel import Lines
from testbed.lab.validation.rank_programs import Program
from testbed.lab.validation.worker_set import Replies, checked_answer

BARRIER = Operation("barrier", 7)
SUM = Operation("all_reduce", 7, count=1, reduction="sum")
HUGE = 10**400
UNTIMED = "its answer lacks the time when it began or ended"


class WorkerSet:
    """Two ranks with given answers; ``now`` in an answer becomes the time."""

    world = (0, 1)
    offers: Mapping[str, Any] = {"groups": True}

    def __init__(self, outputs: Path, *answers: Mapping[str, Any]) -> None:
        self.outputs, self._answers = outputs, answers
        self.asked = self.checked = 0
        self.joins: Replies = Replies({0: {}, 1: {}})
        self.lab_failed = ""

    def join(self, timeout_s: float) -> Replies:
        return self.joins

    def check_lab(self) -> None:
        self.checked += 1
        if self.lab_failed:
            raise LabError(self.lab_failed)

    def last_line(self, rank: int) -> str:
        return ""

    def kill(self) -> None:
        pass

    @property
    def alive(self) -> bool:
        return True

    def say(self, message: Mapping[str, Any], ranks: Iterable[int]) -> None:
        pass

    def gather(self, ranks: Iterable[int], *rest: object) -> Replies:
        now = time.monotonic()
        given = {
            rank: {key: now if value == "now" else value for key, value in answer.items()}
            for rank, answer in enumerate(self._answers)
        }
        return Replies(given, silent=tuple(rank for rank in self.world if rank not in given))

    def ask(self, message: Mapping[str, Any], *, bound_s: float) -> Replies:
        self.asked += 1
        return Replies({0: {}}, silent=(1,))


def session(workers: WorkerSet) -> Session:
    made = Session(workers, timeout_s=1.0)  # type: ignore[arg-type]
    made.ready()
    return made


class Run:
    """A session in which an operation was performed, with answers of two ranks."""

    def __init__(self, folder: Path, *answers: Mapping[str, Any], operation: Operation = BARRIER) -> None:
        self.operation, self.workers = operation, WorkerSet(folder, *answers)
        self.session = session(self.workers)
        self.performed = self.perform()

    def perform(self) -> Performed:
        return self.session.perform([(self.operation, self.session.world)])

    @property
    def answers(self) -> Mapping[int, Answer]:
        return self.performed.answers

    @property
    def detail(self) -> str:
        return judge(self.operation, self.session.world, self.answers).detail


GOOD = {"call": 7, "began": "now", "ended": "now"}
UNSUPPORTED = {"call": 7, "unsupported": "no"}
ERROR = {"call": 7, "error": "timed out", "began": "now", "ended": "now"}


def test_good_answers_are_done(tmp_path: Path) -> None:
    run = Run(tmp_path, GOOD, GOOD)
    assert run.performed.done and not run.session.broken


@table(
    "times, message",
    {
        "another clock": ({"began": time.time(), "ended": time.time() + 1}, "began"),
        "before the operation": ({"began": 0.0, "ended": 0.001}, "began"),
        "an end before the operation": ({"began": "now", "ended": 0.0}, "began"),
        "not a number": ({"began": float("nan"), "ended": "now"}, "began"),
        "huge": ({"began": "now", "ended": HUGE}, "began"),
        "a truth value": ({"began": True, "ended": "now"}, "began"),
        "no begin": ({"ended": "now"}, "began"),
        "no times": ({}, UNTIMED),
        "no end": ({"began": 1.0}, UNTIMED),
        "no begin, and an impossible end": ({"ended": 1.0}, UNTIMED),
        "an end in words": ({"began": 1.0, "ended": "soon"}, UNTIMED),
    },
)
def test_times_that_cannot_be_are_an_error(tmp_path: Path, times: dict[str, Any], message: str) -> None:
    """A wrong clock would distort a speed, or make a late error look timely."""
    run = Run(tmp_path, GOOD, {"call": 7, **times})
    answer = run.answers[1]
    assert answer.state == "error" and message in answer.message
    assert message != UNTIMED or answer.message == UNTIMED
    assert run.session.broken


@pytest.mark.parametrize("answer", [GOOD, UNSUPPORTED])
def test_lab_is_not_checked_while_all_is_well(tmp_path: Path, answer: Any) -> None:
    assert Run(tmp_path, GOOD, answer).workers.checked == 0


@pytest.mark.parametrize("answers", [(GOOD, ERROR), (GOOD,)])
def test_failure_in_a_lab_that_has_failed_is_not_the_librarys(tmp_path: Path, answers: Any) -> None:
    assert not Run(tmp_path, *answers).performed.done  # and in a lab that is well it is
    workers = WorkerSet(tmp_path, *answers)
    workers.lab_failed = "the emulator died"
    broken = session(workers)
    with pytest.raises(LabError, match="the emulator died"):
        broken.perform([(BARRIER, broken.world)])
    assert broken.broken


def test_no_communicator_and_no_group_in_a_lab_that_has_failed_is_the_labs_failure(tmp_path: Path) -> None:
    workers = WorkerSet(tmp_path)
    made = session(workers)
    workers.lab_failed = "the emulator died"
    with pytest.raises(LabError, match="the emulator died"):
        made.have(Group("at east", (0,)))
    workers.joins = Replies({0: {}}, silent=(1,))
    with pytest.raises(LabError, match="the emulator died"):
        made.fresh()


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of what starts programs: those to start, of rank 0 alone."""
    made = SimpleNamespace(ranks=(SimpleNamespace(rank=0),), outputs=None, programs={}, sweep=lambda: None)
    made.start = lambda: (made.programs, None)
    monkeypatch.setattr(worker_sets, "Starter", lambda *words: made)
    return made


def worker_set() -> worker_sets.WorkerSet:
    lab: Any = SimpleNamespace(name="some")
    return worker_sets.WorkerSet(lab, *[None] * 3)  # type: ignore[arg-type]


@table(
    "hello, message",
    {
        "emulator": ({"emulator_died": True, "dead_containers": []}, "the emulator died, so all fibers are dark"),
        "container": ({"emulator_died": False, "dead_containers": ["east-0"]}, "the container of east-0 has exited"),
        "nothing": ({"emulator_died": False, "dead_containers": []}, ""),
    },
)
def test_check_lab_reports_what_died(
    monkeypatch: pytest.MonkeyPatch, starter: object, hello: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(client, "keeper", lambda lab: SimpleNamespace(hello=lambda: hello))
    with pytest.raises(LabError, match=message) if message else contextlib.nullcontext():
        worker_set().check_lab()


def test_error_whose_time_cannot_be_has_none(tmp_path: Path) -> None:
    answer = Run(tmp_path, GOOD, {"call": 7, "error": "reset" * 1000, "ended": 0.5}).answers[1]
    assert (answer.state, answer.ended) == ("error", None)
    assert answer.message.startswith("reset") and len(answer.message) < 1000


@pytest.mark.parametrize("name", ["", ".", "..", "nul\0byte", "\ud800", "folder", "missing", "x" * 5000])
def test_output_that_is_no_file_of_ours_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    answer = Run(tmp_path, GOOD | {"output": name}, GOOD, operation=SUM).answers[0]
    assert answer.state == "error" and "output" in answer.message


def test_output_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    run = Run(tmp_path, GOOD | {"output": "sparse"}, GOOD, operation=SUM)
    output = run.answers[0].output
    assert output is not None and len(output) <= 8
    judgement = judge(SUM, run.session.world, run.answers)
    assert (judgement.state, judgement.rank) == ("wrong", 0)
    assert f"is {1 << 40} bytes long, expected 4: {(1 << 40) - 4} too many" in judgement.detail
    assert not (tmp_path / "sparse").exists()


@pytest.mark.parametrize("size", [0, 3, 4, 5, 8])
def test_output_has_the_length_of_its_file(tmp_path: Path, size: int) -> None:
    (tmp_path / "some").write_bytes(b"x" * size)
    detail = Run(tmp_path, GOOD | {"output": "some"}, GOOD, operation=SUM).detail
    assert (f"is {size} bytes long" in detail) == (size != 4), detail


@table(
    "second",
    {
        "a rank reports it": {"call": 7, "error": "OSError: No space left on device"},
        "a rank wrote a part of its output": GOOD,
    },
)
def test_full_disk_is_not_the_librarys_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Mapping[str, Any]
) -> None:
    run = Run(tmp_path, GOOD, second, operation=SUM)
    assert set(run.answers) == {0, 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4096))
    with pytest.raises(StorageError, match="No space left"):
        run.perform()


def test_rank_that_refuses_does_not_hide_one_that_hangs(tmp_path: Path) -> None:
    assert Run(tmp_path, UNSUPPORTED).session.broken


def test_after_a_group_that_hangs_no_other_is_asked_for(tmp_path: Path) -> None:
    """The ranks of the group have not answered yet."""
    workers = WorkerSet(tmp_path)
    made = session(workers)
    assert "did not answer" in made.have(Group("at east", (0,)))
    assert made.have(Group("at west", (1,)))
    assert workers.asked == 1


def test_what_is_null_is_as_if_it_were_not_there() -> None:
    """Serializers of many languages write every field of a structure."""
    assert checked_answer(SUM.line(), {"call": 7, "error": None, "output": "x"}) == {"call": 7, "output": "x"}
    assert "error" in checked_answer(SUM.line(), {"call": 8})
    assert "error" in checked_answer({"do": "join"}, {"call": 7})


def test_offers_are_understood() -> None:
    said = {"barrier": {}, "groups": True, "send": None, "reduce": {"types": ["int32"], "same_bits": None}}
    assert parse_offers(said) == {
        "barrier": {"types": [], "reductions": [], "same_bits": False},
        "reduce": {"types": ["int32"], "reductions": [], "same_bits": False},
        "groups": True,
        "rebuilds": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        (None, "expected a JSON object"),
        ([], "expected a JSON object"),
        ({"all_reduce": True}, "all_reduce"),
        ({"all_reduce": {"types": 5}}, "all_reduce.types"),
        ({"all_reduce": {"types": "float32"}}, "all_reduce.types"),
        ({"all_reduce": {"types": [["float32"]]}}, "all_reduce.types"),
        ({"all_reduce": {"reductions": {"sum": True}}}, "all_reduce.reductions"),
        ({"all_reduce": {"same_bits": "yes"}}, "same_bits"),
        ({"groups": 1}, "groups"),
        ({"allreduce": {"types": ["float32"]}}, "unknown operation 'allreduce'"),
    ],
)
def test_parse_offers_refuses(offers: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_offers(offers)


@pytest.mark.parametrize(("late_s", "believed"), [(9.0, False), (0.4, True)])
@pytest.mark.parametrize(("state", "message"), [("error", "reset"), ("unsupported", "")])
def test_error_that_is_answered_late_did_not_come_early(
    tmp_path: Path, late_s: float, believed: bool, state: Any, message: str
) -> None:
    """Whatever time the program reports. A right answer may be late, because its output is written first."""
    answers = {0: Answer("done", None, 99.0, 100.5), 1: Answer(state, None, 99.0, 103.0, message)}
    performed = Performed(answers, 120.0, {0: 110.0, 1: 103.0 + late_s})
    faulted = FaultedOperation(performed, 100.0, 0.3, None)
    evidence = fault_cells.evidence_of(session(WorkerSet(tmp_path, GOOD)), BARRIER, faulted)
    assert [end.at_s for end in evidence.ends] == [0.5, pytest.approx(3.0 if believed else 3.0 + late_s)]
    assert bool(evidence.notes) is not believed
    assert believed or "rank 1 reported an error at least 9 s before its answer arrived" in evidence.notes[0]


def test_refusal_under_a_fault_is_an_error(tmp_path: Path) -> None:
    """The same operation was done a moment before: else a failure could be called what is no failure."""
    began_t = time.monotonic()
    run = Run(tmp_path, GOOD, {"call": 7, "unsupported": "reset by peer", "ended": "now"})
    assert not run.session.broken
    faulted = FaultedOperation(run.performed, began_t, 0.3, None)
    evidence = fault_cells.evidence_of(run.session, BARRIER, faulted)
    assert [end.state for end in evidence.ends] == ["done", "error"]
    assert evidence.ends[1].message == "reset by peer" and 0 <= (evidence.ends[1].at_s or -1) < 5
    assert run.session.broken


@pytest.fixture
def talking(starter: SimpleNamespace) -> tuple[worker_sets.WorkerSet, int]:
    """Workers of one rank without a process that was asked for a barrier, and where it would write its answers."""
    out, into = os.pipe()
    lines = Lines(os.open(os.devnull, os.O_WRONLY), out, io.BytesIO())
    starter.programs[0] = Program(None, lines, None)  # type: ignore[arg-type]
    workers = worker_set()
    workers.start()
    workers.say({"do": "barrier", "call": 7}, (0,))
    return workers, into


def test_silence_of_a_program_is_known_until_its_answer(talking: tuple[worker_sets.WorkerSet, int]) -> None:
    workers, into = talking
    sent_t = time.monotonic()
    assert workers.gather((0,), lambda: sent_t + 0.3, lambda: 0.02).silent == (0,)
    os.write(into, b'{"call": 7, "error": "late"}\n')
    now = time.monotonic()
    replies = workers.gather((0,), lambda: now + 5.0, lambda: 0.02)
    assert replies.errors and sent_t + 0.2 < replies.not_before_t[0] < now


def test_answer_that_nobody_looked_for_may_have_come_at_once(talking: tuple[worker_sets.WorkerSet, int]) -> None:
    """Delays of the testbed do not count against the library."""
    workers, into = talking
    sent_t = time.monotonic()
    os.write(into, b'{"call": 7, "error": "early"}\n')
    time.sleep(0.2)
    assert workers.gather((0,), lambda: sent_t + 5.0).not_before_t[0] <= sent_t
