"""A report as Markdown: the facts of the page as text and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.core.report import (
    certification_section,
    checkers_section,
    faults_section,
    formats,
    hypothesis,
    restarts_section,
)
from testbed.core.report.document import Report
from testbed.core.report.run_page import facts, shortcomings

__all__ = ["escape", "markdown", "table"]


def markdown(report: Report) -> str:
    """The whole of ``report.md``."""
    training = report.training
    blocks = [f"# {escape(report.headline)}"]
    if report.run.uncertified:
        blocks.append("**Uncertified: the fibers were not measured to be within tolerance.**")
    status, named = report.run.status or "unknown", report.run.name or "without a name"
    blocks.append(escape(f"Run {named}, status {status}; verdict: {report.verdict}."))
    blocks.append(
        table(("", "question", "why"), [(answer.answer, answer.question, answer.text) for answer in report.answers])
    )
    measured = (
        ("train_loss", f"{formats.loss(report.train_loss_first)} → {formats.loss(report.train_loss_last)}"),
        ("steps committed", formats.count(training.steps_committed)),
        ("steps lost", formats.count(training.steps_lost)),
        ("recovery", formats.duration(report.recovery_s)),
        ("goodput", _goodput(report.goodput)),
        ("compute utilization", formats.share(report.compute_utilization)),
        ("compute", f"{formats.duration(training.compute_s)} (rank-seconds)"),
        ("peer wait", f"{formats.duration(training.peer_wait_s)} (rank-seconds)"),
        ("network", f"{formats.duration(training.network_s)} (rank-seconds)"),
        ("tokens per second", formats.count(training.tokens_per_s)),
        ("median step", formats.duration(training.median_step_s)),
        ("wall time", formats.duration(training.wall_s)),
    )
    blocks += ["## Training", table(("quantity", "value"), measured)]
    blocks += _links(report) + _fidelity(report) + _faults(report)
    if len(report.attempts) > 1:
        blocks += ["## Attempts", table(restarts_section.HEAD, restarts_section.rows(report.attempts))]
    if report.checkers:
        blocks += [
            "## Checkers",
            checkers_section.LEAD,
            table(checkers_section.HEAD, checkers_section.rows(report.checkers)),
        ]
        found = list(checkers_section.found_rows(report.checkers))
        blocks += [table(checkers_section.FOUND_HEAD, found)] if found else []
    if report.steady:
        blocks += ["## Steady state", table(hypothesis.HEAD, hypothesis.rows(report.steady))]
    if report.events:
        rows = [(f"{event.t_s:.3f}", event.event, event.text) for event in report.events]
        blocks += ["## Events", table(("time s", "event", "what"), rows)]
    blocks += ["## Run and host", table(("fact", "value"), facts(report))]
    blocks += [escape(sentence) for sentence in shortcomings(report)]
    return "\n\n".join(blocks) + "\n"


def _goodput(value: float | None) -> str:
    said = formats.share(value)
    return f"{said} ({formats.goodput_means(value)})" if value is not None and value > 1 else said


def _links(report: Report) -> list[str]:
    if report.topology is None:
        return []
    rows = [
        (
            link.name,
            " – ".join(link.between),
            f"{link.length_m / 1e3:g}",
            formats.duration(link.delay_s),
            formats.bits_per_s(link.rate_bps) if link.rate_bps else "unlimited",
        )
        for link in report.topology.links
    ]
    return ["## Topology", escape(report.topology.name), table(("link", "between", "km", "one way", "rate"), rows)]


def _fidelity(report: Report) -> list[str]:
    blocks = ["## Fidelity"]
    certificate = report.certificate
    if certificate:
        blocks.append(table(certification_section.HEAD, certification_section.rows(certificate)))
        said = [
            *certificate.why,
            *certification_section.notes(certificate),
            certification_section.segmentation(certificate),
        ]
        blocks += [escape(each) for each in said if each]
        checks = list(certification_section.check_rows(certificate))
        if checks:
            blocks.append(table(certification_section.CHECKS_HEAD, checks))
    else:
        blocks.append("No certificate.")
    if report.fidelity:
        blocks += [
            "### Under load",
            table(certification_section.LOAD_HEAD, certification_section.load_rows(report.fidelity)),
        ]
    if said_of_cpu := certification_section.headroom(certificate, report.machine):
        blocks.append(said_of_cpu)
    if lead := certification_section.validity_lead(report.run):
        rows = list(certification_section.validity_rows(report.run))
        blocks += ["## Scale model", lead, *([table(certification_section.VALIDITY_HEAD, rows)] if rows else [])]
    return blocks


def _faults(report: Report) -> list[str]:
    if not report.faults:
        return []
    return ["## Faults", table(faults_section.HEAD, faults_section.rows(report.faults))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """A user's text stays text: no HTML, no emphasis or code, no further column or line of a table."""
    for mark, instead in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`"), ("*", "\\*")):
        text = text.replace(mark, instead)
    return " ".join(text.split())
