"""A report as Markdown: the facts of the page as text and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.core.report import certified, checked, faulted, hypothesis, restarts, words
from testbed.core.report.document import Report
from testbed.core.report.render import facts, shortcomings

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
        ("train_loss", f"{words.loss(report.train_loss_first)} → {words.loss(report.train_loss_last)}"),
        ("steps committed", words.count(training.steps_committed)),
        ("steps lost", words.count(training.steps_lost)),
        ("recovery", words.duration(report.recovery_s)),
        ("goodput", _goodput(report.goodput)),
        ("compute utilization", words.share(report.compute_utilization)),
        ("compute", f"{words.duration(training.compute_s)} (rank-seconds)"),
        ("peer wait", f"{words.duration(training.peer_wait_s)} (rank-seconds)"),
        ("network", f"{words.duration(training.network_s)} (rank-seconds)"),
        ("tokens per second", words.count(training.tokens_per_s)),
        ("median step", words.duration(training.median_step_s)),
        ("wall time", words.duration(training.wall_s)),
    )
    blocks += ["## Training", table(("quantity", "value"), measured)]
    blocks += _links(report) + _fidelity(report) + _faults(report)
    if len(report.attempts) > 1:
        blocks += ["## Attempts", table(restarts.HEAD, restarts.rows(report.attempts))]
    if report.checkers:
        blocks += ["## Checkers", checked.LEAD, table(checked.HEAD, checked.rows(report.checkers))]
        found = list(checked.found_rows(report.checkers))
        blocks += [table(checked.FOUND_HEAD, found)] if found else []
    if report.steady:
        blocks += ["## Steady state", table(hypothesis.HEAD, hypothesis.rows(report.steady))]
    if report.events:
        rows = [(f"{event.t_s:.3f}", event.event, event.text) for event in report.events]
        blocks += ["## Events", table(("time s", "event", "what"), rows)]
    blocks += ["## Run and host", table(("fact", "value"), facts(report))]
    blocks += [escape(sentence) for sentence in shortcomings(report)]
    return "\n\n".join(blocks) + "\n"


def _goodput(value: float | None) -> str:
    said = words.share(value)
    return f"{said} ({words.goodput_means(value)})" if value is not None and value > 1 else said


def _links(report: Report) -> list[str]:
    if report.topology is None:
        return []
    rows = [
        (
            link.name,
            " – ".join(link.between),
            f"{link.length_m / 1e3:g}",
            words.duration(link.delay_s),
            words.bits_per_s(link.rate_bps) if link.rate_bps else "unlimited",
        )
        for link in report.topology.links
    ]
    return ["## Topology", escape(report.topology.name), table(("link", "between", "km", "one way", "rate"), rows)]


def _fidelity(report: Report) -> list[str]:
    blocks = ["## Fidelity"]
    certificate = report.certificate
    if certificate:
        blocks.append(table(certified.HEAD, certified.rows(certificate)))
        said = [*certificate.why, *certified.notes(certificate), certified.segmentation(certificate)]
        blocks += [escape(each) for each in said if each]
        checks = list(certified.check_rows(certificate))
        if checks:
            blocks.append(table(certified.CHECKS_HEAD, checks))
    else:
        blocks.append("No certificate.")
    if report.fidelity:
        blocks += ["### Under load", table(certified.LOAD_HEAD, certified.load_rows(report.fidelity))]
    if said_of_cpu := certified.headroom(certificate, report.machine):
        blocks.append(said_of_cpu)
    if lead := certified.validity_lead(report.run):
        rows = list(certified.validity_rows(report.run))
        blocks += ["## Scale model", lead, *([table(certified.VALIDITY_HEAD, rows)] if rows else [])]
    return blocks


def _faults(report: Report) -> list[str]:
    if not report.faults:
        return []
    return ["## Faults", table(faulted.HEAD, faulted.rows(report.faults))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """A user's text stays text: no HTML, no emphasis or code, no further column or line of a table."""
    for mark, instead in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`"), ("*", "\\*")):
        text = text.replace(mark, instead)
    return " ".join(text.split())
