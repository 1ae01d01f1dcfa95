"""The page of a run. To add a section, write a module of ``sections`` and name it in :data:`SECTIONS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from testbed.core.report import capture_note, formats, html_page, noise_section
from testbed.core.report.blocks import Badge, Banner, Page, Picture, Section, Table
from testbed.core.report.document import Report
from testbed.core.report.sections import (
    certification_section,
    checkers_section,
    critical_path_section,
    declared_section,
    events_section,
    experiment_section,
    faults_section,
    happened_section,
    host_section,
    in_force_section,
    placement_section,
    prediction_section,
    program_section,
    rank_seconds_section,
    restarts_section,
    scale_model_section,
    scraped_section,
    steady_section,
    topology_section,
    traffic_section,
    training_section,
)

__all__ = ["SECTIONS", "html", "page", "sections"]

SECTIONS: Final[tuple[Callable[[Report], Section | None], ...]] = (
    experiment_section.section,
    training_section.section,
    topology_section.section,
    certification_section.section,
    placement_section.section,
    scale_model_section.section,
    program_section.section,
    happened_section.section,
    rank_seconds_section.section,
    declared_section.section,
    critical_path_section.section,
    prediction_section.section,
    scraped_section.section,
    faults_section.section,
    traffic_section.section,
    in_force_section.section,
    restarts_section.section,
    checkers_section.section,
    steady_section.section,
    events_section.section,
    host_section.section,
)
"""In the order of the page, of Markdown and of the lines in the terminal."""

_VERDICTS = {"pass": "passed", "fail": "failed", "unknown": "no verdict"}
_SOURCE = "Built from the run directory alone; report.json and report.md hold the same facts."
_UNCERTIFIED = "Uncertified: the fibers were not measured to be within tolerance."


def html(report: Report) -> str:
    return html_page.render(page(report))


def sections(report: Report) -> tuple[Section, ...]:
    return tuple(section for make in SECTIONS if (section := make(report)) is not None)


def page(report: Report) -> Page:
    run, verdict = report.run, _VERDICTS[report.verdict]
    eyebrow = (run.name, str(run.experiment.get("name") or ""), formats.moment(run.started_unix_s))
    return Page(
        kind="run",
        title=f"{run.name or 'Run'}: {verdict}",
        eyebrow=" · ".join(filter(None, eyebrow)),
        headline=report.headline,
        banners=_banners(report),
        badge=Badge(report.verdict, verdict),
        header=(_header(report),),
        sections=sections(report),
        source=_SOURCE,
        summary=f"Run {run.name or 'without a name'}, status {run.status or 'unknown'}; verdict: {report.verdict}.",
        footer=report.shortcomings,
    )


def _banners(report: Report) -> tuple[Banner, ...]:
    uncertified = (
        f"{_UNCERTIFIED[:-1]}, and the run went ahead regardless. Do not take any number on this page as a prediction"
        " for real fiber."
    )
    notes = (
        noise_section.sentence(report.noise) or certification_section.noise(report.certificate),
        capture_note.sentence(report.run),
        declared_section.note(report.declared, report.topology),
    )
    return (
        *((Banner(uncertified, "alert", _UNCERTIFIED),) if report.run.uncertified else ()),
        *(Banner(note) for note in notes if note),
    )


def _header(report: Report) -> Picture:
    reason = report.run.reason if report.run.reason not in report.headline else ""
    rows = [(answer.answer, answer.question, answer.text) for answer in report.answers]
    values = {"reason": reason, "tiles": training_section.tiles(report), "answers": report.answers}
    return Picture("run_header.html", values, Table.of(("", "question", "why"), rows, "Answers"))
