"""The axes of every plot, for runs in which something happened: they show the data, all of it, and hardly more.

plotly stretches an axis until every annotation is seen, and on a logarithmic one it takes the height of an annotation
for an exponent: at a value of 209 it drew an axis up to 10^228. The browser tests (``tests/e2e``) ask plotly itself;
here the figures' JSON is judged without one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import plotly.graph_objects as go
import pytest
from builders import run_kinds
from builders.reports import figures, report_of
from builders.run_factory import edit

from testbed.core.report.document import Report
from testbed.core.report.figures.fault_timeline import timeline
from testbed.core.report.figures.scraped_figures import scraped_figures


@pytest.fixture(scope="module", params=run_kinds.KINDS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(run_kinds.make(tmp_path_factory.mktemp("axes") / request.param, request.param))


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(run_kinds.make(tmp_path_factory.mktemp("stalled") / "stall", "stall"))


def plots(report: Report) -> dict[str, go.Figure]:
    return {drawn.id: go.Figure(drawn.spec) for drawn in (*figures(report), *scraped_figures(report))}


def numbers(plot: go.Figure, name: str) -> list[float]:
    """What the traces of ``plot`` show along ``x`` or ``y``; of bars their bases, too."""
    values = [value for trace in plot.data for value in (getattr(trace, name) or ())]
    horizontal = [trace for trace in plot.data if trace.type == "bar" and trace.orientation == "h"]
    if name == "x":
        bars = [zip(trace.base or [0.0] * len(trace.x), trace.x, strict=True) for trace in horizontal]
        values += [base + length for bar in bars for base, length in bar]
    return [float(value) for value in values if isinstance(value, int | float)]


def test_nothing_is_drawn_at_a_height_that_stretches_an_axis(report: Report) -> None:
    """Marks have their height as a share of the plot; only then is the axis that of the data."""
    for id, plot in plots(report).items():
        for mark in (*plot.layout.shapes, *plot.layout.annotations):
            assert mark.yref == "paper", id
        for note in plot.layout.annotations:
            assert 0 <= note.y <= 1


def test_a_logarithmic_axis_has_data_for_its_decades(report: Report) -> None:
    for plot in plots(report).values():
        if plot.layout.yaxis.type == "log":
            heights = numbers(plot, "y")
            assert min(heights) > 0, "nothing at or below 0 can be drawn"
            assert max(heights) / min(heights) > 10, "a linear axis would show it"
            assert max(heights) < 1e6, "no step takes a quarter of an hour"


def test_a_range_that_is_given_holds_the_data_and_little_more(report: Report) -> None:
    ranges = 0
    for id, plot in plots(report).items():
        for name, axis in (("x", plot.layout.xaxis), ("y", plot.layout.yaxis)):
            if axis.range is None:
                continue
            ranges += 1
            low, high = axis.range
            assert math.isfinite(low) and math.isfinite(high) and low < high
            highest = max(numbers(plot, name))
            assert highest <= high * (1 + 1e-9), f"{id}: {name}"
            if name == "y":
                assert highest >= 0.4 * high, f"{id} has an empty upper half"
    assert ranges >= min(2, len(plots(report)))


def test_plots_over_time_and_the_timeline_have_one_range(report: Report) -> None:
    over_time = {drawn.id for drawn in (*figures(report), *scraped_figures(report)) if drawn.is_over_time}
    assert over_time >= {"step-time", "tokens-per-second", "throughput"}
    ranges = {tuple(plot.layout.xaxis.range) for id, plot in plots(report).items() if id in over_time}
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
    for id, plot in plots(report).items():
        assert any(seen(trace) for trace in plot.data), id


def seen(trace: go.Scatter | go.Bar) -> bool:
    if trace.type == "bar":
        return any(value for value in (trace.x if trace.orientation == "h" else trace.y))
    runs = [list(values) for drawn, values in itertools.groupby(trace.y, lambda y: y is not None) if drawn]
    return any(len(run) > 1 or "markers" in trace.mode for run in runs)


def test_the_step_that_stood_is_seen_beside_the_pace(stalled: Report) -> None:
    """The main plot of the run that this test was written for."""
    longest_s, median_s = max(stalled.steps.duration_s), stalled.training.median_step_s or 0
    assert longest_s > 20 * median_s
    plot = plots(stalled)["step-time"]
    assert plot.layout.yaxis.type == "log"
    steps, pace = plot.data
    assert pace.y[0] == pytest.approx(1100 * median_s, rel=1e-3)
    assert max(steps.y) == pytest.approx(1e3 * longest_s)


# ---- tokens per second


def test_tokens_per_second_add_up(report: Report) -> None:
    line = plots(report)["tokens-per-second"].data[0]
    whole = sum(rate * (end - begin) for rate, begin, end in zip(line.y, line.x, line.x[1:], strict=False))
    assert whole == pytest.approx(report.training.tokens, rel=0.001)
    assert line.x[-1] >= report.steps.t_s[-1]
    assert len(line.x) <= 152


def test_tokens_per_second_fall_while_training_stands(stalled: Report) -> None:
    line = plots(stalled)["tokens-per-second"].data[0]
    duration_s, end_s = max(zip(stalled.steps.duration_s, stalled.steps.t_s, strict=True))
    _, rate = max((t_s, rate) for t_s, rate in zip(line.x, line.y, strict=True) if t_s <= end_s - duration_s / 2)
    assert rate < 0.1 * (stalled.training.tokens_per_s or 0)


def test_a_run_without_tokens_has_no_plot_of_them(report: Report) -> None:
    without = dataclasses.replace(report, steps=dataclasses.replace(report.steps, tokens=()))
    assert "tokens-per-second" not in plots(without)


# ---- throughput


def test_throughput_has_the_line_of_its_rate_and_reads_at_full_scale(report: Report) -> None:
    plot = plots(report)["throughput"]
    (rate,) = [line for line in plot.data if line.name.startswith("rate of north, south")]
    assert set(rate.y) == {800.0}
    assert rate.name.endswith("800 Mb/s for 800 Gb/s")
    axis = plot.layout.yaxis
    assert dict(zip(axis.tickvals, axis.ticktext, strict=True))[400.0] == "400 Mb/s<br><i>400 Gb/s</i>"
    moving = next(line for line in plot.data if max(line.y) > 0 and line.customdata is not None)
    assert all(text.endswith("/s at full scale") for text in moving.customdata)


def test_at_scale_1_a_rate_stands_for_itself(run: Path) -> None:
    plot = plots(report_of(edit(run, "topology.json", scale=1.0)))["throughput"]
    assert "rate of north, south:<br>800 Mb/s" in [line.name for line in plot.data]
    assert not any("<br>" in text for text in plot.layout.yaxis.ticktext)


def test_a_rate_that_a_fault_changed_is_drawn_as_it_was(tmp_path: Path) -> None:
    report = report_of(run_kinds.make(tmp_path / "impaired", "impaired"))
    (changed,) = [line for line in plots(report)["throughput"].data if "with faults" in line.name]
    (fault,) = [fault for fault in report.faults if fault.type == "rate-squeeze"]
    steps = list(zip(changed.x, changed.y, strict=True))
    assert (pytest.approx(fault.began_s, abs=0.01), 80.0) in steps
    assert (pytest.approx(fault.ended_s, abs=0.01), 800.0) in steps
    assert changed.line.shape == "hv"
