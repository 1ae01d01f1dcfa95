"""The bytes of strategies that exchange every H steps, or in fragments that are under way during later steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire_check import EXCESS, WireVerdict, check
from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord
from testbed.core.records.samples import FiberSample
from testbed.core.topology.model import Topology
from testbed.core.training.async_diloco import AsyncDiloco
from testbed.core.training.decoupled import Decoupled
from testbed.core.training.layout import Layout, Tensor
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Equal, Twin
from testbed.host.files import catalog

BYTES = 4_000_000
STEPS = 100
SEGMENT = 1448
SITES = ("east", "east", "west", "west")
Busy = tuple[float, float, float]
"""Begin and end of an exchange, and its bytes."""


@pytest.fixture(scope="module")
def metro() -> Topology:
    return catalog.load_topology("metro-40km")


def logs(every: int = 10, steps: int = STEPS, ended: bool = True) -> list[RankLog]:
    """A step a second, from i to i + 0.6; each tenth one is followed by an exchange until i + 0.9."""
    found = []
    for rank, site in enumerate(SITES):
        rows = tuple(
            StepRecord(i, i, i + 0.4, i + 0.5, i + (0.9 if i % every == 0 or i == STEPS else 0.6), 8, t_stepped=i + 0.6)
            for i in range(1, steps + 1)
        )
        job = JobRecord(
            0.5, rank, len(SITES), f"n{rank}", site, "", BYTES // 4, BYTES, STEPS, algorithm="gloo ring",
            strategy="diloco", options={"every": every, "replica": "site"},
        )  # fmt: skip
        found.append(RankLog(rank, (job,), rows, (EndRecord(STEPS + 1.5, "ok", "", STEPS),) if ended else ()))
    return found


def exchanges(every: int = 10, byte_count: float = BYTES) -> list[Busy]:
    return [(i + 0.6, i + 0.9, byte_count) for i in range(1, STEPS + 1) if i % every == 0 or i == STEPS]


def track(direction: str, busy: Sequence[Busy], until_t: float = STEPS + 3.0) -> list[FiberSample]:
    """A sample each half second from 0.05 on; bytes cross evenly within their interval, in full segments."""
    found = []
    for index in range(math.ceil(2 * until_t)):
        t = 0.05 + index / 2
        done = sum(count * min(1.0, max(0.0, (t - a) / (b - a))) for a, b, count in busy)
        segments = round(done / SEGMENT)
        found.append(FiberSample(t, direction, segments, segments, segments * (SEGMENT + 66), {}, None, (), ()))
    return found


def crossed(
    metro: Topology,
    busy: Sequence[Busy],
    job: Sequence[RankLog],
    twin: Twin | None = None,
    cut: float | None = None,
    lasts: float = 5.0,
    records: Sequence[dict[str, Any]] = (),
) -> WireVerdict:
    fibers = [
        *track("north:west", busy),
        *track("north:east", busy),
        *track("south:west", ()),
        *track("south:east", ()),
    ]
    windows = () if cut is None else (FaultWindow("f1", "cut", "south", ("south",), cut, cut + lasts),)
    return check(job, fibers, topology=metro, windows=windows, twin=twin, exchanges={1: records})


@pytest.mark.parametrize("every", [1, 10, 30])
def test_two_sites_exchange_each_parameter_once_every_h_steps(metro: Topology, every: int) -> None:
    """All sites' ranks exchange a slice each: n bytes per direction, as two replicas' ring moves 2 (2 - 1) / 2 n."""
    verdict = crossed(metro, exchanges(every), logs(every))
    assert (verdict.ok, verdict.compared_with) == (True, "algorithm"), verdict.lines
    used = [it for it in verdict.directions if it.expected_bytes]
    assert {it.direction for it in used} == {"north:west", "north:east"}
    assert all(it.ratio == pytest.approx(1.0, abs=0.01) for it in used)
    assert "diloco" in verdict.sentence


@pytest.mark.parametrize(
    ("share", "sentence"),
    [(0.9, "A collective bypassed"), (0.0, "A collective bypassed"), (1.1, EXCESS), (2.0, EXCESS)],
)
def test_more_or_less_than_the_exchanges_is_found(metro: Topology, share: float, sentence: str) -> None:
    verdict = crossed(metro, exchanges(byte_count=share * BYTES), logs())
    assert verdict.ok is False
    assert verdict.sentence.startswith(sentence)


def test_one_exchange_that_went_another_way_is_missed_nowhere(metro: Topology) -> None:
    assert crossed(metro, exchanges()[1:], logs()).ok is False


def test_a_job_that_gave_every_gradient_to_all_is_not_one_that_exchanges_seldom(metro: Topology) -> None:
    """Bytes of DDP beside the records of DiLoCo: 1.5 n in each step."""
    assert crossed(metro, [(i, i + 0.5, 1.5 * BYTES) for i in range(1, STEPS)], logs()).ok is False


def test_an_exchange_during_a_fault_is_not_compared(metro: Topology) -> None:
    busy = [(a, b, 0.0 if 28 < a < 34 else count) for a, b, count in exchanges()]
    assert crossed(metro, busy, logs()).ok is False
    calm = crossed(metro, busy, logs(), cut=28.0)
    directions = [it for it in calm.directions if it.expected_bytes]
    assert all(it.expected_bytes == pytest.approx(9 * BYTES, rel=0.01) and it.ok for it in directions)


def test_the_exchange_of_an_attempt_that_failed_is_not_asked_for(metro: Topology) -> None:
    """One site recorded the step of the exchange, the other one died in it: which part crossed is not known."""
    job = logs(ended=False)
    job = [replace(log, steps=log.steps[:59] if log.rank >= 2 else log.steps[:60]) for log in job]
    for part in (0.0, 0.5, 1.0):
        busy = [it for it in exchanges() if it[0] < 60] + [(60.6, 60.9, part * BYTES)]
        verdict = crossed(metro, busy, job)
        assert verdict.ok is True, (part, verdict.sentence)


def test_where_no_exchange_lies_between_the_samples_nothing_is_told(metro: Topology) -> None:
    job = [replace(log, steps=log.steps[:29]) for log in logs(every=30, ended=False)]
    verdict = crossed(metro, (), job)
    assert (verdict.ok, verdict.compared_with) == (None, "")
    assert "no exchange of diloco" in verdict.sentence


class _Streaming(Twin):
    """One fragment of four every five steps, used three steps later; one that the last step begins ends the job."""

    name = "streaming"
    summary = "a test"

    def operations(self, step: int) -> Sequence[Operation]:
        if step % 5 or not 1 <= step <= self.layout.steps:
            return ()
        return (Operation("all_gather", (0, 2), BYTES / 4, "pseudo-gradients", "slice:0", step // 5 % 4, lands=3),)

    def equal(self, step: int) -> Sequence[Equal]:
        return ()


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.9, False), (1.12, False)])
def test_a_fragment_may_cross_until_the_step_in_which_it_is_used(metro: Topology, share: float, ok: bool) -> None:
    twin = _Streaming({}, Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS))
    job = logs(every=1000)
    # An all_gather of two moves half of the whole in each direction: late, over three steps, or at once.
    for lasts in (0.3, 2.9):
        busy = [(i + 0.6, i + 0.6 + lasts, share * BYTES / 8) for i in range(5, STEPS, 5)]
        busy.append((STEPS + 0.6, STEPS + 1.0, share * BYTES / 8))
        assert all(b <= c for (_, b, _), (c, _, _) in pairwise(busy))
        verdict = crossed(metro, busy, job, twin)
        assert verdict.ok is ok, (lasts, verdict.lines)


def test_the_twin_is_made_from_the_records_of_the_ranks() -> None:
    twin = twin_of(logs())
    assert twin is not None
    assert (twin.name, twin.values["every"], twin.layout.sites, twin.layout.payload_bytes) == (
        "diloco", 10, SITES, BYTES,
    )  # fmt: skip
    assert twin.layout.steps == STEPS
    assert twin_of(logs()[:3]) is None
    shaped = [replace(log, jobs=tuple(replace(it, tensor_elements=(3, 4)) for it in log.jobs)) for log in logs()]
    found = twin_of(shaped)
    assert found is not None
    assert [it.elements for it in found.layout.tensors] == [3, 4]
    gpt = [replace(log, jobs=tuple(replace(it, gradient_bytes=4 * 478_272) for it in log.jobs)) for log in logs()]
    found = twin_of(gpt, {"layers": 4})
    assert found is not None
    assert len(found.layout.tensors) == 52


def test_the_twin_of_a_former_record_is_that_of_its_scheme() -> None:
    job, _ = (
        JobRecord.from_dict(
            {"t": 1, "rank": 0, "world_size": 1, "node": "n", "site": "s", "scheme": "ddp", "gradient_bytes": 8}
        ),
        None,
    )
    found = twin_of([RankLog(0, (job,))])
    assert found is not None
    assert (found.name, found.values["accumulate"]) == ("ddp", 1)
    assert twin_of([RankLog(0, (replace(job, strategy="novel"),))]) is None


class _Seldom(_Streaming):
    def operations(self, step: int) -> Sequence[Operation]:
        return () if step % 25 else super().operations(step)


def test_a_ratio_that_is_right_only_because_an_exchange_was_cut_in_two_is_not_said_to_be_within_5_percent(
    metro: Topology,
) -> None:
    twin = _Seldom({}, Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS))
    busy = [(i + 0.6, i + 0.9, BYTES / 8) for i in range(25, STEPS + 1, 25)]
    assert "each within 5%" in crossed(metro, busy, logs(every=1000), twin).sentence
    # The fragment of step 50 crossed at once; three of the four seconds that it had lie in the fault.
    verdict = crossed(metro, busy, logs(every=1000), twin, cut=51.2)
    used = [it for it in verdict.directions if it.expected_bytes]
    assert verdict.ok is True and all((it.ratio or 0.0) > 1.1 for it in used), verdict.lines
    least, most = used[0].accepted
    assert "each within" not in verdict.sentence
    assert f"{least:.3f} to {most:.3f} is accepted" in verdict.sentence


def test_pushes_that_a_fault_held_back_cross_after_it(metro: Topology) -> None:
    """A site trains on while the fiber is dark; what it pushed crosses at once when the light is back."""
    twin = AsyncDiloco({"every": 10}, Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS))
    calm = exchanges()
    assert crossed(metro, calm, logs(), twin).ok is True
    held = [it for it in calm if 28 < it[0] < 55]
    busy = [it for it in calm if it not in held] + [(55.3, 56.0, BYTES * len(held))]
    verdict = crossed(metro, busy, logs(), twin, cut=28.0, lasts=27.0)
    assert verdict.ok is True, verdict.lines
    assert "a fault held back" in verdict.sentence
    missing = [it for it in busy if it[0] < 60]
    assert crossed(metro, missing, logs(), twin, cut=28.0, lasts=27.0).ok is False
    assert crossed(metro, [*busy, *[(61.3, 61.5, 9 * BYTES)]], logs(), twin, cut=28.0, lasts=27.0).ok is False


def test_pushes_that_were_not_made_while_others_were_held_back_are_not_missed(metro: Topology) -> None:
    """What bypasses the fiber is found all the same: it was recorded."""
    twin = Decoupled({"every": 10}, Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS))
    made = [step for step in range(10, STEPS + 1, 10) if step not in (40, 50, 60)]
    records: list[dict[str, Any]] = [
        {"what": "pushed", "site": site, "fragment": 0, "step": step} for site in set(SITES) for step in made
    ]
    records += [
        {"what": "served", "fragment": 0, "slice": part, "step": step, "taken": {}} for step in made for part in (0, 1)
    ]
    busy = [it for it in exchanges() if it[0] < 39 or it[0] > 69]
    assert crossed(metro, busy, logs(), twin).ok is False
    assert crossed(metro, busy, logs(), twin, records=records).ok is True
    assert crossed(metro, busy[:-1], logs(), twin, records=records).ok is False
    assert crossed(metro, exchanges(), logs(), twin, records=records).ok is False


def test_pushes_of_sites_whose_pace_is_not_known_beforehand_are_not_too_many(metro: Topology) -> None:
    layout = Layout(SITES, (Tensor("model", BYTES // 4),), steps=STEPS)
    twice_as_often = exchanges(every=5)
    assert crossed(metro, twice_as_often, logs(every=5), AsyncDiloco({"every": 10}, layout)).ok is False
    assert crossed(metro, twice_as_often, logs(every=5), AsyncDiloco({"every": 10, "pace": "time"}, layout)).ok is True


@pytest.mark.parametrize(("sites", "quorum", "most"), [("ab", 0, 1.0), ("abc", 0, 1.5), ("abc", 3, 1.0)])
def test_a_fragment_is_merged_more_often_if_a_quorum_does_not_wait_for_all(
    sites: str, quorum: int, most: float
) -> None:
    twin = Decoupled({"quorum": quorum, "every": 10}, Layout(tuple(sites), (Tensor("model", 30),), steps=STEPS))
    assert {it.at_most for it in twin.operations(10) if it.what == "parameters"} == {most}
    assert {it.at_most for it in twin.operations(10) if it.what != "parameters"} == {1.0}
