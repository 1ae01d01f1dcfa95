"""The axes of every plot, for runs in which something happened: they show the data, all of it, and hardly more.

plotly stretches an axis until every annotation is seen, and on a logarithmic one it takes the height of an annotation
for an exponent: at a value of 209 it drew an axis up to 10^228. The browser tests (``tests/e2e``) ask plotly itself;
here the figures' JSON is judged without one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects as go
import pytest
from builders import run_kinds

from testbed.core.report.document import Report
from testbed.core.report.fault_timeline import timeline
from testbed.core.report.figures import figures
from testbed.core.report.plotly_figure import Figure
from testbed.core.report.scraped_figures import scraped_figures
from testbed.host.files.store import RunDirectory, build_report


@pytest.fixture(scope="module", params=run_kinds.KINDS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report(
        RunDirectory.open(run_kinds.make(tmp_path_factory.mktemp("axes") / request.param, request.param))
    )


def every(report: Report) -> tuple[Figure, ...]:
    return (*figures(report), *scraped_figures(report))


def numbers(figure: go.Figure, name: str) -> list[float]:
    """What the traces of ``figure`` show along ``x`` or ``y``; of bars their bases, too."""
    values = [value for trace in figure.data for value in (getattr(trace, name) or ())]
    horizontal = [it for it in figure.data if it.type == "bar" and it.orientation == "h"]
    if name == "x":
        bars = [zip(it.base or [0.0] * len(it.x), it.x, strict=True) for it in horizontal]
        values += [base + length for bar in bars for base, length in bar]
    return [float(value) for value in values if isinstance(value, int | float)]


def test_nothing_is_drawn_at_a_height_that_stretches_an_axis(report: Report) -> None:
    """Marks have their height as a share of the plot; only then is the axis that of the data."""
    for figure in every(report):
        layout = go.Figure(figure.spec).layout
        for mark in (*layout.shapes, *layout.annotations):
            assert mark.yref == "paper", figure.id
        for note in layout.annotations:
            assert 0 <= note.y <= 1


def test_a_logarithmic_axis_has_data_for_its_decades(report: Report) -> None:
    for figure in every(report):
        drawn = go.Figure(figure.spec)
        if drawn.layout.yaxis.type == "log":
            heights = numbers(drawn, "y")
            assert min(heights) > 0, "nothing at or below 0 can be drawn"
            assert max(heights) / min(heights) > 10, "a linear axis would show it"
            assert max(heights) < 1e6, "no step takes a quarter of an hour"


def test_a_range_that_is_given_holds_the_data_and_little_more(report: Report) -> None:
    found = 0
    for figure in every(report):
        drawn = go.Figure(figure.spec)
        for name, axis in (("x", drawn.layout.xaxis), ("y", drawn.layout.yaxis)):
            if axis.range is None:
                continue
            found += 1
            low, high = axis.range
            assert math.isfinite(low) and math.isfinite(high) and low < high
            values = numbers(drawn, name)
            assert max(values) <= high * (1 + 1e-9), f"{figure.id}: {name}"
            if name == "y":
                assert max(values) >= 0.4 * high, f"{figure.id} has an empty upper half"
    assert found >= (1 if len(every(report)) == 1 else 2)


def test_plots_over_time_and_the_timeline_have_one_range(report: Report) -> None:
    over_time = [figure for figure in every(report) if figure.is_over_time]
    assert {figure.id for figure in over_time} >= {"step-time", "tokens-per-second", "throughput"}
    ranges = {tuple(go.Figure(figure.spec).layout.xaxis.range) for figure in over_time}
    assert len(ranges) == 1
    ((first, last),) = ranges
    assert first <= 0
    assert max(report.steps.t_s) <= last
    drawn = timeline(report)
    assert (drawn is not None) == bool(report.faults)
    if drawn is not None:
        assert (drawn.first_s, drawn.last_s) == (first, last)
        bars = [bar for row in drawn.rows for bar in row.bars]
        assert len(bars) == len(report.faults)
        for bar in bars:
            assert first < bar.began_s <= bar.ended_s <= last


def test_no_plot_is_an_empty_box(report: Report) -> None:
    """Each has something to see: bars with a length, points, or a line of two points at least."""
    for figure in every(report):
        assert any(seen(trace) for trace in go.Figure(figure.spec).data), figure.id


def seen(trace: go.Scatter | go.Bar) -> bool:
    if trace.type == "bar":
        return any(value for value in (trace.x if trace.orientation == "h" else trace.y))
    runs = [list(each) for known, each in itertools.groupby(trace.y, lambda it: it is not None) if known]
    return any(len(run) > 1 or "markers" in trace.mode for run in runs)


def test_the_step_that_stood_is_seen_beside_the_pace(tmp_path: Path) -> None:
    """The main plot of the run that this test was written for."""
    report = build_report(RunDirectory.open(run_kinds.make(tmp_path / "stall", "stall")))
    assert max(report.steps.duration_s) > 20 * (report.training.median_step_s or 0)
    (figure,) = [it for it in figures(report) if it.id == "step-time"]
    drawn = go.Figure(figure.spec)
    assert drawn.layout.yaxis.type == "log"
    steps, pace = drawn.data
    assert pace.y[0] == pytest.approx(1100 * (report.training.median_step_s or 0), rel=1e-3)
    assert max(steps.y) == pytest.approx(1e3 * max(report.steps.duration_s))


# ---- tokens per second


def test_tokens_per_second_add_up(report: Report) -> None:
    (figure,) = [it for it in figures(report) if it.id == "tokens-per-second"]
    line = go.Figure(figure.spec).data[0]
    whole = sum(rate * (end - begin) for rate, begin, end in zip(line.y, line.x, line.x[1:], strict=False))
    assert whole == pytest.approx(report.training.tokens, rel=0.001)
    assert line.x[-1] >= report.steps.t_s[-1]
    assert len(line.x) <= 152


def test_tokens_per_second_fall_while_training_stands(tmp_path: Path) -> None:
    report = build_report(RunDirectory.open(run_kinds.make(tmp_path / "stall", "stall")))
    (figure,) = [it for it in figures(report) if it.id == "tokens-per-second"]
    line = go.Figure(figure.spec).data[0]
    longest = max(range(len(report.steps.t_s)), key=lambda index: report.steps.duration_s[index])
    end_s = report.steps.t_s[longest]
    middle_s = end_s - report.steps.duration_s[longest] / 2
    rates = dict(zip(line.x, line.y, strict=True))
    at = max(t_s for t_s in rates if t_s <= middle_s)
    assert rates[at] < 0.1 * (report.training.tokens_per_s or 0)


def test_a_run_without_tokens_has_no_plot_of_them(report: Report) -> None:
    without = dataclasses.replace(report, steps=dataclasses.replace(report.steps, tokens=()))
    assert "tokens-per-second" not in [it.id for it in figures(without)]


# ---- throughput


def lines(report: Report, id: str) -> Iterator[go.Scatter]:
    (figure,) = [it for it in figures(report) if it.id == id]
    return iter(go.Figure(figure.spec).data)


def test_throughput_has_the_line_of_its_rate_and_reads_at_full_scale(report: Report) -> None:
    (rate,) = [it for it in lines(report, "throughput") if it.name.startswith("rate of north, south")]
    assert set(rate.y) == {800.0}
    assert rate.name.endswith("800 Mb/s for 800 Gb/s")
    (figure,) = [it for it in figures(report) if it.id == "throughput"]
    axis = go.Figure(figure.spec).layout.yaxis
    ticks = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    assert ticks[400.0] == "400 Mb/s<br><i>400 Gb/s</i>"
    moving = next(it for it in lines(report, "throughput") if max(it.y) > 0 and it.customdata is not None)
    assert all(said.endswith("/s at full scale") for said in moving.customdata)


def test_at_scale_1_a_rate_stands_for_itself(tmp_path: Path) -> None:
    report = build_report(RunDirectory.open(run_kinds.make(tmp_path / "none", "none")))
    assert report.topology is not None
    real = dataclasses.replace(report, topology=dataclasses.replace(report.topology, scale=1.0))
    names = [it.name for it in lines(real, "throughput")]
    assert "rate of north, south:<br>800 Mb/s" in names
    (figure,) = [it for it in figures(real) if it.id == "throughput"]
    assert not any("<br>" in text for text in go.Figure(figure.spec).layout.yaxis.ticktext)


def test_a_rate_that_a_fault_changed_is_drawn_as_it_was(tmp_path: Path) -> None:
    report = build_report(RunDirectory.open(run_kinds.make(tmp_path / "impaired", "impaired")))
    (changed,) = [it for it in lines(report, "throughput") if "with faults" in it.name]
    (fault,) = [it for it in report.faults if it.type == "rate-squeeze"]
    steps = list(zip(changed.x, changed.y, strict=True))
    assert (pytest.approx(fault.began_s, abs=0.01), 80.0) in steps
    assert (pytest.approx(fault.ended_s, abs=0.01), 800.0) in steps
    assert changed.line.shape == "hv"
