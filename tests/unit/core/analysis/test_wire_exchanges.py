"""The bytes of strategies that exchange every H steps, or in fragments that are under way during later steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from builders.tables import table
from builders.wire_records import METRO, SITES, STEPS, Burst, job_logs, track

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire_check import EXCESS, WireVerdict, check
from testbed.core.analysis.wire_directions import DirectionBytes
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord
from testbed.core.training.layout import Layout, Tensor
from testbed.core.training.strategies.async_diloco import AsyncDiloco
from testbed.core.training.strategies.decoupled import Decoupled
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin

BYTES = 4_000_000
LAYOUT = Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS)


def logs(every: int = 10, steps: int = STEPS, ended: bool = True) -> list[RankLog]:
    """A step a second, from i to i + 0.6; each tenth one is followed by an exchange until i + 0.9."""
    rows = [
        StepRecord(i, i, i + 0.4, i + 0.5, i + (0.9 if i % every == 0 or i == STEPS else 0.6), 8, t_stepped=i + 0.6)
        for i in range(1, steps + 1)
    ]
    end = EndRecord(STEPS + 1.5, "ok", "", STEPS) if ended else None
    options = {"every": every, "replica": "site"}
    return job_logs(rows, BYTES, end=end, scheme="", algorithm="gloo ring", strategy="diloco", options=options)


def exchanges(every: int = 10, byte_count: float = BYTES) -> list[Burst]:
    return [(i + 0.6, i + 0.9, byte_count) for i in range(1, STEPS + 1) if i % every == 0 or i == STEPS]


def crossed(
    bursts: Sequence[Burst],
    job: Sequence[RankLog] | None = None,
    twin: Twin | None = None,
    cut: tuple[float, float] | None = None,
    records: Sequence[dict[str, Any]] = (),
) -> WireVerdict:
    """Judge a job whose bytes crossed north; ``cut``: begin and end of a cut of south."""
    fibers = [
        sample
        for direction in ("north:west", "north:east", "south:west", "south:east")
        for sample in track(direction, bursts if direction.startswith("north") else ())
    ]
    windows = () if cut is None else (FaultWindow("f1", "cut", "south", ("south",), *cut),)
    job = logs() if job is None else job
    return check(job, fibers, topology=METRO, windows=windows, twin=twin, exchanges={1: records})


def used(verdict: WireVerdict) -> list[DirectionBytes]:
    return [direction for direction in verdict.directions if direction.expected_bytes]


@pytest.mark.parametrize("every", [1, 10, 30])
def test_check_expects_each_parameter_once_every_h_steps_between_two_sites(every: int) -> None:
    """All sites' ranks exchange a slice each: n bytes per direction, as two replicas' ring moves 2 (2 - 1) / 2 n."""
    verdict = crossed(exchanges(every), logs(every))
    assert (verdict.ok, verdict.compared_with) == (True, "algorithm"), verdict.lines
    assert {direction.direction for direction in used(verdict)} == {"north:west", "north:east"}
    assert all(direction.ratio == pytest.approx(1.0, abs=0.01) for direction in used(verdict))
    assert "diloco" in verdict.sentence


@pytest.mark.parametrize(
    ("share", "sentence"),
    [(0.9, "A collective bypassed"), (0.0, "A collective bypassed"), (1.1, EXCESS), (2.0, EXCESS)],
)
def test_check_finds_more_or_less_than_the_exchanges(share: float, sentence: str) -> None:
    verdict = crossed(exchanges(byte_count=share * BYTES))
    assert verdict.ok is False
    assert verdict.sentence.startswith(sentence)


@table(
    "bursts",
    {
        "an exchange that went another way": exchanges()[1:],
        "DDP beside the records of DiLoCo: 1.5 n in each step": [(i, i + 0.5, 1.5 * BYTES) for i in range(1, STEPS)],
    },
)
def test_check_finds_other_exchanges(bursts: list[Burst]) -> None:
    assert crossed(bursts).ok is False


def test_check_does_not_compare_an_exchange_during_a_fault() -> None:
    bursts = [(begin, end, 0.0 if 28 < begin < 34 else count) for begin, end, count in exchanges()]
    assert crossed(bursts).ok is False
    for direction in used(crossed(bursts, cut=(28.0, 33.0))):
        assert direction.expected_bytes == pytest.approx(9 * BYTES, rel=0.01) and direction.ok


def test_check_does_not_expect_the_exchange_of_an_attempt_that_failed() -> None:
    """One site recorded the step of the exchange, the other one died in it: which part crossed is not known."""
    job = [replace(log, steps=log.steps[: 60 if log.rank < 2 else 59]) for log in logs(ended=False)]
    for part in (0.0, 0.5, 1.0):
        verdict = crossed([*exchanges()[:5], (60.6, 60.9, part * BYTES)], job)
        assert verdict.ok is True, (part, verdict.sentence)


def test_check_is_unknown_where_no_exchange_lies_between_the_samples() -> None:
    verdict = crossed((), logs(every=30, steps=29, ended=False))
    assert (verdict.ok, verdict.compared_with) == (None, "")
    assert "no exchange of diloco" in verdict.sentence


class Streaming(Twin):
    """One fragment of four every five steps, used three steps later; one that the last step begins ends the job."""

    name = "streaming"
    summary = "a test"
    every = 5

    def operations(self, step: int) -> Sequence[Operation]:
        if step % self.every or not 1 <= step <= self.layout.steps:
            return ()
        return (Operation("all_gather", (0, 2), BYTES / 4, "pseudo-gradients", "slice:0", step // 5 % 4, lands=3),)

    def equal(self, step: int) -> Sequence[Equal]:
        return ()


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.9, False), (1.12, False)])
def test_check_lets_a_fragment_cross_until_the_step_in_which_it_is_used(share: float, ok: bool) -> None:
    # An all_gather of two moves half of the whole in each direction: late, over three steps, or at once.
    for length_s in (0.3, 2.9):
        bursts = [(i + 0.6, i + 0.6 + length_s, share * BYTES / 8) for i in range(5, STEPS, 5)]
        bursts.append((STEPS + 0.6, STEPS + 1.0, share * BYTES / 8))
        assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(bursts))
        verdict = crossed(bursts, logs(every=1000), Streaming({}, LAYOUT))
        assert verdict.ok is ok, (length_s, verdict.lines)


def twin_of_jobs(job: Sequence[RankLog], model: dict[str, int] | None = None, **fields: Any) -> Twin:
    """Return the twin of logs in whose job records these fields are changed."""
    changed = [replace(log, jobs=tuple(replace(record, **fields) for record in log.jobs)) for log in job]
    twin = twin_of(changed, *([] if model is None else [model]))
    assert twin is not None
    return twin


def test_twin_of_is_made_from_the_records_of_the_ranks() -> None:
    twin = twin_of_jobs(logs())
    layout = twin.layout
    assert (twin.name, twin.values["every"], layout.sites, layout.payload_bytes) == ("diloco", 10, SITES, BYTES)
    assert layout.steps == STEPS
    assert twin_of(logs()[:3]) is None
    shaped = twin_of_jobs(logs(), tensor_elements=(3, 4)).layout
    assert [tensor.elements for tensor in shaped.tensors] == [3, 4]
    assert len(twin_of_jobs(logs(), {"layers": 4}, gradient_bytes=4 * 478_272).layout.tensors) == 52


def test_twin_of_a_former_record_is_that_of_its_scheme() -> None:
    place = {"t": 1, "rank": 0, "world_size": 1, "node": "n", "site": "s"}
    job = JobRecord.from_dict({**place, "scheme": "ddp", "gradient_bytes": 8})
    twin = twin_of_jobs([RankLog(0, (job,))])
    assert (twin.name, twin.values["accumulate"]) == ("ddp", 1)
    assert twin_of([RankLog(0, (replace(job, strategy="novel"),))]) is None


class Seldom(Streaming):
    every = 25


def test_check_does_not_claim_5_percent_for_a_ratio_of_an_exchange_that_was_cut_in_two() -> None:
    twin = Seldom({}, LAYOUT)
    bursts = exchanges(25, BYTES / 8)
    assert "each within 5%" in crossed(bursts, logs(every=1000), twin).sentence
    # The fragment of step 50 crossed at once; three of the four seconds that it had lie in the fault.
    verdict = crossed(bursts, logs(every=1000), twin, cut=(51.2, 56.2))
    assert verdict.ok is True and all((it.ratio or 0.0) > 1.1 for it in used(verdict)), verdict.lines
    least, most = used(verdict)[0].accepted
    assert "each within" not in verdict.sentence
    assert f"{least:.3f} to {most:.3f} is accepted" in verdict.sentence


def test_check_expects_pushes_that_a_fault_held_back_after_it() -> None:
    """A site trains on while the fiber is dark; what it pushed crosses at once when the light is back."""
    twin = AsyncDiloco({"every": 10}, LAYOUT)
    calm = exchanges()
    assert crossed(calm, twin=twin).ok is True
    held = [burst for burst in calm if 28 < burst[0] < 55]
    bursts = [burst for burst in calm if burst not in held] + [(55.3, 56.0, BYTES * len(held))]
    dark = (28.0, 55.0)
    verdict = crossed(bursts, twin=twin, cut=dark)
    assert verdict.ok is True, verdict.lines
    assert "a fault held back" in verdict.sentence
    missing = [burst for burst in bursts if burst[0] < 60]
    for wrong in (missing, [*bursts, (61.3, 61.5, 9 * BYTES)]):
        assert crossed(wrong, twin=twin, cut=dark).ok is False


def test_check_does_not_miss_pushes_that_were_not_made_while_others_were_held_back() -> None:
    """What bypasses the fiber is found all the same: it was recorded."""
    twin = Decoupled({"every": 10}, LAYOUT)
    made = [step for step in range(10, STEPS + 1, 10) if step not in (40, 50, 60)]
    exchange: list[dict[str, Any]] = [
        *({"what": "pushed", "site": site} for site in set(SITES)),
        *({"what": "served", "slice": part, "taken": {}} for part in (0, 1)),
    ]
    records = [{"fragment": 0, "step": step, **fields} for step in made for fields in exchange]
    bursts = [burst for burst in exchanges() if burst[0] < 39 or burst[0] > 69]
    assert crossed(bursts, twin=twin).ok is False
    assert crossed(bursts, twin=twin, records=records).ok is True
    for wrong in (bursts[:-1], exchanges()):
        assert crossed(wrong, twin=twin, records=records).ok is False


@table("options, ok", {"paced by steps": ({}, False), "paced by time": ({"pace": "time"}, True)})
def test_check_of_pushes_twice_as_often(options: dict[str, str], ok: bool) -> None:
    """The pace of sites that push by time is not known beforehand."""
    twin = AsyncDiloco({"every": 10, **options}, LAYOUT)
    assert crossed(exchanges(every=5), logs(every=5), twin).ok is ok


@pytest.mark.parametrize(("sites", "quorum", "most"), [("ab", 0, 1.0), ("abc", 0, 1.5), ("abc", 3, 1.0)])
def test_decoupled_fragment_is_merged_more_often_if_a_quorum_does_not_wait_for_all(
    sites: str, quorum: int, most: float
) -> None:
    twin = Decoupled({"quorum": quorum, "every": 10}, Layout(tuple(sites), (Tensor("model", 30),), steps=STEPS))
    operations = twin.operations(10)
    assert {operation.at_most for operation in operations if operation.what == "parameters"} == {most}
    assert {operation.at_most for operation in operations if operation.what != "parameters"} == {1.0}
