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

from testbed.core.validation.offers import parse_offers
from testbed.core.validation.operation import Group, Operation
from testbed.core.validation.output_judge import Answer, judge
from testbed.errors import LabError, StorageError
from testbed.keeper import client, protocol
from testbed.lab.validation import fault_cells
from testbed.lab.validation import worker_set as worker_sets
from testbed.lab.validation.disturbance import FaultedOperation
from testbed.lab.validation.library_session import Performed, Session
from testbed.lab.validation.rank_channel import Lines
from testbed.lab.validation.rank_programs import Program
from testbed.lab.validation.worker_set import Replies, _checked

BARRIER = Operation("barrier", 7)
SUM = Operation("all_reduce", 7, count=1, reduction="sum")
HUGE = 10**400


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
            rank: {key: now if it == "now" else it for key, it in answer.items()}
            for rank, answer in enumerate(self._answers)
        }
        return Replies(given, silent=tuple(it for it in self.world if it not in given))

    def ask(self, message: Mapping[str, Any], *, bound_s: float) -> Replies:
        self.asked += 1
        return Replies({0: {}}, silent=(1,))


def session(workers: WorkerSet) -> Session:
    made = Session(workers, timeout_s=1.0)  # type: ignore[arg-type]
    made.ready()
    return made


GOOD = {"call": 7, "began": "now", "ended": "now"}


def test_good_answers_are_done(tmp_path: Path) -> None:
    found = session(WorkerSet(tmp_path, GOOD, GOOD))
    assert found.perform([(BARRIER, found.world)]).done and not found.broken


@pytest.mark.parametrize(
    "times",
    [
        {"began": time.time(), "ended": time.time() + 1},
        {"began": 0.0, "ended": 0.001},
        {"began": "now", "ended": 0.0},
        {"began": float("nan"), "ended": "now"},
        {"began": "now", "ended": HUGE},
        {"began": True, "ended": "now"},
        {"ended": "now"},
    ],
)
def test_times_that_cannot_be_are_an_error(tmp_path: Path, times: dict[str, Any]) -> None:
    """A wrong clock would distort a speed, or make a late error look timely."""
    found = session(WorkerSet(tmp_path, GOOD, {"call": 7, **times}))
    answer = found.perform([(BARRIER, found.world)]).answers[1]
    assert answer.state == "error" and "began" in answer.message
    assert found.broken


@pytest.mark.parametrize("times", [{}, {"began": 1.0}, {"ended": 1.0}, {"began": 1.0, "ended": "soon"}])
def test_an_answer_that_does_not_say_when_is_an_error(tmp_path: Path, times: dict[str, Any]) -> None:
    """Also where the reported time is impossible."""
    found = session(WorkerSet(tmp_path, GOOD, {"call": 7, **times}))
    answer = found.perform([(BARRIER, found.world)]).answers[1]
    assert (answer.state, answer.message) == ("error", "its answer lacks the time when it began or ended")


ERROR = {"call": 7, "error": "timed out", "began": "now", "ended": "now"}


def test_while_all_is_well_the_lab_is_not_asked(tmp_path: Path) -> None:
    for answer in (GOOD, {"call": 7, "unsupported": "no"}):
        found = session(workers := WorkerSet(tmp_path, GOOD, answer))
        found.perform([(BARRIER, found.world)])
        assert workers.checked == 0


@pytest.mark.parametrize("answers", [(GOOD, ERROR), (GOOD,)])
def test_what_fails_in_a_lab_that_has_failed_is_not_the_librarys_failure(tmp_path: Path, answers: Any) -> None:
    found = session(workers := WorkerSet(tmp_path, *answers))
    assert not found.perform([(BARRIER, found.world)]).done  # and in a lab that is well it is
    found = session(workers := WorkerSet(tmp_path, *answers))
    workers.lab_failed = "the emulator died"
    with pytest.raises(LabError, match="the emulator died"):
        found.perform([(BARRIER, found.world)])
    assert found.broken


def test_no_communicator_and_no_group_in_a_lab_that_has_failed_is_the_labs_failure(tmp_path: Path) -> None:
    workers = WorkerSet(tmp_path)
    found = session(workers)
    workers.lab_failed = "the emulator died"
    with pytest.raises(LabError, match="the emulator died"):
        found.have(Group("at east", (0,)))
    workers.joins = Replies({0: {}}, silent=(1,))
    with pytest.raises(LabError, match="the emulator died"):
        found.fresh()


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        ({"emulator_died": True, "dead_containers": []}, "the emulator died, so all fibers are dark"),
        ({"emulator_died": False, "dead_containers": ["east-0"]}, "the container of east-0 has exited"),
        ({"emulator_died": False, "dead_containers": []}, ""),
    ],
)
def test_a_lab_that_has_failed_is_known_by_what_its_keeper_says(
    monkeypatch: pytest.MonkeyPatch, hello: dict[str, Any], says: str
) -> None:
    workers = object.__new__(worker_sets.WorkerSet)
    workers._lab = SimpleNamespace(name="some")  # type: ignore[assignment]
    monkeypatch.setattr(client, "ask", lambda lab, request: {protocol.Hello(): hello}[request])
    with pytest.raises(LabError, match=says) if says else contextlib.nullcontext():
        workers.check_lab()


def test_an_error_whose_time_cannot_be_has_none(tmp_path: Path) -> None:
    found = session(WorkerSet(tmp_path, GOOD, {"call": 7, "error": "reset" * 1000, "ended": 0.5}))
    answer = found.perform([(BARRIER, found.world)]).answers[1]
    assert (answer.state, answer.ended) == ("error", None)
    assert answer.message.startswith("reset") and len(answer.message) < 1000


@pytest.mark.parametrize("name", ["", ".", "..", "nul\0byte", "\ud800", "folder", "missing", "x" * 5000])
def test_an_output_that_is_no_file_of_ours_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    found = session(WorkerSet(tmp_path, GOOD | {"output": name}, GOOD))
    answer = found.perform([(SUM, found.world)]).answers[0]
    assert answer.state == "error" and "output" in answer.message


def test_an_output_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    found = session(WorkerSet(tmp_path, GOOD | {"output": "sparse"}, GOOD))
    answers = found.perform([(SUM, found.world)]).answers
    assert answers[0].output is not None and len(answers[0].output) <= 8
    judgement = judge(SUM, found.world, answers)
    assert (judgement.state, judgement.rank) == ("wrong", 0)
    assert f"is {1 << 40} bytes long, expected 4: {(1 << 40) - 4} too many" in judgement.detail
    assert not (tmp_path / "sparse").exists()


@pytest.mark.parametrize("size", [0, 3, 4, 5, 8])
def test_an_output_has_the_length_that_its_file_has(tmp_path: Path, size: int) -> None:
    (tmp_path / "some").write_bytes(b"x" * size)
    found = session(WorkerSet(tmp_path, GOOD | {"output": "some"}, GOOD))
    detail = judge(SUM, found.world, found.perform([(SUM, found.world)]).answers).detail
    assert (f"is {size} bytes long" in detail) == (size != 4), detail


def test_a_full_disk_is_not_the_librarys_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in ({"call": 7, "error": "OSError: No space left on device"}, GOOD):  # the latter wrote a part of it
        found = session(WorkerSet(tmp_path, GOOD, second))
        assert set(found.perform([(SUM, found.world)]).answers) == {0, 1}
        with monkeypatch.context() as full, pytest.raises(StorageError, match="No space left"):
            full.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4096))
            found.perform([(SUM, found.world)])


def test_one_that_refuses_does_not_hide_one_that_hangs(tmp_path: Path) -> None:
    found = session(WorkerSet(tmp_path, {"call": 7, "unsupported": "no"}))
    found.perform([(BARRIER, found.world)])
    assert found.broken


def test_after_a_group_that_hangs_no_other_is_asked_for(tmp_path: Path) -> None:
    """The ranks of the group have not answered yet."""
    workers = WorkerSet(tmp_path)
    found = session(workers)
    assert "did not answer" in found.have(Group("at east", (0,)))
    assert found.have(Group("at west", (1,)))
    assert workers.asked == 1


def test_what_is_null_is_as_if_it_were_not_there() -> None:
    """Serializers of many languages write every field of a structure."""
    assert _checked(SUM.line(), {"call": 7, "error": None, "output": "x"}) == {"call": 7, "output": "x"}
    assert "error" in _checked(SUM.line(), {"call": 8})
    assert "error" in _checked({"do": "join"}, {"call": 7})


def test_offers_are_understood() -> None:
    said = {"barrier": {}, "groups": True, "send": None, "reduce": {"types": ["int32"], "same_bits": None}}
    assert parse_offers(said) == {
        "barrier": {"types": [], "reductions": [], "same_bits": False},
        "reduce": {"types": ["int32"], "reductions": [], "same_bits": False},
        "groups": True,
        "rebuilds": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("offers", "says"),
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
def test_offers_that_cannot_be_understood_are_told(offers: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_offers(offers)


@pytest.mark.parametrize(("late_s", "believed"), [(9.0, False), (0.4, True)])
@pytest.mark.parametrize("word", ["error", "unsupported"])
def test_an_error_that_is_answered_late_did_not_come_early(
    tmp_path: Path, late_s: float, believed: bool, word: str
) -> None:
    """Whatever time the program reports. A right answer may be late, because its output is written first."""
    found = session(WorkerSet(tmp_path, GOOD))
    wrong = {"error": Answer("error", None, 99.0, 103.0, "reset"), "unsupported": Answer("unsupported", None, 99, 103)}
    answers = {0: Answer("done", None, 99.0, 100.5), 1: wrong[word]}
    performed = Performed(answers, 120.0, {0: 110.0, 1: 103.0 + late_s})
    seen = fault_cells._evidence(found, BARRIER, FaultedOperation(performed, 100.0, 0.3, None))
    assert [it.at_s for it in seen.ends] == [0.5, pytest.approx(3.0 if believed else 3.0 + late_s)]
    assert bool(seen.notes) is not believed
    assert believed or "rank 1 reported an error at least 9 s before its answer arrived" in seen.notes[0]


def test_a_program_that_says_nothing_for_long_is_known_to_have_said_nothing(tmp_path: Path) -> None:
    workers, into = talking(tmp_path)
    workers.say({"do": "barrier", "call": 7}, (0,))
    sent_t = time.monotonic()
    assert workers.gather((0,), lambda: sent_t + 0.3, lambda: 0.02).silent == (0,)
    os.write(into, b'{"call": 7, "error": "late"}\n')
    now = time.monotonic()
    said = workers.gather((0,), lambda: now + 5.0, lambda: 0.02)
    assert said.errors and sent_t + 0.2 < said.not_before_t[0] < now


def test_an_answer_that_nobody_looked_for_may_have_come_at_once(tmp_path: Path) -> None:
    """Delays of the testbed do not count against the library."""
    workers, into = talking(tmp_path)
    workers.say({"do": "barrier", "call": 7}, (0,))
    sent_t = time.monotonic()
    os.write(into, b'{"call": 7, "error": "early"}\n')
    time.sleep(0.2)
    assert workers.gather((0,), lambda: sent_t + 5.0).not_before_t[0] <= sent_t


def talking(folder: Path) -> tuple[worker_sets.WorkerSet, int]:
    """A workers of one rank without a process, and where that would write its answers."""
    out, into = os.pipe()
    lines = Lines(os.open(os.devnull, os.O_WRONLY), out, io.BytesIO())
    workers = object.__new__(worker_sets.WorkerSet)
    workers._programs = {0: Program(None, lines, None)}  # type: ignore[arg-type]
    workers._mpiexec, workers._early = None, {}
    return workers, into


def test_a_refusal_under_a_fault_is_an_error(tmp_path: Path) -> None:
    """The same operation was done a moment before: else a failure could be called what is no failure."""
    found = session(WorkerSet(tmp_path, GOOD, {"call": 7, "unsupported": "reset by peer", "ended": "now"}))
    began_t = time.monotonic()
    performed = found.perform([(BARRIER, found.world)])
    assert not found.broken
    seen = fault_cells._evidence(found, BARRIER, FaultedOperation(performed, began_t, 0.3, None))
    assert [it.state for it in seen.ends] == ["done", "error"]
    assert seen.ends[1].message == "reset by peer" and 0 <= (seen.ends[1].at_s or -1) < 5
    assert found.broken
