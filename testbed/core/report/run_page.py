"""A report as one self-contained HTML page: style, script, plots and drawing inline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from testbed.core.certification.certificate import Certificate
from testbed.core.report import (
    certification_section,
    checkers_section,
    drawing,
    faults_section,
    formats,
    hypothesis,
    parts,
    restarts_section,
)
from testbed.core.report.document import Report
from testbed.core.report.figures import Figure, figures
from testbed.core.report.markup import Markup, element, join
from testbed.core.report.parts import table

__all__ = ["html"]

_WIDE = frozenset({"step-time", "throughput", "lateness"})
_VERDICTS = {"pass": "passed", "fail": "failed", "unknown": "no verdict"}


def html(report: Report) -> str:
    """The whole page."""
    plots = figures(report)
    title = f"{report.run.name or 'Run'}: {_VERDICTS[report.verdict]}"
    body = element(
        "body",
        _top(report),
        element(
            "main",
            _topology(report),
            _fidelity(report),
            _scale_model(report),
            _plots(plots),
            _faults(report),
            _attempts(report),
            _checkers(report),
            _steady(report),
            _events(report),
            _host(report),
        ),
        element("footer", _footer(report)),
        *parts.scripts(plots),
    )
    return parts.page(title, body)


def _top(report: Report) -> Markup:
    run, training = report.run, report.training
    eyebrow = " · ".join(
        each for each in (run.name, str(run.experiment.get("name") or ""), formats.moment(run.started_unix_s)) if each
    )
    done = formats.count(training.steps_committed)
    of = f" of {formats.count(training.steps_planned)}" if training.steps_planned else ""
    tiles = (
        (
            "train_loss",
            f"{formats.loss(report.train_loss_first)} → {formats.loss(report.train_loss_last)}",
            f"{done}{of} steps, means of the first and last 10",
        ),
        ("recovery", formats.duration(report.recovery_s), "longest gap between commits around a fault"),
        ("goodput", formats.share(report.goodput), formats.goodput_means(report.goodput)),
        (
            "compute utilization",
            formats.share(report.compute_utilization),
            "compute ÷ (compute + exposed communication)",
        ),
        (
            "tokens per second",
            formats.count(training.tokens_per_s),
            f"all ranks; median step {formats.duration(training.median_step_s)}",
        ),
    )
    return element(
        "header",
        element("p", eyebrow, class_="eyebrow"),
        _banner(report),
        element("h1", report.headline),
        element("span", _VERDICTS[report.verdict], class_=f"badge {report.verdict}"),
        element("p", run.reason, class_="lead") if run.reason and run.reason not in report.headline else None,
        element(
            "dl",
            *(
                element(
                    "div",
                    element("dt", name),
                    element("dd", value, element("span", note, class_="note")),
                    class_="tile",
                )
                for name, value, note in tiles
            ),
            class_="tiles",
        ),
        element(
            "ul",
            *(
                element(
                    "li",
                    element("span", each.answer, class_=f"answer {each.answer.replace(' ', '-')}"),
                    element("span", each.question, class_="question"),
                    element(
                        "div",
                        each.text,
                        element("ol", *(element("li", line) for line in each.lines)) if each.lines else None,
                        class_="text",
                    ),
                )
                for each in report.answers
            ),
            class_="answers",
        ),
        class_="top",
    )


def _banner(report: Report) -> Markup | None:
    if not report.run.uncertified:
        return None
    return element(
        "p",
        "Uncertified: the fibers were not measured to be within tolerance, and the run was made all the same. Trust no"
        " number of this page to tell what real fiber would do.",
        class_="banner",
        role="alert",
    )


def _topology(report: Report) -> Markup | None:
    topology = report.topology
    if topology is None:
        return None
    scale = f"Rates and payloads are divided by {topology.scale:g}, distances are not. " if topology.scale != 1 else ""
    return element(
        "section",
        element("h2", "Topology"),
        element("p", f"{topology.name}. {scale}Delays are one way.", class_="lead"),
        element("div", drawing.draw(topology, report.faults), class_="scroll"),
    )


def _fidelity(report: Report) -> Markup:
    certificate = report.certificate
    lead = (
        "Error = measured − target − bare path, which is the same path without delay. Lateness = sent − due, in the"
        " emulator, while the job ran."
    )
    shown: list[Markup | None] = [element("h2", "Fidelity"), element("p", lead, class_="lead")]
    if certificate:
        shown += _certificate(certificate)
    elif not report.fidelity:
        shown.append(element("p", "Nothing was measured."))
    if report.fidelity:
        shown.append(element("h3", "Under load"))
        rows = [(*row[:-1], _word(row[-1])) for row in certification_section.load_rows(report.fidelity)]
        shown.append(table(certification_section.LOAD_HEAD, rows, (1, 2, 3, 4), "Fidelity under load"))
    if said := certification_section.headroom(certificate, report.machine):
        shown.append(element("p", said, class_="lead"))
    return element("section", *shown)


def _scale_model(report: Report) -> Markup | None:
    lead, rows = certification_section.validity_lead(report.run), list(certification_section.validity_rows(report.run))
    if not lead:
        return None
    made = table(certification_section.VALIDITY_HEAD, rows, (2, 3), "Scale model") if rows else None
    return element("section", element("h2", "Scale model"), element("p", lead, class_="lead"), made)


def _certificate(certificate: Certificate) -> Iterable[Markup]:
    word = "Certified before the job" if certificate.certified else "Outside tolerance before the job"
    yield element("h3", word)
    rows = [(*row[:-1], _word(row[-1])) for row in certification_section.rows(certificate)]
    yield table(certification_section.HEAD, rows, range(1, 8), "Certificate")
    for why in certificate.why:
        yield element("p", why, class_="finding")
    around = "Nothing was found to go around the fiber." if certificate.around_ok else certificate.around_why
    said = " ".join(each for each in (around, certification_section.segmentation(certificate)) if each)
    yield element("p", said, class_="lead" if certificate.around_ok else "banner")
    if certificate.notes:
        yield element("ul", *(element("li", note) for note in certification_section.notes(certificate)), class_="notes")
    checks = [(*row[:5], _word(row[5]), row[6]) for row in certification_section.check_rows(certificate)]
    if checks:
        yield element(
            "details",
            element("summary", "Every quantity: what it was to be, what it was measured to be, what is accepted"),
            table(certification_section.CHECKS_HEAD, checks, (2, 3, 4), "Every quantity of the certificate"),
        )


def _word(text: str) -> Markup:
    """A verdict in the colour of what it says."""
    word = text.partition(":")[0]
    good, bad = {"certified", "held", "ok"}, {"outside tolerance", "did not hold", "bad"}
    return element("strong", text, class_="yes" if word in good else "no" if word in bad else "unknown")


def _plots(plots: Sequence[Figure]) -> Markup | None:
    if not plots:
        return None
    instead = "The plots need JavaScript; report.md has the same facts as text."
    return element("section", element("h2", "What happened"), parts.plots(plots, instead, _WIDE))


def _faults(report: Report) -> Markup | None:
    if not report.faults:
        return None
    rows = [(*row[:-1], _yes(row[-1])) for row in faults_section.rows(report.faults)]
    lead = "Faults that stand at once have their gaps in common. The plots show their numbers where names have no room."
    made = table(faults_section.HEAD, rows, (0, *range(2, 8)), "Faults")
    return element("section", element("h2", "Faults"), element("p", lead, class_="lead"), made)


def _attempts(report: Report) -> Markup | None:
    if len(report.attempts) < 2:
        return None
    lead = "A job that fails begins again after the newest checkpoint that all ranks have, as soon as the lab allows."
    made = table(restarts_section.HEAD, restarts_section.rows(report.attempts), (0, 1, 2, 3, 5, 6, 7, 8), "Attempts")
    return element("section", element("h2", "Attempts"), element("p", lead, class_="lead"), made)


def _checkers(report: Report) -> Markup | None:
    if not report.checkers:
        return None
    rows = [(*row[:-1], _yes(row[-1])) for row in checkers_section.rows(report.checkers)]
    found = list(checkers_section.found_rows(report.checkers))
    return element(
        "section",
        element("h2", "Checkers"),
        element("p", checkers_section.LEAD, class_="lead"),
        table(checkers_section.HEAD, rows, (2,), "Checkers"),
        table(checkers_section.FOUND_HEAD, found, (1, 2, 3), "What the checkers found") if found else None,
    )


def _steady(report: Report) -> Markup | None:
    if not report.steady:
        return None
    rows = [(*row[:-1], _yes(row[-1])) for row in hypothesis.rows(report.steady)]
    lead = "What was to hold of the job before, during and after its faults. A grace is allowed; see the experiment."
    made = table(hypothesis.HEAD, rows, (2, 3), "Steady state")
    return element("section", element("h2", "Steady state"), element("p", lead, class_="lead"), made)


def _yes(word: str) -> Markup:
    return element("strong", word, class_=word)


def _events(report: Report) -> Markup | None:
    if not report.events:
        return None
    rows = [(f"{each.t_s:.3f}", each.event, each.text) for each in report.events]
    return element("section", element("h2", "Events"), table(("time s", "event", "what"), rows, (0,), "Events"))


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    """Names and values of what the run was made with and on."""
    run, training = report.run, report.training
    listed: list[tuple[str, str]] = [
        ("lab", run.lab),
        ("driver", run.driver),
        ("emulator", run.emulator),
        ("testbed", run.testbed),
        ("whole run", formats.duration(report.duration_s)),
        ("training", formats.duration(training.wall_s)),
        ("ranks", formats.count(training.world_size)),
        ("CPU busy, median", formats.share(report.machine.cpu_busy)),
        (
            "emulator's cores, mean",
            formats.UNKNOWN if report.machine.emulator_cores is None else f"{report.machine.emulator_cores:.2f}",
        ),
    ]
    listed += _flat("", run.workload)
    listed += _flat("scheduling of ", run.scheduling)
    listed += _flat("", run.host)
    if report.certificate:
        listed += [(name, value) for name, value in _flat("", report.certificate.host) if name not in dict(listed)]
    return tuple((name, value) for name, value in listed if value)


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
    """By their own names. What a connection over a fiber ``used`` may differ from the sysctl: its route names one."""
    listed: list[tuple[str, str]] = []
    for name, value in values.items():
        overridden = name == "net.ipv4.tcp_congestion_control" and used not in (None, "", value)
        note = " (the fibers' routes override it)" if overridden else ""
        listed.append((f"sysctl of the nodes, {name}", f"{value}{note}"))
    return listed


def _host(report: Report) -> Markup:
    lost = ("steps lost", formats.count(report.training.steps_lost))  # in Markdown it stands with the training
    return element("section", element("h2", "Run and host"), parts.facts((lost, *facts(report))))


def shortcomings(report: Report) -> tuple[str, ...]:
    """What of the run directory was missing or could not be read, in sentences."""
    said = [f"Missing from the run directory: {', '.join(report.missing)}."] if report.missing else []
    said += [
        f"{formats.plural(lines, 'line')} of {name} could not be read." for name, lines in report.malformed.items()
    ]
    return tuple(said)


def _footer(report: Report) -> Markup:
    said = [
        *shortcomings(report),
        "Made from the run directory alone; the same facts are in report.json and report.md.",
    ]
    return join(element("p", each) for each in said)
