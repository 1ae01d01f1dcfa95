"""The HTML page of a run: what its template, ``run.html``, shows of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.core.analysis.goodput import loss_steps
from testbed.core.fields import sequence, text
from testbed.core.report import capture_note, formats, html_page, meanings, noise_section
from testbed.core.report.document import Report
from testbed.core.report.figures import drawing, fault_timeline
from testbed.core.report.figures.run_figures import figures
from testbed.core.report.figures.scraped_figures import scraped_figures
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

__all__ = ["facts", "goodput", "has_steps", "html", "is_program", "recovery", "shortcomings"]

_RECORDS = frozenset(
    {"began_t", "ended_in_order", "ended_t", "ends", "exceeded", "members", "progress", "progress_unread"}
)
"""Of a launched program's workload: records that the rank-seconds and the answers are made from, no words for a reader.
"""
_VERDICTS = {"pass": "passed", "fail": "failed", "unknown": "no verdict"}


def html(report: Report) -> str:
    """Return the whole page."""
    run = report.run
    verdict = _VERDICTS[report.verdict]
    eyebrow = (run.name, str(run.experiment.get("name") or ""), formats.moment(run.started_unix_s))
    scraped = scraped_figures(report)
    # Markdown shows it with the training.
    lost = () if is_program(report) and not has_steps(report) else _lost(report)
    return html_page.render(
        "run.html",
        figures(report) + scraped,
        title=f"{run.name or 'Run'}: {verdict}",
        eyebrow=" · ".join(each for each in eyebrow if each),
        report=report,
        verdict=verdict,
        declared=declared_section.note(report.declared, report.topology),
        declared_lead=declared_section.lead(report.declared),
        declared_table=declared_section.table(report.declared),
        captured=capture_note.sentence(report.run),
        noisy=noise_section.sentence(report.noise),
        tiles=_tiles(report),
        **_program_sections(report),
        drawings=drawing.drawings(report),
        **_fidelity(report),
        placement=report.placement,
        rank_seconds_lead=rank_seconds_section.lead(program=False),
        rank_seconds_table=None if is_program(report) else rank_seconds_section.table(report.rank_seconds),
        cost_lead=rank_seconds_section.COST_LEAD,
        cost_table=rank_seconds_section.cost_table(report.rank_seconds),
        path_lead=critical_path_section.LEAD,
        path_table=critical_path_section.table(report.critical_path),
        operations_lead=critical_path_section.OPERATIONS_LEAD,
        operations_table=critical_path_section.operations_table(report.critical_path),
        prediction_lead=prediction_section.lead(report.prediction, report.unpredicted),
        prediction_table=prediction_section.table(report.prediction),
        faults_table=faults_section.table(report.faults),
        in_force_table=in_force_section.table(
            report.in_force, report.faults, certification_section.scale(report.topology)
        ),
        attempts_table=restarts_section.table(report.attempts),
        checkers_lead=checkers_section.LEAD,
        checkers_table=checkers_section.table(report.checkers),
        found_table=checkers_section.found_table(report.checkers),
        steady_table=steady_section.table(report.steady),
        timeline=fault_timeline.timeline(report),
        scraped_ids=[figure.id for figure in scraped],
        **_scraped(report),
        events_table=events_section.table(report.events),
        folded_events=events_section.folded(report.events),
        teaches=experiment_section.teaches(report.run),
        schedule_table=experiment_section.table(report.run, certification_section.scale(report.topology)),
        host_facts=(*lost, *facts(report)),
        shortcomings=shortcomings(report),
    )


def _tiles(report: Report) -> tuple[tuple[str, str, str], ...]:
    """Name, value and note of each of the figures at the top; of a launched program, those that are known of it."""
    if is_program(report):
        told = (*(_trained(report) if has_steps(report) else ()), *_program(report))
        return tuple((name, value, note) for name, value, note in told if value != formats.UNKNOWN)
    utilization = (
        declared_section.beside("compute utilization", report.declared),
        formats.share(report.compute_utilization),
        "compute ÷ (compute + exposed communication)",
    )
    loss, recovery, share, tokens = _trained(report)
    return (loss, recovery, share, utilization, tokens)


def _trained(report: Report) -> tuple[tuple[str, str, str], ...]:
    """The figures of the steps; a program does not tell all of them."""
    training, program = report.training, is_program(report)
    done = formats.count(training.steps_committed)
    rows = len(report.steps.step) if program else training.steps_committed
    averaged = loss_steps(rows)
    of = f" of {formats.count(training.steps_planned)}" if training.steps_planned else ""
    first, last = formats.loss(report.train_loss_first), formats.loss(report.train_loss_last)
    counted = f"{done}{of} step{'' if (training.steps_planned or training.steps_committed) == 1 else 's'}"
    means = f"{counted}, means of the first and last {averaged}" if averaged > 1 else counted
    return (
        ("steps committed", f"{done}{of}", "layers sleep: train_loss says nothing")
        if report.asleep
        else (
            "train_loss",
            formats.UNKNOWN if program and report.train_loss_first is None else f"{first} → {last}",
            means,
        ),
        (
            "recovery",
            recovery(report),
            "training did not come back" if training.recovery_open else "longest gap between commits around a fault",
        ),
        (
            "goodput",
            goodput(report),
            "the job did not reach its last step" if training.died else _goodput_means(report),
        ),
        (
            "tokens per second",
            formats.count(training.tokens_per_s),
            f"all ranks; median step {formats.duration(training.median_step_s)}",
        ),
    )


def _goodput_means(report: Report) -> str:
    if is_program(report):
        return "steps at their fault-free pace ÷ time from the first step to the last"
    return formats.goodput_means(report.goodput)


def recovery(report: Report) -> str:
    """Format recovery, with the sign of a bound where it is one."""
    training = report.training
    return faults_section.gap_words(training.recovery_s, training.recovery_open, training.recovery_at_most)


def _lost(report: Report) -> tuple[tuple[str, str], ...]:
    return (("steps lost", formats.count(report.training.steps_lost)),)


def _program_sections(report: Report) -> dict[str, object]:
    """The steps of a launched program, how they could be read, and its traffic."""
    program = report.program
    return {
        "program_lead": program_section.lead(program) if program else "",
        "not_told_apart": rank_seconds_section.lead(program=True) if program else "",
        "offered": program_section.offered(program) if program else "",
        "offer": program.offer if program else None,
        "traffic_lead": traffic_section.lead(report.traffic, report.idle),
        "traffic_table": traffic_section.table(report.traffic),
        "traffic_sentences": traffic_section.sentences(report.traffic, report.faults),
    }


def _program(report: Report) -> Iterator[tuple[str, str, str]]:
    """The figures of a launched program beside those of its steps; more of one whose steps are not known."""
    workload, training = report.run.workload, report.training
    if has_steps(report) and training.tokens_per_s is None:
        yield "steps", formats.count(training.steps_committed), f"median {formats.duration(training.median_step_s)}"
    statuses = [it if isinstance(it, int) else None for it in sequence(workload, "statuses")]
    good = sum(1 for it in statuses if it == 0)
    if statuses and not has_steps(report):
        yield "ranks", formats.count(len(statuses)), f"{formats.count(good)} ended with status 0"
    if report.rank_seconds is not None:
        took = formats.duration(report.rank_seconds.wall_s)
        yield "the program", took, "from the start of its first process to the end of its last"
    if has_steps(report):
        return
    yield "whole run", formats.duration(report.duration_s), "from its beginning to its end"
    if report.faults:
        yield "faults", formats.count(len(report.faults)), "while it was recorded"


def goodput(report: Report) -> str:
    """Format goodput, which is at most that for a job that died."""
    said = formats.share(report.goodput)
    return f"<= {said}" if report.training.died and report.goodput is not None else said


def _scraped(report: Report) -> dict[str, object]:
    """The ranks' scraped metrics."""
    return {
        "scraped_lead": scraped_section.lead(report.scraped),
        "scraped_table": scraped_section.table(report.scraped),
        "gaps_table": scraped_section.gaps_table(report.scraped),
    }


def _fidelity(report: Report) -> dict[str, object]:
    """The certificate, fidelity under load, and the scale model."""
    values: dict[str, object] = {
        "certificate": report.certificate,
        "load_table": certification_section.load_table(report.fidelity),
        "fidelity_legend": meanings.legend(
            certification_section.table(report.certificate) if report.certificate else None,
            certification_section.load_table(report.fidelity),
        ),
        "noise": certification_section.noise(report.certificate),
        "headroom": certification_section.headroom(report.certificate, report.machine),
        "scale_model": certification_section.validity_lead(report.run),
        "validity_table": certification_section.validity_table(report.run),
    }
    if certificate := report.certificate:
        scale = certification_section.scale(report.topology)
        around = "No path around the fiber was found." if certificate.around_ok else certificate.around_why
        sentences = (
            around,
            certification_section.meaning(certificate),
            certification_section.segmentation(certificate),
        )
        values |= {
            "certificate_title": certification_section.title(certificate),
            "certificate_table": certification_section.table(certificate, scale),
            "in_words": certification_section.in_words(certificate, report.topology),
            "findings": certification_section.findings(certificate, scale),
            "around": " ".join(each for each in sentences if each),
            "notes": certification_section.notes(certificate),
            "checks_table": certification_section.checks_table(certificate, scale),
        }
    return values


def is_program(report: Report) -> bool:
    """Whether the run is of a launched program, which keeps no records of its own."""
    return bool(text(report.run.workload, "command"))


def has_steps(report: Report) -> bool:
    """Whether any step is known."""
    return report.training.steps_committed > 0


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    """Return names and values of the software, the workload and the machine."""
    run, training = report.run, report.training
    told = {*_RECORDS, "strategy"} if training.strategy else _RECORDS
    listed: list[tuple[str, str]] = [
        ("lab", run.lab),
        ("driver", run.driver),
        ("emulator", run.emulator),
        ("testbed", run.testbed),
        ("whole run", formats.duration(report.duration_s)),
        ("training", formats.duration(training.wall_s)),
        ("ranks", formats.count(training.world_size)),
        ("strategy", training.strategy),
        ("CPU busy, median", formats.share(report.machine.cpu_busy)),
        (
            "emulator's cores, mean",
            formats.UNKNOWN if report.machine.emulator_cores is None else f"{report.machine.emulator_cores:.2f}",
        ),
    ]
    listed += _flat("", {name: it for name, it in run.workload.items() if name not in told})
    listed += _flat("scheduling of ", run.scheduling)
    listed += _flat("", run.host)
    if report.certificate:
        used = str(report.certificate.host.get("congestion_control", ""))
        wanted = report.topology.congestion if report.topology else used
        if used and used != wanted:
            listed.append(("congestion control of the topology", f"{wanted}, which this kernel lacks: {used} instead"))
        listed += [(name, value) for name, value in _flat("", report.certificate.host) if name not in dict(listed)]
    empty = ("", formats.UNKNOWN) if is_program(report) else ("",)
    return tuple((name, value) for name, value in listed if value not in empty)


def _flat(prefix: str, values: Mapping[str, object]) -> list[tuple[str, str]]:
    listed: list[tuple[str, str]] = []
    for name, value in values.items():
        if name == "sysctls" and isinstance(value, Mapping):
            listed += _sysctls(value, values.get("congestion_control"))
        elif isinstance(value, Mapping):
            listed += _flat(prefix, value)
        elif name == "congestion_control":
            listed.append(("congestion control over the fibers", str(value)))
        elif value is not None:
            listed.append((f"{prefix}{name.replace('_', ' ')}", str(value)))
    return listed


def _sysctls(values: Mapping[str, object], used: object) -> list[tuple[str, str]]:
    """Keep the sysctls' own names. A connection over a fiber may have ``used`` another value, which its route sets."""
    listed: list[tuple[str, str]] = []
    for name, value in values.items():
        overridden = name == "net.ipv4.tcp_congestion_control" and used not in (None, "", value)
        note = " (the fibers' routes override it)" if overridden else ""
        listed.append((f"sysctl of the nodes, {name}", f"{value}{note}"))
    return listed


def shortcomings(report: Report) -> tuple[str, ...]:
    """Return sentences about the files that were missing or could not be read."""
    # A launched program has no step records to miss.
    missing = [it for it in report.missing if not (is_program(report) and it.startswith("ranks/"))]
    said = [f"Missing from the run directory: {', '.join(missing)}."] if missing else []
    said += [
        f"{formats.plural(lines, 'line')} of {name} could not be read." for name, lines in report.malformed.items()
    ]
    return tuple(said)
