"""Inputs of predictions from what runs and validations measured, against the formulas of the synthetic ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import run_factory, validation_factory

from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.predicted_run import expected_step, predicted_run
from testbed.core.records.rank_log import CalibrationRecord, RankLog
from testbed.core.report import prediction_section
from testbed.core.report.document import build
from testbed.core.report.markdown import markdown
from testbed.core.report.run_page import html
from testbed.core.validation.measured_collective import measured_collective
from testbed.core.validation.result import Speed
from testbed.errors import UserError
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


def measured(*speeds: Speed, library: str | None = None) -> dict[str, float]:
    links = {name: {"delay_s": DELAY_S, "rate": RATE} for name in ("north:east", "north:west")}
    made = validation_factory.validation(validation_factory.library("torch-gloo", speeds=speeds), links=links)
    return measured_collective(made, library)


def test_a_ring_of_four_has_twelve_delays_and_the_rest_is_software() -> None:
    found = measured(all_reduce(8, 4 * DELAY_S, pattern=""), all_reduce(10**6, 5e-3), all_reduce(10**7, 5e-3))
    assert found["wire_factor"] == pytest.approx(1.5)
    assert found["delays"] == pytest.approx(12)
    assert found["operation_s"] == pytest.approx(5e-3 - 12 * DELAY_S)
    assert found["rate_bps"] == pytest.approx(8 * RATE)
    assert found["delay_s"] == DELAY_S


def test_gloo_runs_two_operations_at_once_and_what_others_run_is_not_known() -> None:
    speeds = (all_reduce(10**6, 12 * DELAY_S), all_reduce(10**7, 12 * DELAY_S))
    assert measured(*speeds)["in_flight"] == 2
    links = {name: {"delay_s": DELAY_S, "rate": RATE} for name in ("north:east", "north:west")}
    other = validation_factory.validation(validation_factory.library("reference-ring", speeds=speeds), links=links)
    assert "in_flight" not in measured_collective(other)


def test_copies_that_cost_more_than_the_fiber_lower_the_rate() -> None:
    found = measured(all_reduce(10**6, 12 * DELAY_S, RATE / 2), all_reduce(10**7, 12 * DELAY_S, RATE / 2))
    assert found["rate_bps"] == pytest.approx(4 * RATE)
    assert found["operation_s"] == pytest.approx(0, abs=1e-9)


def test_a_rate_above_the_certified_one_is_not_believed() -> None:
    found = measured(all_reduce(10**6, 12 * DELAY_S, 3 * RATE), all_reduce(10**7, 12 * DELAY_S, 3 * RATE))
    assert found["rate_bps"] == pytest.approx(8 * RATE)


def test_another_pattern_counts_its_fixed_part_as_delays() -> None:
    found = measured(*(all_reduce(size, 20 * DELAY_S, pattern="tree") for size in (10**6, 10**7)))
    assert (found["delays"], found["operation_s"]) == (pytest.approx(20), pytest.approx(0, abs=1e-12))


def test_a_fiber_without_delay_has_software_only() -> None:
    links = {name: {"delay_s": 0.0, "rate": RATE} for name in ("north:east", "north:west")}
    speeds = (all_reduce(10**6, 5e-3), all_reduce(10**7, 5e-3))
    made = validation_factory.validation(validation_factory.library("torch-gloo", speeds=speeds), links=links)
    found = measured_collective(made)
    assert (found["delays"], found["operation_s"]) == (0.0, pytest.approx(5e-3))


def test_one_size_or_another_library_is_refused() -> None:
    with pytest.raises(UserError, match="no all_reduce of two sizes"):
        measured(all_reduce(10**6, 0.0))
    with pytest.raises(UserError, match="no all_reduce of mpich"):
        measured(all_reduce(10**6, 0.0), all_reduce(10**7, 0.0), library="mpich")


def test_a_run_gives_its_compute_its_model_and_its_certified_fiber(tmp_path: Path) -> None:
    found, utilization = api.measured_inputs(run_factory.make_run(tmp_path / "run"))
    assert (found["sites"], found["ranks_per_site"]) == (2, 2)
    assert found["step_s"] == pytest.approx(run_factory.COMPUTE_S, rel=0.2)
    assert found["delay_s"] == pytest.approx(200e-6), "of the fiber in use, not of the one that stands by"
    assert found["rate_bps"] == pytest.approx(0.8e9 * 1448 / 1538, rel=0.05)
    assert utilization == pytest.approx(run_factory.COMPUTE_S / run_factory.STEP_S, rel=0.1)


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "run")
    for file in (run / "ranks").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="no steps to predict from"):
        api.measured_inputs(run)


def test_a_run_is_predicted_from_its_own_compute_and_certificate(tmp_path: Path) -> None:
    """c = 12, w = 1.5 of a ring of 4: what crossed is 1.5 times the model in 32 bits."""
    data = RunDirectory(run_factory.make_run(tmp_path / "run")).read()
    found = predicted_run(data)
    assert found is not None
    bits = 32 * next(log.job.parameters for log in data.ranks if log.job)
    # All of it is exposed but what 7 of 8 buckets send during the last two thirds of the compute.
    all_s = 12 * found.delay_s + 1.5 * bits / found.rate_bps
    assert all_s - 2 / 3 * found.compute_s * 7 / 8 <= found.exposed_s <= all_s
    assert found.utilization == pytest.approx(found.compute_s / found.step_s)
    assert found.step_s == pytest.approx(found.compute_s + sum(value for value, _ in found.parts.values()))
    assert found.measured_step_s == pytest.approx(run_factory.STEP_S, rel=0.02), "the cut is left out"
    assert found.residual == pytest.approx(found.measured_utilization - found.utilization)
    assert found.full_rate_bps == pytest.approx(1000 * found.rate_bps)
    assert found.wire_kappa == pytest.approx(1.5 * bits / (found.rate_bps * found.compute_s))
    report = build(data)
    assert report.prediction == found
    page, text = html(report), markdown(report)
    residual = f"{100 * found.residual:+.1f} percentage points"
    assert residual in page and residual in text and residual in prediction_section.sentence(found)
    assert "loss and windows are not similar" in text


def test_before_a_job_its_step_is_predicted_from_the_certificate_and_what_was_timed(tmp_path: Path) -> None:
    data = RunDirectory(run_factory.make_run(tmp_path / "run")).read()
    twin = twin_of(data.ranks, data.info.workload)
    assert twin is not None
    plain = expected_step(twin, data.certificate, (), 0.060)
    assert plain is not None
    assert plain.exposed.propagation_s == pytest.approx(12 * 235e-6)
    assert plain.bytes_per_direction == pytest.approx(1.5 * run_factory.GRADIENT_BYTES, rel=0.01)
    # A bucket of an eighth takes 50 ms alone. Four of them take 100 ms, two at a time, so each holds a slot for 50 ms,
    # of which 12 delays and its own bytes are not the library's.
    burst = (0.9, 0.1, 0.1, 0.1)
    timed = [CalibrationRecord(0.0, ((0.9, 0.05, 0.05, 0.04), burst), 0.1) for _ in range(4)]
    logs = [RankLog(rank, calibrations=(it,)) for rank, it in enumerate(timed)]
    found = expected_step(twin, data.certificate, logs, 0.060)
    assert found is not None
    bits = 8 * 1.5 * run_factory.GRADIENT_BYTES / 8
    lane_s = bits / found.inputs.rate_bps
    assert found.library_s == pytest.approx(0.05 - 12 * 235e-6 - lane_s, rel=0.01)
    assert found.compute_s == pytest.approx(0.1)
    assert found.exposed.total_s > plain.exposed.total_s
    assert expected_step(twin, None, (), 0.060) is None


def test_a_run_without_steps_has_no_prediction(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "run")
    for file in (run / "ranks").iterdir():
        file.unlink()
    report = build(RunDirectory(run).read())
    assert report.prediction is None
    assert "## Prediction" not in markdown(report)
