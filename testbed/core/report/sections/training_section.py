"""The figures of the training: the tiles at the top of the page, and a table in the other forms."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.analysis.goodput import loss_steps
from testbed.core.fields import sequence
from testbed.core.report import formats
from testbed.core.report.blocks import Section, Table
from testbed.core.report.document import Report
from testbed.core.report.sections import declared_section

__all__ = ["section", "tiles"]

Tile = tuple[str, str, str]
"""Name, value and note."""


def section(report: Report) -> Section | None:
    """Return a table of all figures; of a launched program, those that are known of it."""
    rows = list(_rows(report)) if report.has_steps or not report.is_program else []
    return Section.of("Training", Table.of(("quantity", "value"), rows, "Training"), on_page=False)


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    training, declared = report.training, report.declared
    above_one = report.goodput is not None and report.goodput > 1
    goodput_means = f" ({formats.goodput_means(report.goodput)})" if above_one else ""
    never = ", training did not come back" if training.recovery_open else ""
    rows = (
        ("strategy", training.strategy),
        ("train_loss", "" if report.asleep else _losses(report)),
        ("steps committed", formats.count(training.steps_committed)),
        ("recovery", f"{training.recovery_words}{never}"),
        ("goodput", f"{training.goodput_words}{goodput_means}"),
        (declared_section.beside("compute utilization", declared), formats.share(report.compute_utilization)),
        (declared_section.beside("compute", declared), f"{formats.duration(training.compute_s)} (rank-seconds)"),
        ("peer wait", f"{formats.duration(training.peer_wait_s)} (rank-seconds)"),
        ("network", f"{formats.duration(training.network_s)} (rank-seconds)"),
        ("tokens per second", formats.count(training.tokens_per_s)),
        ("median step", formats.duration(training.median_step_s)),
        ("first step to last" if report.is_program else "wall time", formats.duration(training.wall_s)),
    )
    for name, value in rows:
        if value and not (report.is_program and formats.UNKNOWN in value):
            yield name, value


def tiles(report: Report) -> tuple[Tile, ...]:
    """Return the figures at the top of the page; of a launched program, those that are known of it."""
    if report.is_program:
        tiles_of_program = (*(_trained(report) if report.has_steps else ()), *_of_program(report))
        return tuple(tile for tile in tiles_of_program if tile[1] != formats.UNKNOWN)
    utilization = (
        declared_section.beside("compute utilization", report.declared),
        formats.share(report.compute_utilization),
        "compute ÷ (compute + exposed communication)",
    )
    loss, recovery, goodput, tokens = _trained(report)
    return (loss, recovery, goodput, utilization, tokens)


def _trained(report: Report) -> tuple[Tile, ...]:
    training = report.training
    steps = formats.count(training.steps_committed)
    if training.steps_planned:
        steps += f" of {formats.count(training.steps_planned)}"
    averaged = loss_steps(len(report.steps.step) if report.is_program else training.steps_committed)
    unit = "step" if (training.steps_planned or training.steps_committed) == 1 else "steps"
    means = f", means of the first and last {averaged}" if averaged > 1 else ""
    open_gap = "training did not come back"
    died = "the job did not reach its last step"
    return (
        ("steps committed", steps, "layers sleep: train_loss says nothing")
        if report.asleep
        else ("train_loss", _losses(report), f"{steps} {unit}{means}"),
        (
            "recovery",
            training.recovery_words,
            open_gap if training.recovery_open else "longest gap between commits around a fault",
        ),
        ("goodput", training.goodput_words, died if training.died else _goodput_means(report)),
        (
            "tokens per second",
            formats.count(training.tokens_per_s),
            f"all ranks; median step {formats.duration(training.median_step_s)}",
        ),
    )


def _losses(report: Report) -> str:
    if report.is_program and report.train_loss_first is None:
        return formats.UNKNOWN
    return f"{formats.loss(report.train_loss_first)} → {formats.loss(report.train_loss_last)}"


def _goodput_means(report: Report) -> str:
    if report.is_program:
        return "steps at their fault-free pace ÷ time from the first step to the last"
    return formats.goodput_means(report.goodput)


def _of_program(report: Report) -> Iterator[Tile]:
    """Yield the figures of a launched program besides those of its steps; more of one whose steps are not known."""
    training = report.training
    if report.has_steps and training.tokens_per_s is None:
        yield "steps", formats.count(training.steps_committed), f"median {formats.duration(training.median_step_s)}"
    statuses = sequence(report.run.workload, "statuses")
    if statuses and not report.has_steps:
        good = sum(status == 0 for status in statuses if isinstance(status, int))
        yield "ranks", formats.count(len(statuses)), f"{formats.count(good)} ended with status 0"
    if report.rank_seconds is not None:
        duration = formats.duration(report.rank_seconds.wall_s)
        yield "the program", duration, "from the start of its first process to the end of its last"
    if report.has_steps:
        return
    yield "whole run", formats.duration(report.duration_s), "from its beginning to its end"
    if report.faults:
        yield "faults", formats.count(len(report.faults)), "while it was recorded"
