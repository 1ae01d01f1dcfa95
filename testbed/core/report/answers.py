"""The questions that a reader of a report asks first, with answers from the evidence, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from testbed.core.analysis import blame, launched_end
from testbed.core.analysis.blame import Blame
from testbed.core.analysis.goodput import JobEvidence
from testbed.core.analysis.wire_check import EXCESS, WireVerdict
from testbed.core.certification.certificate import Certificate
from testbed.core.checkers.checks import Checked
from testbed.core.fields import number, sequence, text
from testbed.core.records.run_info import Expectation, RunInfo
from testbed.core.report import formats, open_metrics
from testbed.core.report.sections import (
    checkers_section,
    faults_section,
    fidelity_section,
    restarts_section,
    steady_section,
    traffic_section,
)
from testbed.core.report.sections.faults_section import Fault
from testbed.core.report.sections.fidelity_section import Fidelity, Machine
from testbed.core.report.sections.program_section import ProgramSteps
from testbed.core.report.sections.restarts_section import AttemptLine
from testbed.core.report.sections.steady_section import Steady
from testbed.core.report.sections.traffic_section import TrafficLine
from testbed.core.units import format_number

__all__ = ["EXIT_CODES", "Answer", "Evidence", "answer", "headline", "verdict"]


EXIT_CODES: Final = {"pass": 0, "fail": 1, "unknown": 3}
"""Exit status by verdict, of ``testbed run`` and of ``testbed report``, so that page and status always agree."""

UNEXPLAINED: Final = "ended-unexplained"
"""Id of the answer that a process ended by a signal whose sender is unknown; the verdict is unknown then."""


@dataclass(frozen=True)
class Answer:
    """One question that a reader asks first.

    ``answer`` is yes, no, unknown, not measurable (by this emulator, which is not a failure and needs no further run),
    or noisy host (stalls of the host explain the violation); ``text`` gives the reason with numbers; ``lines`` are the
    details that ``text`` sums up, if any.
    """

    id: str
    question: str
    answer: str
    text: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """The evidence for all answers; ``emulator`` is the one that emulated the fibers."""

    info: RunInfo
    job: JobEvidence
    faults: tuple[Fault, ...]
    attempts: tuple[AttemptLine, ...]
    certificate: Certificate | None
    under_load: tuple[Fidelity, ...]
    machine: Machine
    emulator: str
    wire: WireVerdict
    checked: Checked
    blame: Blame
    steady: tuple[Steady, ...]
    program: ProgramSteps | None = None
    traffic: tuple[TrafficLine, ...] = ()
    asleep: bool = False
    """Whether layers only slept, so that train_loss says nothing."""


def answer(found: Evidence) -> tuple[Answer, ...]:
    """Return the answers, most important first. A launched program gets fewer questions: its purpose is unknown."""
    told = _answer(found)
    why = found.info.unknown_because or ("; ".join(map(blame.describe, found.blame.unexplained)))
    return tuple(_untold(it, why) for it in told) if why else told


def _untold(told: Answer, why: str) -> Answer:
    """Turn a no into unknown: the failure of the lab may have caused it, so it says nothing about job or fibers."""
    if told.answer != "no":
        return told
    return replace(told, answer="unknown", text=f"{told.text} The cause may be: {why.rstrip('.')}.")


def _answer(found: Evidence) -> tuple[Answer, ...]:
    info = found.info
    launched = text(info.workload, "command")
    return (
        _ran(info, launched) if launched else _trained(info, found.job, found.asleep),
        *(_of_program(found, found.program) if found.program else ()),
        *([_came_through(found.faults)] if found.faults and not launched else []),
        *([_went_on(found.attempts)] if len(found.attempts) > 1 else []),
        _held(found.emulator, info.uncertified, found.certificate, found.under_load, found.machine),
        *(
            []
            if launched
            else [
                Answer(
                    "wire",
                    "Did the bytes cross the fiber?",
                    word(found.wire.ok),
                    found.wire.sentence,
                    found.wire.lines if not found.wire.ok else (),
                )
            ]
        ),
        *_right(found.checked),
        *_ended(found.blame, bool(launched)),
        *_happened(info),
        *(
            Answer(f"steady-{index}", "Did the steady state hold?", word(each.holds), steady_section.sentence(each))
            for index, each in enumerate(found.steady, 1)
        ),
        *(_expected(index, each) for index, each in enumerate(info.expectations, 1)),
    )


def _trained(info: RunInfo, job: JobEvidence, asleep: bool) -> Answer:
    question = "Did it train?"
    first, last = job.train_loss_first, job.train_loss_last
    done, planned = len(job.commits), job.steps_planned
    steps = f"{formats.count(done)} of {formats.plural(planned, 'step')}" if planned else formats.plural(done, "step")
    ranks = f" on {formats.plural(job.world_size, 'rank')}" if job.world_size else ""
    if not done:
        why = "; ".join(job.failures) or info.reason or "no step was committed by all ranks"
        told = "no" if info.status == "failed" else "unknown"
        return Answer("trained", question, told, f"It did not train: {why.rstrip('.')}.")
    if asleep:
        went = f"{steps}{ranks}, whose layers sleep: train_loss says nothing"
        return _ended_early(info, job, went) or Answer("trained", question, "yes", f"{went}.")
    if first is None or last is None:
        return Answer("trained", question, "unknown", f"{steps}{ranks}, but train_loss has no numeric value.")
    if done == planned == 1 and not job.failures:
        said = f"train_loss was {formats.loss(first)} in {steps}{ranks}; one step has no trend."
        return Answer("trained", question, "yes", said)
    went = f"train_loss went from {formats.loss(first)} to {formats.loss(last)} in {steps}{ranks}"
    return _ended_early(info, job, went) or Answer("trained", question, word(last < first), f"{went}.")


def _ended_early(info: RunInfo, job: JobEvidence, went: str) -> Answer | None:
    """Return the answer of a job that failed, or did not reach its last step; None for another."""
    question = "Did it train?"
    if job.failures:
        return Answer("trained", question, "no", f"{went}; then {'; '.join(job.failures).rstrip('.')}.")
    if job.steps_planned and len(job.commits) < job.steps_planned:
        told = "unknown" if info.status in ("interrupted", "running") else "no"
        return Answer("trained", question, told, f"{went}; the job did not reach its last step.")
    return None


def _ran(info: RunInfo, command: str) -> Answer:
    """Judge a launched program by the exit statuses of its ranks, the only evidence there is."""
    statuses = [it if isinstance(it, int) else None for it in sequence(info.workload, "statuses")]
    bad = [f"rank {rank} with {status}" for rank, status in enumerate(statuses) if status]
    ended = [f"rank {rank}" for rank, status in enumerate(statuses) if status is None]
    said = f"{command} ran on {formats.plural(len(statuses), 'rank')}" if statuses else f"{command} was launched"
    if bad:
        first = launched_end.sentence(info.workload)
        why = f" {first[0].upper()}{first[1:]}." if first else ""
        return Answer("ran", "Did it run?", "no", f"{said}; ended: {', '.join(bad)}.{why}")
    if info.workload.get("exceeded"):
        return Answer("ran", "Did it run?", "no", f"{said}; {text(info.workload, 'exceeded')}.")
    if info.workload.get("ended_in_order") and (lasts_s := number(info.workload, "for_s")):
        return Answer("ran", "Did it run?", "yes", f"{said} for {formats.duration(lasts_s)}, as it was to.")
    if not statuses or ended:
        how = f"; ended by the testbed: {', '.join(ended)}" if ended else ""
        return Answer("ran", "Did it run?", "unknown", f"{said}{how}.")
    return Answer("ran", "Did it run?", "yes", f"{said}; each ended with status 0.")


def _of_program(found: Evidence, program: ProgramSteps) -> tuple[Answer, ...]:
    """Answer by a program's printed steps; where none are known, by the traffic around its faults."""
    job = found.job
    if not job.commits:
        asked = "Did it make progress?"
        told = program.unread or "no step was read, although the run was told where the program reports them"
        told = f"{told[:1].upper()}{told[1:].rstrip('.')}."
        said = (Answer("progressed", asked, "unknown", told),) if program.asked else ()
        lines = traffic_section.sentences(found.traffic, found.faults)
        if not lines:
            return said
        # A program that ended well needed no more traffic; of one that did not, the first question tells.
        back = traffic_section.came_back(found.traffic, found.faults) or job.complete or None
        text = lines[0] if len(lines) == 1 else f"{formats.plural(len(lines), 'fault')} while it ran."
        return (*said, Answer("traffic", "Did the traffic come back?", word(back), text, lines if lines[1:] else ()))
    ranks = formats.plural(len(program.printing), "rank")
    steps = f"{formats.plural(job.steps_committed, 'step')}, as printed by {ranks}"
    if job.median_step_s is not None:
        steps += f"; the fault-free median is {formats.duration(job.median_step_s)}"
    if job.train_loss_first is not None and job.train_loss_last is not None:
        steps += f"; train_loss went from {formats.loss(job.train_loss_first)} to {formats.loss(job.train_loss_last)}"
    progressed = Answer("progressed", "Did it make progress?", "yes", f"{steps}.")
    return (progressed, *([_came_through(found.faults)] if found.faults else []))


def _came_through(faults: tuple[Fault, ...]) -> Answer:
    question, told = "Did it come through?", word(_all(fault.recovered for fault in faults))
    sentences = tuple(faults_section.sentence(fault) for fault in faults)
    if len(sentences) == 1:
        return Answer("recovered", question, told, sentences[0])
    return Answer("recovered", question, told, faults_section.summary(faults), sentences)


def _went_on(tried: tuple[AttemptLine, ...]) -> Answer:
    resumed = all(it.time_to_resume_s is not None for it in tried[:-1]) and not tried[-1].why
    return Answer("restarted", "Did it resume?", word(resumed), restarts_section.sentence(tried))


def _held(
    emulator: str, uncertified: bool, certificate: Certificate | None, loaded: tuple[Fidelity, ...], host: Machine
) -> Answer:
    certified, before = fidelity_section.certified(certificate, uncertified)
    held, during = fidelity_section.under_load(loaded, emulator, host)
    answer = word(_all((certified, held)))
    if answer == "unknown" and certified and held is None:
        answer = _why_open(loaded) or answer
    return Answer("fidelity", "Did the fiber stay within tolerance?", answer, f"{before}; {during}.")


def _why_open(loaded: tuple[Fidelity, ...]) -> str:
    """Return the answer that replaces unknown for certified fibers; empty if it stays unknown."""
    if any(direction.held is None and direction.own_drops for direction in loaded):
        return ""
    if any(direction.verdict == fidelity_section.NOISY_HOST for direction in loaded):
        return fidelity_section.NOISY_HOST
    not_measurable = any(fidelity_section.NOT_MEASURABLE in direction.verdict for direction in loaded)
    return fidelity_section.NOT_MEASURABLE if not_measurable else ""


def _right(found: Checked) -> tuple[Answer, ...]:
    """Skip the question if the ranks recorded nothing for the checkers."""
    if not found.checkers:
        return ()
    return (
        Answer(
            "checked", "Is the training correct?", word(checkers_section.right(found)), checkers_section.sentence(found)
        ),
    )


def _happened(info: RunInfo) -> tuple[Answer, ...]:
    """A fault that did not happen proves nothing: the verdict stays open."""
    said = steady_section.missing_faults(info)
    return (Answer("scheduled", "Did all faults happen?", "unknown", said),) if said else ()


def _ended(found: Blame, launched: bool) -> tuple[Answer, ...]:
    """Skip the question if every process ended well, or by the testbed. The exit statuses of a launched program are the
    answer to the first question already."""
    question = "Did every process end well?"
    if found.unexplained:
        return (Answer(UNEXPLAINED, question, "unknown", f"{found.sentence}."),)
    if found.own and not (launched and not any(it.signal for it in found.own)):
        return (Answer("ended", question, "no", f"{found.sentence}."),)
    return ()


def _expected(index: int, expectation: Expectation) -> Answer:
    answered = _expected_alone(index, expectation)
    if not expectation.within_noise:
        return answered
    low, high = (format_number(value, 4) for value in (expectation.low or 0.0, expectation.high or 0.0))
    text = f"{answered.text} Stalls of the host make it uncertain, {low} to {high}, so the verdict is unknown."
    return replace(answered, text=text)


def _expected_alone(index: int, expectation: Expectation) -> Answer:
    value = expectation.measured
    if expectation.bound:
        said = f"{expectation.text}. Measured: {open_metrics.words(expectation)}."
        return Answer(f"expected-{index}", "As expected?", word(expectation.holds), said)
    measured = "" if value is None else f" Measured: {format_number(value, 4)}."
    if value is not None and value > 1 and expectation.text.startswith("goodput"):
        measured = f" Measured: {format_number(value, 4)}, {formats.goodput_means(value)}."
    return Answer(f"expected-{index}", "As expected?", word(expectation.holds), f"{expectation.text}.{measured}")


_GOOD: Final = frozenset({"yes", fidelity_section.NOT_MEASURABLE, fidelity_section.NOISY_HOST})


def verdict(info: RunInfo, answers: tuple[Answer, ...]) -> str:
    """pass, fail or unknown; the exit status of ``testbed run`` follows it.

    Fibers outside tolerance turn a pass into a fail. An unknown verdict stays unknown.
    """
    if info.unknown_because or info.status == "running" or any(answer.id == UNEXPLAINED for answer in answers):
        return "unknown"
    others = {answer.answer for answer in answers if answer.id != "fidelity"}
    if info.status == "failed" or "no" in others:
        return "fail"
    fidelity = next((answer.answer for answer in answers if answer.id == "fidelity"), "yes")
    if info.status != "finished" or not others <= _GOOD:
        return "unknown"
    return "pass" if fidelity in _GOOD else "fail" if fidelity == "no" else "unknown"


def headline(
    verdict: str, info: RunInfo, answers: tuple[Answer, ...], faults: tuple[Fault, ...], cause: str = ""
) -> str:
    """Return the result in one sentence; ``cause`` says why a job that died did not come back, if that is known."""
    if verdict == "pass":
        ran = answers[0].id == "ran"
        if ran and not any(it.id == "recovered" for it in answers):
            return "The program ran across the fiber."
        if not faults:
            return "It trained across the fiber."
        first, more = faults[0].named, len(faults) - 1
        also = f" and {formats.plural(more, 'more fault')}" if more else ""
        return f"{'The program ran' if ran else 'It trained'}, and came through {first}{also}."
    if info.status == "interrupted":
        return "The run was interrupted; this is what was measured."
    if info.status == "running":
        return "The run has not ended: it is still going, or was killed. This is what was measured."
    if cause and verdict == "fail":
        return cause
    if info.status == "failed" and (why := info.unknown_because or info.reason):
        return f"The run failed: {why.rstrip('.')}."
    if verdict == "fail":
        worst = next((answer for answer in answers if answer.answer == "no"), None)
        failed = worst.id if worst else ""
        if worst and failed == "wire" and worst.text.startswith(EXCESS):
            return "It ran, but the fiber carried more than the job."
        return {
            "ran": "The program did not end well.",
            "trained": "It did not train as planned.",
            "recovered": "It did not come through the fault.",
            "fidelity": "It ran, but the fiber did not stay within tolerance.",
            "wire": "It ran, but not over the fiber.",
            "checked": "It ran, but the training is incorrect.",
            "ended": "A process of the program crashed.",
            "steady": "It ran, but its steady state did not hold.",
        }.get(failed.partition("-")[0], "It ran, but not as expected.")
    if any(answer.id == UNEXPLAINED for answer in answers):
        return "A process was ended by a signal whose sender is unknown."
    if any(expectation.within_noise for expectation in info.expectations):
        return "The host was too noisy for a verdict."
    return "Too little was measured for a verdict."


def word(ok: bool | None) -> str:
    return "unknown" if ok is None else "yes" if ok else "no"


def _all(answers: Iterable[bool | None]) -> bool | None:
    """Return False if any is False, else None if any is None or there are no answers, else True."""
    listed = list(answers)
    if False in listed:
        return False
    return None if None in listed or not listed else True
