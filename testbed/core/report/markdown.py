"""A report as Markdown: the facts of the page as text and tables."""

from __future__ import annotations

from testbed.core.physics import full_scale
from testbed.core.report import capture_note, formats, noise_section
from testbed.core.report.document import Report
from testbed.core.report.report_table import Table
from testbed.core.report.run_page import facts, goodput, has_steps, is_program, recovery, shortcomings
from testbed.core.report.sections import (
    certification_section,
    checkers_section,
    critical_path_section,
    declared_section,
    events_section,
    experiment_section,
    faults_section,
    in_force_section,
    prediction_section,
    program_section,
    rank_seconds_section,
    restarts_section,
    scraped_section,
    steady_section,
    traffic_section,
)
from testbed.core.report.sections.program_section import ProgramSteps

__all__ = ["escape", "markdown", "section", "table"]


def markdown(report: Report) -> str:
    """Return the whole of ``report.md``."""
    training, declared = report.training, report.declared
    blocks = [f"# {escape(report.headline)}"]
    if report.run.uncertified:
        blocks.append("**Uncertified: the fibers were not measured to be within tolerance.**")
    if noise := noise_section.sentence(report.noise) or certification_section.noise(report.certificate):
        blocks.append(f"**{escape(noise)}**")
    if said := capture_note.sentence(report.run):
        blocks.append(f"**{escape(said)}**")
    if said := declared_section.note(report.declared, report.topology):
        blocks.append(f"**{escape(said)}**")
    status, named = report.run.status or "unknown", report.run.name or "without a name"
    blocks.append(escape(f"Run {named}, status {status}; verdict: {report.verdict}."))
    blocks.append(
        table(Table(("", "question", "why"), [(each.answer, each.question, each.text) for each in report.answers]))
    )
    blocks += _experiment(report)
    measured = (
        *((("strategy", training.strategy),) if training.strategy else ()),
        *(
            ()
            if report.asleep
            else (("train_loss", f"{formats.loss(report.train_loss_first)} → {formats.loss(report.train_loss_last)}"),)
        ),
        ("steps committed", formats.count(training.steps_committed)),
        ("steps lost", formats.count(training.steps_lost)),
        ("recovery", _recovery(report)),
        ("goodput", _goodput(report)),
        (declared_section.beside("compute utilization", declared), formats.share(report.compute_utilization)),
        (declared_section.beside("compute", declared), f"{formats.duration(training.compute_s)} (rank-seconds)"),
        ("peer wait", f"{formats.duration(training.peer_wait_s)} (rank-seconds)"),
        ("network", f"{formats.duration(training.network_s)} (rank-seconds)"),
        ("tokens per second", formats.count(training.tokens_per_s)),
        ("median step", formats.duration(training.median_step_s)),
        ("wall time", formats.duration(training.wall_s)),
    )
    if not is_program(report):
        blocks += ["## Training", table(Table(("quantity", "value"), measured))]
    elif report.program is not None:
        blocks += ["## Steps of the program", escape(program_section.lead(report.program))]
        if has_steps(report):
            other = {"wall time": "first step to last"}
            known = [(other.get(name, name), value) for name, value in measured if formats.UNKNOWN not in value]
            blocks.append(table(Table(("quantity", "value"), known)))
        blocks += [*_offer(report.program), rank_seconds_section.lead(program=True)]
    shown = declared_section.table(declared)
    blocks += section("## Declared compute", escape(declared_section.lead(declared)), shown=shown)
    shown = None if is_program(report) else rank_seconds_section.table(report.rank_seconds)
    blocks += section("## Rank-seconds", rank_seconds_section.lead(program=False), shown=shown)
    blocks += section(rank_seconds_section.COST_LEAD, shown=rank_seconds_section.cost_table(report.rank_seconds))
    shown = critical_path_section.table(report.critical_path)
    blocks += section("## Critical path", critical_path_section.LEAD, shown=shown)
    shown = critical_path_section.operations_table(report.critical_path)
    blocks += section("### Operations between sites", critical_path_section.OPERATIONS_LEAD, shown=shown)
    if lead := prediction_section.lead(report.prediction, report.unpredicted):
        shown = prediction_section.table(report.prediction)
        blocks += ["## Prediction", escape(lead), *section(shown=shown)]
    blocks += _links(report) + _fidelity(report)
    if report.placement:
        blocks += ["## Placement", "\n".join(f"- {escape(line)}" for line in report.placement)]
    blocks += section("## Faults", shown=faults_section.table(report.faults))
    if lead := traffic_section.lead(report.traffic, report.idle):
        blocks += section("## Traffic", escape(lead), shown=traffic_section.table(report.traffic))
        blocks += [escape(it) for it in traffic_section.sentences(report.traffic, report.faults)]
    blocks += section(
        "### Values in force",
        shown=in_force_section.table(report.in_force, report.faults, certification_section.scale(report.topology)),
    )
    blocks += section("## Attempts", shown=restarts_section.table(report.attempts))
    blocks += section("## Checkers", checkers_section.LEAD, shown=checkers_section.table(report.checkers))
    blocks += section(shown=checkers_section.found_table(report.checkers))
    blocks += section("## Steady state", shown=steady_section.table(report.steady))
    blocks += _scraped(report)
    blocks += section("## Events", shown=events_section.table(report.events))
    blocks += _folded(events_section.folded(report.events))
    blocks += ["## Run and host", table(Table(("fact", "value"), facts(report)))]
    blocks += [escape(sentence) for sentence in shortcomings(report)]
    return "\n\n".join(blocks) + "\n"


def _experiment(report: Report) -> list[str]:
    teaches = experiment_section.teaches(report.run)
    shown = section(shown=experiment_section.table(report.run, certification_section.scale(report.topology)))
    return ["## Experiment", *([escape(teaches)] if teaches else []), *shown] if teaches or shown else []


def _folded(shown: Table | None) -> list[str]:
    """Return a table that viewers of Markdown fold away, as far as they know HTML's element for it."""
    if shown is None:
        return []
    return [f"<details>\n<summary>{escape(shown.label)}</summary>", table(shown), "</details>"]


def _goodput(report: Report) -> str:
    value, said = report.goodput, goodput(report)
    return f"{said} ({formats.goodput_means(value)})" if value is not None and value > 1 else said


def _offer(program: ProgramSteps) -> list[str]:
    """Return the words and the line that would have the steps read, as code that can be copied."""
    if program.offer is None:
        return []
    fence = "```"
    return [
        escape(program_section.offered(program)),
        f"{fence}yaml\n{program.offer.yaml}\n{fence}",
        f"{fence}\n{program.offer.option}\n{fence}",
    ]


def _recovery(report: Report) -> str:
    said = recovery(report)
    return f"{said}, training did not come back" if report.training.recovery_open else said


def _scraped(report: Report) -> list[str]:
    if not (said := scraped_section.lead(report.scraped)):
        return []
    shown = section(shown=scraped_section.table(report.scraped)) + section(
        "Gaps in scraping:", shown=scraped_section.gaps_table(report.scraped)
    )
    return ["## Scraped metrics of the ranks", escape(said), *shown]


def _links(report: Report) -> list[str]:
    if report.topology is None:
        return []
    rows = [
        (
            link.name,
            " – ".join(link.between),
            f"{link.length_m / 1e3:g}",
            formats.duration(link.delay_s),
            full_scale.stands_for(link.rate_bps, report.topology.scale),
        )
        for link in report.topology.links
    ]
    return [
        "## Topology",
        escape(report.topology.name),
        table(Table(("link", "between", "km", "one way", "rate"), rows)),
    ]


def _fidelity(report: Report) -> list[str]:
    blocks = ["## Fidelity"]
    certificate = report.certificate
    if certificate:
        scale = certification_section.scale(report.topology)
        blocks += [escape(it) for it in (certification_section.in_words(certificate, report.topology),) if it]
        blocks.append(table(certification_section.table(certificate, scale)))
        said = [
            *certification_section.findings(certificate, scale),
            certification_section.meaning(certificate),
            *certification_section.notes(certificate),
            certification_section.segmentation(certificate),
        ]
        blocks += [escape(each) for each in said if each]
        blocks += section(shown=certification_section.checks_table(certificate, scale))
    else:
        blocks.append("No certificate.")
    blocks += section("### Under load", shown=certification_section.load_table(report.fidelity))
    if said_of_cpu := certification_section.headroom(certificate, report.machine):
        blocks.append(said_of_cpu)
    if lead := certification_section.validity_lead(report.run):
        blocks += ["## Scale model", lead, *section(shown=certification_section.validity_table(report.run))]
    return blocks


def section(*before: str, shown: Table | None) -> list[str]:
    """Return ``before`` and the table; nothing if there is no table."""
    return [*before, table(shown)] if shown else []


def table(shown: Table) -> str:
    lines = [shown.head, ["---"] * len(shown.head), *([escape(str(cell)) for cell in row] for row in shown.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escape(text: str) -> str:
    """Escape a user's text: no HTML, no emphasis or code, no additional column or line of a table."""
    for mark, instead in (("\\", "\\\\"), ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`"), ("*", "\\*")):
        text = text.replace(mark, instead)
    return " ".join(text.split())
