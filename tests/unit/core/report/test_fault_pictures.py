"""Faults in pictures: which effect each has, how plots mark it, and the timeline."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from builders import run_kinds
from builders.reports import fault, figures, html, report_of

from testbed.core.report.document import Report
from testbed.core.report.figures.fault_effects import Effect, effect, effects
from testbed.core.report.figures.fault_timeline import timeline
from testbed.core.report.sections.faults_section import Fault
from testbed.core.report.sections.in_force_section import InForce, ValueInForce


def report_of_kind(tmp_path: Path, kind: str) -> Report:
    return report_of(run_kinds.make(tmp_path / kind, kind))


def in_force(dark_by: tuple[str, ...] = (), by: tuple[str, ...] = ()) -> tuple[InForce, ...]:
    values = (ValueInForce("loss", "1%", "1%", by),) if by else ()
    return (InForce("north:west", 10.0, 15.0, 1 if dark_by else 0, dark_by, values, ()),)


@pytest.mark.parametrize(
    ("fault", "told", "expected"),
    [
        (fault("cut"), in_force(dark_by=("f1",)), Effect.CUT),
        (fault("gateway-down"), in_force(dark_by=("f1",)), Effect.CUT),
        (fault("jitter"), in_force(by=("f1",)), Effect.IMPAIRED),
        (fault("brown-out"), in_force(dark_by=("f2",), by=("f1",)), Effect.IMPAIRED),
        # Beside a cut of another fault, ports lose carrier, too.
        (fault("rate-squeeze", carrier_s=0.001), in_force(dark_by=("f2",)), Effect.IMPAIRED),
        (fault("rank-kill", links=()), (), Effect.NODES),
        # Runs of older versions do not tell what was in force.
        (fault("cut"), (), Effect.CUT),
        (fault("power-loss", carrier_s=0.001), (), Effect.CUT),
        (fault("loss"), (), Effect.IMPAIRED),
    ],
)
def test_an_effect_is_what_was_in_force(fault: Fault, told: tuple[InForce, ...], expected: Effect) -> None:
    assert effect(fault, told) is expected


def test_effects_differ_in_color_and_in_dash() -> None:
    for of in ("color", "dash", "fill", "css", "word"):
        assert len({getattr(it, of) for it in Effect}) == len(Effect)


def test_an_impairment_is_marked_otherwise_than_a_cut_in_every_plot(tmp_path: Path) -> None:
    impaired, cut = report_of_kind(tmp_path, "impaired"), report_of_kind(tmp_path, "stall")
    assert set(effects(impaired).values()) == {Effect.IMPAIRED}
    assert set(effects(cut).values()) == {Effect.CUT}
    for report, expected in ((impaired, Effect.IMPAIRED), (cut, Effect.CUT)):
        marked = [it for it in figures(report) if it.spec["layout"].get("shapes")]  # type: ignore[attr-defined]
        assert len(marked) >= 4
        for figure in marked:
            shapes = [it for it in figure.spec["layout"]["shapes"] if it["y1"] == 1]  # type: ignore[index]
            assert {it["fillcolor"] for it in shapes if it["type"] == "rect"} == {expected.fill}
            edges = {(it["line"]["color"], it["line"]["dash"]) for it in shapes if it["type"] == "line"}
            assert edges == {(expected.color, expected.dash)}


def test_the_timeline_stands_above_the_plots_and_names_each_fault(tmp_path: Path) -> None:
    report = report_of_kind(tmp_path, "impaired")
    page = html(report)
    assert page.index('<figure class="timeline"') < page.index('class="plot"')
    shown = re.search(r'<figure class="timeline".*?</figure>', page, re.DOTALL)
    for words in (*(cause.label for cause in report.faults), "at 10 s, for 6 s", "at 22 s, for 6 s"):
        assert words in shown[0]
    assert shown[0].count('class="impaired"') == 3, "two rows and the legend"
    assert f'title="1. {report.faults[0].words}: from 10 s, for 6 s' in shown[0]


def test_without_a_fault_there_is_no_timeline(tmp_path: Path) -> None:
    report = report_of_kind(tmp_path, "none")
    assert timeline(report) is None
    assert 'class="timeline"' not in html(report)


def test_a_fault_without_an_end_is_drawn_to_the_end(tmp_path: Path) -> None:
    report = report_of_kind(tmp_path, "death")
    drawn = timeline(report)
    for row in drawn.rows:
        (bar,) = row.bars
        assert bar.open
        assert bar.ended_s == drawn.last_s
        assert "to the end" in bar.hover


def test_repetitions_share_a_row_and_many_kinds_share_one_by_type(tmp_path: Path) -> None:
    report = report_of_kind(tmp_path, "none")

    def timeline_of(faults: list[Fault]) -> list[tuple[str, int]]:
        drawn = timeline(dataclasses.replace(report, faults=tuple(faults)))
        return [(row.label, len(row.bars)) for row in drawn.rows]

    flaps = [fault("flap", fault=f"f{n}", began_s=n, ended_s=n + 0.2) for n in range(200)]
    assert timeline_of(flaps) == [("flap north", 200)]
    many = [fault("cut" if n % 2 else "jitter", f"link{n}", fault=f"f{n}", began_s=n) for n in range(40)]
    assert sorted(timeline_of(many)) == [("cut", 20), ("jitter", 20)]
