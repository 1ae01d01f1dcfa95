"""Inputs of predictions from what runs and validations measured, against the formulas of the synthetic ones."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from builders import run_factory, validation_factory
from builders.reports import pages_of
from builders.tables import table

import testbed
from testbed.core.analysis.costs import run_path
from testbed.core.analysis.costs.fiber_model import FiberModel
from testbed.core.analysis.costs.measured_workload import measured_job, steady_step
from testbed.core.analysis.costs.predicted_run import expected_step, predicted_run
from testbed.core.analysis.job_twin import twin_of
from testbed.core.prediction.library_costs import PlainLibrary
from testbed.core.records.rank_log import CalibrationRecord, RankLog
from testbed.core.report.run_report import build
from testbed.core.report.sections import prediction_section
from testbed.core.training.layout import gpt_tensors
from testbed.core.validation.measured_collective import measured_collective
from testbed.core.validation.result import Speed
from testbed.core.validation.result_json import to_json
from testbed.errors import UserError
from testbed.host.files import store
from testbed.host.files.store import RunDirectory
from testbed.lab import api

DELAY_S, RATE = validation_factory.DELAY_S, validation_factory.RATE


def all_reduce(size: int, fixed_s: float, rate: float = RATE, pattern: str = "flat ring") -> Speed:
    crossing = {"north:east": int(1.5 * size), "north:west": int(1.4 * size)}
    seconds = fixed_s + 1.5 * size / rate
    times = (seconds, seconds, seconds)
    return Speed(
        "all_reduce", size, times, seconds, seconds, seconds, 1.0, 1.0, 1.0, 1.0, 1.0, seconds / DELAY_S, crossing,
        size, pattern,
    )  # fmt: skip


def sizes(fixed_s: float, rate: float = RATE, pattern: str = "flat ring") -> tuple[Speed, Speed]:
    return all_reduce(10**6, fixed_s, rate, pattern), all_reduce(10**7, fixed_s, rate, pattern)


def measured(
    *speeds: Speed, name: str = "torch-gloo", delay_s: float = DELAY_S, library: str | None = None
) -> PlainLibrary:
    links = {direction: {"delay_s": delay_s, "rate": RATE} for direction in ("north:east", "north:west")}
    made = validation_factory.library(name, speeds=speeds)
    return measured_collective(validation_factory.validation(made, links=links), library)


@table(
    "speeds, rounds, software_s, per_byte_s",
    {
        "a ring of four has twelve rounds, and the rest is software": (
            (all_reduce(8, 4 * DELAY_S, pattern=""), *sizes(5e-3)), 12, 5e-3 - 12 * DELAY_S, 0.0,
        ),
        "no more rounds than were waited for": (sizes(3 * DELAY_S), 3, 0.0, 0.0),
        "copies that cost more than the fiber are software": (
            sizes(12 * DELAY_S, RATE / 2), 12, 0.0, 1.5 / RATE,
        ),
        "no byte takes less than on the certified fiber": (sizes(12 * DELAY_S, 3 * RATE), 0, 0.0, 0.0),
        "the fixed part of another pattern is rounds": (sizes(20 * DELAY_S, pattern="tree"), 20, 0.0, 0.0),
    },
)  # fmt: skip
def test_measured_collective(speeds: tuple[Speed, ...], rounds: float, software_s: float, per_byte_s: float) -> None:
    found = measured(*speeds)
    assert found.rounds("all_reduce", 4, 1e6) == pytest.approx(rounds)
    assert found.software_s("all_reduce", 4, 0.0) == pytest.approx(software_s, abs=1e-9)
    more_s = found.software_s("all_reduce", 4, 1e6) - found.software_s("all_reduce", 4, 0.0)
    assert more_s == pytest.approx(1e6 * per_byte_s, abs=1e-9)


@table(
    "name, slots", {"gloo runs two at once": ("torch-gloo", 2), "of others nothing is known": ("reference-ring", None)}
)
def test_measured_collective_has_the_slots_of_its_library(name: str, slots: int | None) -> None:
    found = measured(*sizes(12 * DELAY_S), name=name)
    assert (found.name, found.slots) == (name, slots)


def test_measured_collective_without_delay_has_software_only() -> None:
    found = measured(*sizes(5e-3), delay_s=0.0)
    assert found.software_s("all_reduce", 4, 0.0) == pytest.approx(5e-3)


def test_measured_collective_has_gloos_rounds_of_what_was_not_timed() -> None:
    found = measured(*sizes(5e-3))
    assert found.rounds("send", 2, 1e6) == 1 and found.rounds("all_gather", 4, 1e6) == 6


def test_measured_collective_refuses_one_size_or_another_library() -> None:
    with pytest.raises(UserError, match="no all_reduce of two sizes"):
        measured(all_reduce(10**6, 0.0))
    with pytest.raises(UserError, match="no all_reduce of mpich"):
        measured(*sizes(0.0), library="mpich")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_factory.make_run(tmp_path / "run")


def remove_steps(run: Path) -> None:
    for file in (run / "ranks").iterdir():
        file.unlink()


def test_measured_job_of_a_run_is_its_model_its_compute_and_its_topology(run: Path) -> None:
    found = api.measured_job(run)
    assert found.topology is not None and [site.nodes for site in found.topology.sites] == [2, 2]
    assert found.workload.strategy == "ddp" and found.workload.compute is not None
    assert found.workload.compute.seconds == pytest.approx(run_factory.COMPUTE_S, rel=0.2)
    assert found.utilization == pytest.approx(run_factory.COMPUTE_S / run_factory.STEP_S, rel=0.1)
    assert found.library is None, "nothing was timed before the job"
    predicted = testbed.predict(measured=run)
    assert predicted.job.step_s == found.workload.compute.seconds
    elements = sum(it.elements for it in gpt_tensors())
    assert predicted.bits_per_step == pytest.approx(32 * 1.5 * elements * 1000, rel=0.01)


def test_measured_job_has_what_its_operations_took(run: Path) -> None:
    data = RunDirectory(run).read()
    timed = CalibrationRecord(0.0, ((0.9, 0.05, 0.05, 0.04), (0.9, 0.1, 0.1, 0.1)), 0.1)
    logs = tuple(replace(log, calibrations=(timed,)) for log in data.ranks)
    found = measured_job(replace(data, ranks=logs))
    assert found.library is not None
    size = run_factory.GRADIENT_BYTES / 8
    cost = found.library.cost("all_reduce", 4, size, beside=True, crosses=True)
    fiber = FiberModel.certified(data.certificate, data.topology)
    assert fiber is not None
    assert fiber.delay_s == pytest.approx(200e-6), "of the fiber in use, not of the one that stands by"
    # Four in 100 ms, two at a time: 50 ms each, of which 12 rounds and its own bytes are not the library's. In each of
    # the ring's two phases three of six messages travel while the lane sends the other three.
    lane_s = 8 * 1.5 * size / fiber.rate_bps
    travels_s = 2 * (3 * 2 * fiber.delay_s + (3 + 1) * lane_s / 12)
    assert cost.rounds == 12
    assert cost.software_s == pytest.approx(0.05 - max(travels_s, lane_s + 4 * fiber.delay_s), rel=0.01)


def test_prediction_of_the_lab_that_was_measured_is_what_was_measured(run: Path) -> None:
    """What the run took beyond its own simulation is unattributed, or less software; another strategy's is unknown."""
    measured = steady_step(RunDirectory(run).read(), cycle=1)
    found = testbed.predict(measured=run)
    assert measured is not None and found.exposed.total_s == pytest.approx(measured.exposed_s)
    assert found.exposed.unattributed_s == pytest.approx(found.job.unattributed_s) and found.job.unattributed_s > 0
    again = testbed.predict("ddp", measured=run)
    assert again.exposed.unattributed_s == found.job.unattributed_s, "the same words again"
    assert testbed.predict("diloco:every=10", measured=run).exposed.unattributed_s == 0.0


def test_prediction_has_an_interval_of_what_was_timed(run: Path) -> None:
    times = [[0.9, 0.03, 0.04, 0.06, 0.07], [0.9, 0.07, 0.08, 0.12, 0.13]]
    for file in (run / "ranks").glob("rank-?.jsonl"):
        calibration = {"kind": "calibration", "attempt": 1, "t": 0.0, "lasted_s": 1.0, "took_s": times}
        lines = file.read_text().splitlines()
        file.write_text("\n".join([lines[0], json.dumps(calibration), *lines[1:]]) + "\n")
    found = testbed.predict(measured=run)
    assert found.interval is not None and found.interval[0] < found.utilization < found.interval[1]
    assert found.not_timed == () and testbed.predict("ddp").interval is None
    other = testbed.predict("diloco:every=10", measured=run)
    assert other.not_timed == ("all_gather", "send"), "a mean in the site was timed, these were not"


def test_steady_step_has_whole_cycles_without_the_first_and_the_last(run: Path) -> None:
    data = RunDirectory(run).read()
    data = replace(data, ranks=tuple(log for log in data.ranks if log.steps), events=())
    exposed_s = {step: statistics.fmean(it.exposed_s for log in data.ranks for it in log.steps if it.step == step)
                 for step in {it.step for log in data.ranks for it in log.steps}}  # fmt: skip
    last = max(it.step for log in data.ranks for it in log.steps)
    found = steady_step(data, cycle=10)
    steps = range(11, last - last % 10 - 10 + 1)
    assert found is not None and found.exposed_s == pytest.approx(statistics.fmean(exposed_s[it] for it in steps))
    found = steady_step(data, cycle=last)
    assert found is not None and found.exposed_s == pytest.approx(
        statistics.fmean(exposed_s[it] for it in range(2, last + 1))
    ), "too short"


def test_measured_job_needs_steps(run: Path) -> None:
    remove_steps(run)
    with pytest.raises(UserError, match="no steps to predict from"):
        api.measured_job(run)


def test_predicted_run_is_from_its_own_compute_and_certificate(run: Path) -> None:
    """c = 12, w = 1.5 of a ring of 4: what crossed is 1.5 times the model in 32 bits."""
    data = RunDirectory(run).read()
    found = predicted_run(data, run_path.evaluate(data, data.ranks))
    assert found is not None
    bits = 32 * next(log.job.parameters for log in data.ranks if log.job)
    # All of it is exposed but what 7 of 8 buckets send during the last two thirds of the compute.
    wire_s = 1.5 * bits / found.rate_bps
    assert wire_s - 2 / 3 * found.compute_s * 7 / 8 <= found.exposed_s <= 12 * found.delay_s + wire_s
    assert found.utilization == pytest.approx(found.compute_s / found.step_s)
    assert found.step_s == pytest.approx(found.compute_s + sum(value for value, _ in found.parts.values()))
    assert found.measured_step_s == pytest.approx(run_factory.STEP_S, rel=0.02), "the cut is left out"
    assert found.residual == pytest.approx(found.measured_utilization - found.utilization)
    assert found.full_rate_bps == pytest.approx(1000 * found.rate_bps)
    assert found.wire_kappa == pytest.approx(1.5 * bits / (found.rate_bps * found.compute_s))
    report = build(data)
    assert report.prediction == found
    page, text = pages_of(report)
    residual = f"{100 * found.residual:+.1f} percentage points"
    assert residual in page and residual in text and residual in prediction_section.sentence(found)
    assert "loss and windows are not similar" in text


def test_expected_step_is_from_the_certificate_and_what_was_timed(run: Path) -> None:
    data = RunDirectory(run).read()
    twin = twin_of(data.ranks, data.info.workload)
    assert twin is not None
    plain = expected_step(twin, data.certificate, (), 0.060)
    assert plain is not None
    assert 12 * 235e-6 <= plain.exposed.propagation_s <= 8 / 2 * 12 * 235e-6, "of four rows of two buckets at most"
    assert plain.bytes_per_direction == pytest.approx(1.5 * run_factory.GRADIENT_BYTES, rel=0.01)
    # A bucket of an eighth takes 50 ms alone. Four of them take 100 ms, two at a time, so each holds a slot for 50 ms.
    burst = (0.9, 0.1, 0.1, 0.1)
    timed = CalibrationRecord(0.0, ((0.9, 0.05, 0.05, 0.04), burst), 0.1)
    logs = [RankLog(rank, calibrations=(timed,)) for rank in range(4)]
    found = expected_step(twin, data.certificate, logs, 0.060)
    assert found is not None
    assert found.compute_s == pytest.approx(0.1)
    eighth_s = 2 / 3 * 0.1 / 8
    last_s = max(0.1 / 3 + (first + 1) * eighth_s + 4 * 0.05 for first in (0, 1))
    assert found.exposed.total_s == pytest.approx(last_s - 0.1, rel=0.01)
    assert expected_step(twin, None, (), 0.060) is None


def test_prediction_needs_steps(run: Path) -> None:
    remove_steps(run)
    report = build(RunDirectory(run).read())
    assert report.prediction is None
    assert "## Prediction" not in pages_of(report)[1]


def test_measured_library_is_that_of_a_validation_run(run: Path) -> None:
    made = validation_factory.library("torch-gloo", speeds=sizes(5e-3))
    links = {direction: {"delay_s": DELAY_S, "rate": RATE} for direction in ("north:east", "north:west")}
    RunDirectory(run).write_json(store.VALIDATION, to_json(validation_factory.validation(made, links=links)))
    found = api.measured_library(run)
    assert found.name == "torch-gloo" and found.slots == 2
    cost = found.cost("all_reduce", 4, 1e6, beside=False, crosses=True)
    assert cost.software_s == pytest.approx(5e-3 - 12 * DELAY_S)
    predicted = testbed.predict("hierarchical", library=found)
    assert predicted.job.library is found
