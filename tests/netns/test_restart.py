"""Restarting jobs on a running lab, observed by `ip netns pids`, signals and the ranks' own records; late writers of an
earlier attempt, which are fenced off, among ranks of two fork servers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents_lab import Parent, Ranks, fork_server, nodes_up, records, steps
from builders.conditions import LABS, TORCH
from builders.json_files import read_json, recorded_events
from builders.labs import Lab, end_rank, processes_in, shared_lab
from builders.proc import status_of
from oracles import oracle

from testbed.errors import LabError

pytestmark = [*LABS, TORCH]

STEPS = 45
EVERY = 10
SMALL: dict[str, Any] = {"layers": 2, "heads": 2, "width": 32, "checkpoint_every": EVERY}


lab = shared_lab(agents=True)


@pytest.fixture(autouse=True)
def healed(lab: Lab) -> Iterator[None]:
    yield
    lab.heal()


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> str:
    """SHA-256 of the parameters that the job comes to when nothing happens."""
    return parameters(lab, lab.train(STEPS, restarts=0, **SMALL))


def parameters(lab: Lab, job: Any) -> str:
    """Of the end of a job, the same on all ranks."""
    job.wait(60)
    ends = [records(lab.run_directory.ranks, rank)[-1] for rank in range(4)]
    assert [it["status"] for it in ends] == ["ok"] * 4
    (found,) = {it["parameters_sha256"] for it in ends}
    return str(found)


def attempts(lab: Lab) -> list[dict[str, Any]]:
    """What rank 0 wrote when it began each."""
    return [it for it in records(lab.run_directory.ranks, 0) if it["kind"] == "job"]


def begun(lab: Lab, step: int, **more: Any) -> Any:
    job = lab.train(STEPS, **SMALL, **more)
    job.wait_for(step, timeout=60)
    return job


def reason_to_wait(job: Any, bound_s: float = 20.0) -> str:
    oracle.until(lambda: job.waiting, bound_s, "a restart waits for the lab")
    return str(job.waiting)


def test_a_killed_rank_costs_the_steps_since_the_checkpoint(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 25)
    victim = end_rank(lab, "west-0")
    job.wait(60)
    report = lab.report()
    assert [(it["attempt"], it["resumed_from"] % EVERY) for it in attempts(lab)] == [(1, 0), (2, 0)]
    resumed_from = attempts(lab)[1]["resumed_from"]
    assert 20 <= resumed_from <= 40
    first, second = ([it["step"] for it in steps(lab.run_directory.ranks, 0) if it["attempt"] == n] for n in (1, 2))
    assert second == list(range(resumed_from + 1, STEPS + 1))
    # As if nothing had happened: parameters, optimizer, place in the data.
    assert parameters(lab, job) == undisturbed
    assert (report.attempts[0].cause, report.attempts[0].steps_lost) == ("rank 2 died", len(first) - resumed_from)
    assert report.wire.ok
    assert report.malformed == {}
    assert report.training.steps_committed == STEPS
    assert victim not in processes_in(lab, "west-0")
    assert not (lab.run_directory.ranks / "checkpoints").exists()


@pytest.mark.thorough
def test_a_cut_longer_than_the_timeout_is_waited_out(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 15, timeout_s=1.5)
    with lab.cut("north"), lab.cut("south"):
        assert "not connected while north, south are dark" in reason_to_wait(job)
        assert not job.over()
        assert job.failure() == ""
        (said,) = lab.status().waits
        assert said.startswith(f"attempt 2 of job {job.id} waits to begin: the sites are not connected")
        time.sleep(0.5)
        assert job.attempt == 1  # nothing begins while all fibers are dark
    job.wait(60)
    assert lab.status().waits == ()
    assert [it["attempt"] for it in attempts(lab)] == [1, 2]
    assert parameters(lab, job) == undisturbed
    assert "dark" in recorded_events(lab.run_directory.path, "restart-waits")[0]["for"]


@pytest.mark.thorough
def test_an_evacuated_site_leaves_in_order(lab: Lab, undisturbed: str) -> None:
    """No step is lost, and no restart spent: none is allowed here."""
    job = begun(lab, 15, restarts=0)
    fault = lab.inject("evacuation", "west", warning="3s")
    assert reason_to_wait(job, 3.0) == "evacuation west: a power loss is imminent"
    assert processes_in(lab, "west-0"), "the power is there"
    oracle.until(lambda: not processes_in(lab, "west-0"), 5.0, "the power is gone")
    oracle.until(lambda: job.waiting == "a fault keeps ranks 2, 3 down", 5.0, "it waits for the power")
    fault.heal()
    job.wait(60)
    _, second = attempts(lab)
    done = [it["step"] for it in steps(lab.run_directory.ranks, 0)]
    assert done == list(range(1, STEPS + 1)), "each step once"
    assert second["resumed_from"] == max(it["step"] for it in steps(lab.run_directory.ranks, 3) if it["attempt"] == 1)
    assert parameters(lab, job) == undisturbed
    report = lab.report()
    left = report.attempts[0]
    assert (left.in_order, left.cause, left.steps_lost, left.detection_s) == (True, "evacuation west", 0, None)
    assert report.training.steps_lost == 0
    assert "Attempt 1 was stopped in order" in next(it.text for it in report.answers if it.id == "restarted")
    assert all(it.holds for it in report.checkers), report.checkers
    noted = read_json(lab.run_directory.path / "run.json")["attempts"]
    assert [(it["attempt"], it["in_order"], it["resumed_from"]) for it in noted] == [
        (1, True, 0),
        (2, False, second["resumed_from"]),
    ]


@pytest.mark.thorough
def test_a_warning_that_is_too_short_is_a_loss_of_power(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 15)
    with lab.inject("evacuation", "west", warning="2ms"):
        oracle.until(lambda: job.waiting == "a fault keeps ranks 2, 3 down", 20.0, "it waits for the power")
    assert parameters(lab, job) == undisturbed
    first = lab.report().attempts[0]
    assert (first.in_order, first.cause) == (False, "evacuation west")
    assert first.steps_lost > 0


@pytest.mark.thorough
def test_a_silent_cut_spends_no_more_restarts_than_another(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 15, timeout_s=1.5, restarts=1)
    with lab.cut("north", carrier="silent"), lab.cut("south", carrier="silent"):
        assert reason_to_wait(job) == "east and west do not reach each other"
        time.sleep(2.5)  # an attempt would have failed to meet by now
        assert (job.attempt, job.over()) == (1, False)
        noted = read_json(lab.run_directory.path / "run.json")["attempts"]
        assert [(it["attempt"], it["in_order"]) for it in noted] == [(1, False)], "also of a run that ends here"
        assert "rank" in noted[0]["why"]
    job.wait(60)
    assert [it["attempt"] for it in attempts(lab)] == [1, 2]
    assert parameters(lab, job) == undisturbed


@pytest.mark.thorough
def test_a_node_that_is_down_is_waited_for(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 15)
    fault = lab.inject("node-kill", "east-1")
    assert reason_to_wait(job) == "a fault keeps rank 1 down"
    fault.heal()
    assert parameters(lab, job) == undisturbed
    assert lab.report().attempts[0].cause == "node-kill east-1"


@pytest.mark.thorough
def test_a_spoilt_checkpoint_is_not_begun_from(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 22)
    fault = lab.inject("node-kill", "east-1")
    reason_to_wait(job)
    (newest, *_) = sorted((lab.run_directory.ranks / "checkpoints" / "rank-3").glob("step-*"), reverse=True)
    data = newest / "__0_0.distcp"
    os.truncate(data, data.stat().st_size // 2)
    fault.heal()
    job.wait(60)
    assert attempts(lab)[1]["resumed_from"] == int(newest.name[5:11]) - EVERY
    assert parameters(lab, job) == undisturbed


@pytest.mark.thorough
def test_agents_whose_parent_died_are_deployed_by_another(lab: Lab, undisturbed: str) -> None:
    job = begun(lab, 15)
    (rank,) = processes_in(lab, "east-0")
    os.kill(int(status_of(rank)["PPid"]), signal.SIGKILL)
    job.wait(90)
    assert [it["attempt"] for it in attempts(lab)] == [1, 2]
    assert parameters(lab, job) == undisturbed


def test_no_more_restarts_than_allowed(lab: Lab) -> None:
    job = begun(lab, 5, restarts=1)
    for attempt in (1, 2):
        oracle.until(lambda attempt=attempt: job.attempt == attempt, 30.0, f"attempt {attempt}")  # type: ignore[misc]
        oracle.until(lambda: processes_in(lab, "west-1"), 10.0, "its rank is there")
        os.kill(processes_in(lab, "west-1")[0], signal.SIGKILL)
    with pytest.raises(LabError, match=r"rank 3 on west-1 gone"):  # shot by nobody whom the testbed knows
        job.wait(60)
    assert job.over()
    assert job.attempt == 2


@pytest.mark.thorough
def test_a_job_that_is_stopped_does_not_begin_again(lab: Lab) -> None:
    job = begun(lab, 5)
    job.stop()
    oracle.until(job.over, 10.0, "the job is over")
    assert job.attempt == 1


def test_a_rank_that_wakes_in_the_next_attempt_cannot_commit(tmp_path: Path) -> None:
    """In a lab its process is ended before its successor begins; here nobody does, as on a node out of reach."""

    def begin(parent: Parent, attempt: int, **fields: Any) -> tuple[Ranks, list[int]]:
        model = {"layers": 1, "heads": 2, "width": 32}
        ranks = Ranks(parent, nodes, tmp_path, ("east", "east"), timeout_s=60.0, model=model, checkpoint_every=5)
        pids = [event["pid"] for event in ranks.deploy(port=9100 + attempt)]
        ranks.train(master=[nodes.address(0), 29500 + attempt], attempt=attempt, **fields)
        return ranks, pids

    def checkpoints(rank: int, pattern: str = "*") -> set[Path]:
        return set((tmp_path / "checkpoints" / f"rank-{rank}").glob(pattern))

    with (
        nodes_up("tbrs", 2) as nodes,
        fork_server(tmp_path / "old.log") as old,
        fork_server(tmp_path / "new.log") as new,
    ):
        (tmp_path / "attempt").write_text("1\n")
        ranks, pids = begin(old, 1, resume=None, steps=1_000_000)
        ranks.until_steps(12, rank=1, bound_s=60)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        whole, there = ({path.name for path in checkpoints(rank, "step-*")} for rank in (0, 1))
        resume = max(int(name[5:11]) for name in whole & there)
        (tmp_path / "attempt").write_text("2\n")
        begin(new, 2, resume=[resume, 1], steps=resume + 8)[0].finish()
        before = [records(tmp_path, rank) for rank in (0, 1)]
        folders = checkpoints(0) | checkpoints(1)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        ends = old.next("finished", 2, timeout_s=60)
        assert {end["status"] for end in ends} == {"failed"}
        assert any("attempt 2 has begun" in end["reason"] for end in ends)
        assert [records(tmp_path, rank) for rank in (0, 1)] == before
        # It may remove what it had not finished, or what nobody resumes from.
        left = checkpoints(0) | checkpoints(1)
        assert left <= folders
        assert {path for path in folders if path.name.endswith((".a2", f"step-{resume:06d}.a1"))} <= left
