"""A report as one self-contained HTML page: style, script, plots and drawing inline.

It opens offline and asks nothing of the network, which its own content security policy enforces.

plotly.js comes as its basic bundle (1.2 MB; lines and bars are all that is drawn), kept in ``assets`` with its licence,
because plotly's Python package ships the full one alone, which would put 4.8 MB into every report.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from testbed.core.evidence.certificate import Certificate
from testbed.core.report import certified, checked, drawing, hypothesis, restarts, words
from testbed.core.report.document import Report
from testbed.core.report.figures import Figure, figures
from testbed.core.report.markup import Markup, element, join

__all__ = ["html"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_WIDE = frozenset({"step-time", "throughput", "lateness"})
_VERDICTS = {"pass": "passed", "fail": "failed", "unknown": "no verdict"}


def html(report: Report) -> str:
    """The whole page."""
    plots = figures(report)
    title = f"{report.run.name or 'Run'}: {_VERDICTS[report.verdict]}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", _asset("page.css")),
    )
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
        *_scripts(plots),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


@functools.cache
def _asset(name: str) -> Markup:
    return Markup((resources.files(__package__) / "assets" / name).read_text(encoding="utf-8"))


def _scripts(plots: Sequence[Figure]) -> Iterable[Markup]:
    if not plots:
        return
    # Inside a script element only "</" and "<!--" can end or bend it, and JSON may write "<" as an escape.
    data = json.dumps({figure.id: figure.spec for figure in plots}, separators=(",", ":")).replace("<", "\\u003c")
    yield element("script", Markup(data), type="application/json", id="figures")
    yield element("script", _asset("plotly-basic.min.js"))
    yield element("script", _asset("page.js"))


def _top(report: Report) -> Markup:
    run, training = report.run, report.training
    eyebrow = " · ".join(
        each for each in (run.name, str(run.experiment.get("name") or ""), words.moment(run.started_unix_s)) if each
    )
    done = words.count(training.steps_committed)
    of = f" of {words.count(training.steps_planned)}" if training.steps_planned else ""
    tiles = (
        (
            "train_loss",
            f"{words.loss(report.train_loss_first)} → {words.loss(report.train_loss_last)}",
            f"{done}{of} steps, means of the first and last 10",
        ),
        ("recovery", words.duration(report.recovery_s), "longest gap between commits around a fault"),
        ("goodput", words.share(report.goodput), "share of the wall time that this work takes without faults"),
        ("compute utilization", words.share(report.compute_utilization), "compute ÷ (compute + exposed communication)"),
        (
            "tokens per second",
            words.count(training.tokens_per_s),
            f"all ranks; median step {words.duration(training.median_step_s)}",
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
                    element("span", each.text, class_="text"),
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


def _table(
    head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[int] = (), caption: str = ""
) -> Markup:
    right = set(numbers)

    def cell(tag: str, index: int, value: object) -> Markup:
        scope = "col" if tag == "th" else None
        return element(tag, value, class_="number" if index in right else None, scope=scope)

    return element(
        "div",
        element(
            "table",
            element("thead", element("tr", *(cell("th", index, each) for index, each in enumerate(head)))),
            element(
                "tbody", *(element("tr", *(cell("td", index, each) for index, each in enumerate(row))) for row in rows)
            ),
            aria_label=caption or None,
        ),
        class_="scroll",
    )


def _told(ok: bool | None, yes: str, no: str) -> Markup:
    word = "unknown" if ok is None else yes if ok else no
    return element("strong", word, class_="unknown" if ok is None else "yes" if ok else "no")


def _fidelity(report: Report) -> Markup:
    certificate = report.certificate
    lead = (
        "Error = measured − target − bare path, which is the same path without delay. Lateness = sent − due, in the"
        " emulator, while the job ran."
    )
    parts: list[Markup | None] = [element("h2", "Fidelity"), element("p", lead, class_="lead")]
    if certificate:
        parts += _certificate(certificate)
    elif not report.fidelity:
        parts.append(element("p", "Nothing was measured."))
    if report.fidelity:
        parts.append(element("h3", "Under load"))
        rows = [(*row[:-1], _word(row[-1])) for row in certified.load_rows(report.fidelity)]
        parts.append(_table(certified.LOAD_HEAD, rows, (1, 2, 3, 4), "Fidelity under load"))
    if said := certified.headroom(certificate, report.machine):
        parts.append(element("p", said, class_="lead"))
    return element("section", *parts)


def _scale_model(report: Report) -> Markup | None:
    lead, rows = certified.validity_lead(report.run), list(certified.validity_rows(report.run))
    if not lead:
        return None
    table = _table(certified.VALIDITY_HEAD, rows, (2, 3), "Scale model") if rows else None
    return element("section", element("h2", "Scale model"), element("p", lead, class_="lead"), table)


def _certificate(certificate: Certificate) -> Iterable[Markup]:
    word = "Certified before the job" if certificate.certified else "Outside tolerance before the job"
    yield element("h3", word)
    rows = [(*row[:-1], _word(row[-1])) for row in certified.rows(certificate)]
    yield _table(certified.HEAD, rows, range(1, 8), "Certificate")
    for why in certificate.why:
        yield element("p", why, class_="finding")
    around = "Nothing was found to go around the fiber." if certificate.around_ok else certificate.around_why
    said = " ".join(each for each in (around, certified.segmentation(certificate)) if each)
    yield element("p", said, class_="lead" if certificate.around_ok else "banner")
    if certificate.notes:
        yield element("ul", *(element("li", note) for note in certified.notes(certificate)), class_="notes")
    checks = [(*row[:5], _word(row[5]), row[6]) for row in certified.check_rows(certificate)]
    if checks:
        yield element(
            "details",
            element("summary", "Every quantity: what it was to be, what it was measured to be, what is accepted"),
            _table(certified.CHECKS_HEAD, checks, (2, 3, 4), "Every quantity of the certificate"),
        )


def _word(text: str) -> Markup:
    """A verdict in the colour of what it says."""
    word = text.partition(":")[0]
    good, bad = {"certified", "held", "ok"}, {"outside tolerance", "did not hold", "bad"}
    return element("strong", text, class_="yes" if word in good else "no" if word in bad else "unknown")


def _plots(plots: Sequence[Figure]) -> Markup | None:
    if not plots:
        return None
    return element(
        "section",
        element("h2", "What happened"),
        element(
            "div",
            *(
                element(
                    "figure",
                    element("h3", figure.title),
                    element("figcaption", figure.summary),
                    element("div", id=figure.id, class_="plot", role="img", aria_label=figure.summary),
                    class_="wide" if figure.id in _WIDE else None,
                )
                for figure in plots
            ),
            class_="plots",
        ),
        element("noscript", "The plots need JavaScript; report.md has the same facts as text."),
    )


def _faults(report: Report) -> Markup | None:
    if not report.faults:
        return None
    head = (
        "fault",
        "began",
        "ended",
        "carrier lost after",
        "longest gap",
        "back after",
        "back after its end",
        "came through",
    )
    rows = [
        (
            fault.label,
            words.duration(fault.began_s),
            words.duration(fault.ended_s),
            words.duration(fault.carrier_s),
            words.duration(fault.longest_gap_s),
            words.duration(fault.back_s),
            words.duration(fault.back_after_end_s),
            _told(fault.recovered, "yes", "no"),
        )
        for fault in report.faults
    ]
    return element("section", element("h2", "Faults"), _table(head, rows, range(1, 7), "Faults"))


def _attempts(report: Report) -> Markup | None:
    if len(report.attempts) < 2:
        return None
    lead = "A job that fails begins again after the newest checkpoint that all ranks have, as soon as the lab allows."
    table = _table(restarts.HEAD, restarts.rows(report.attempts), (0, 1, 2, 3, 5, 6, 7, 8), "Attempts")
    return element("section", element("h2", "Attempts"), element("p", lead, class_="lead"), table)


def _checkers(report: Report) -> Markup | None:
    if not report.checkers:
        return None
    rows = [(*row[:-1], _yes(row[-1])) for row in checked.rows(report.checkers)]
    found = list(checked.found_rows(report.checkers))
    return element(
        "section",
        element("h2", "Checkers"),
        element("p", checked.LEAD, class_="lead"),
        _table(checked.HEAD, rows, (2,), "Checkers"),
        _table(checked.FOUND_HEAD, found, (1, 2, 3), "What the checkers found") if found else None,
    )


def _steady(report: Report) -> Markup | None:
    if not report.steady:
        return None
    rows = [(*row[:-1], _yes(row[-1])) for row in hypothesis.rows(report.steady)]
    lead = "What was to hold of the job before, during and after its faults. A grace is allowed; see the experiment."
    table = _table(hypothesis.HEAD, rows, (2, 3), "Steady state")
    return element("section", element("h2", "Steady state"), element("p", lead, class_="lead"), table)


def _yes(word: str) -> Markup:
    return element("strong", word, class_=word)


def _events(report: Report) -> Markup | None:
    if not report.events:
        return None
    rows = [(f"{each.t_s:.3f}", each.event, each.text) for each in report.events]
    return element("section", element("h2", "Events"), _table(("time s", "event", "what"), rows, (0,), "Events"))


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    """Names and values of what the run was made with and on."""
    run, training = report.run, report.training
    listed: list[tuple[str, str]] = [
        ("lab", run.lab),
        ("driver", run.driver),
        ("emulator", run.emulator),
        ("testbed", run.testbed),
        ("whole run", words.duration(report.duration_s)),
        ("training", words.duration(training.wall_s)),
        ("ranks", words.count(training.world_size)),
        ("steps lost", words.count(training.steps_lost)),
        ("CPU busy, median", words.share(report.machine.cpu_busy)),
        (
            "emulator's cores, mean",
            words.UNKNOWN if report.machine.emulator_cores is None else f"{report.machine.emulator_cores:.2f}",
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
        if isinstance(value, Mapping):
            listed += _flat(prefix, value)
        elif value is not None:
            listed.append((f"{prefix}{name.replace('_', ' ')}", str(value)))
    return listed


def _host(report: Report) -> Markup:
    items = (element("div", element("dt", name), element("dd", value)) for name, value in facts(report))
    return element("section", element("h2", "Run and host"), element("dl", *items, class_="facts"))


def shortcomings(report: Report) -> tuple[str, ...]:
    """What of the run directory was missing or could not be read, in sentences."""
    said = [f"Missing from the run directory: {', '.join(report.missing)}."] if report.missing else []
    said += [f"{words.plural(lines, 'line')} of {name} could not be read." for name, lines in report.malformed.items()]
    return tuple(said)


def _footer(report: Report) -> Markup:
    said = [
        *shortcomings(report),
        "Made from the run directory alone; the same facts are in report.json and report.md.",
    ]
    return join(element("p", each) for each in said)
