"""The report as a value: ``build`` makes it of a run directory, ``to_json`` turns it into report.json.

Times that end in ``_s`` and begin at the job (``began_s``, ``t_s``) count from the moment the first rank began it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from testbed.core.evidence import attempts, fidelity, recovery, wire
from testbed.core.evidence.certificate import Certificate
from testbed.core.evidence.checks import Checked, check
from testbed.core.evidence.finding import Checker
from testbed.core.evidence.record import Event, Expectation, FiberSample, RunInfo, sequence, text
from testbed.core.evidence.recovery import FaultRecovery, JobEvidence, RankTime
from testbed.core.evidence.run import RunData
from testbed.core.evidence.timeline import fault_windows
from testbed.core.report import checked, hypothesis, promise, restarts, words
from testbed.core.report.hypothesis import Steady
from testbed.core.report.promise import Fidelity, Machine
from testbed.core.report.restarts import AttemptLine
from testbed.core.topology.model import Topology

__all__ = ["VERSION", "Answer", "EventLine", "Fault", "FiberSeries", "Report", "StepSeries", "build", "to_json"]

VERSION = 1


@dataclass(frozen=True)
class Answer:
    """One question that a reader asks first. ``answer`` is yes, no, unknown, or not measurable (by this emulator, which
    is no failure and needs no other run); ``text`` says why, with numbers."""

    id: str
    question: str
    answer: str
    text: str


@dataclass(frozen=True)
class Training:
    """Of all ranks together; ``compute_s``, ``peer_wait_s`` and ``network_s`` are rank-seconds."""

    world_size: int | None
    steps_planned: int | None
    steps_committed: int
    steps_lost: int
    tokens: int
    tokens_per_s: float | None
    median_step_s: float | None
    wall_s: float | None
    train_loss_first: float | None
    train_loss_last: float | None
    goodput: float | None
    compute_utilization: float | None
    compute_s: float
    peer_wait_s: float
    network_s: float
    recovery_s: float | None


@dataclass(frozen=True)
class Fault:
    """``ended_s`` is None when it was not healed before the run ended."""

    fault: str
    type: str
    target: str
    links: tuple[str, ...]
    began_s: float
    ended_s: float | None
    carrier_s: float | None
    longest_gap_s: float | None
    back_s: float | None
    back_after_end_s: float | None
    recovered: bool | None

    @property
    def label(self) -> str:
        return f"{self.type} {self.target}".strip() or self.fault


@dataclass(frozen=True)
class EventLine:
    t_s: float
    event: str
    text: str


@dataclass(frozen=True)
class StepSeries:
    """Committed steps in the order of time, one list per column."""

    step: tuple[int, ...] = ()
    t_s: tuple[float, ...] = ()
    duration_s: tuple[float, ...] = ()
    train_loss: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class FiberSeries:
    """Mean rate between two samples, in bits per second of L2 bytes, at the later one's time."""

    direction: str
    t_s: tuple[float, ...]
    bps: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """What a run came to. ``verdict`` is pass, fail or unknown; ``answers`` say why, most important first."""

    version: int
    verdict: str
    headline: str
    answers: tuple[Answer, ...]
    run: RunInfo
    duration_s: float | None
    training: Training
    faults: tuple[Fault, ...]
    certificate: Certificate | None
    fidelity: tuple[Fidelity, ...]
    wire: wire.WireVerdict
    topology: Topology | None
    events: tuple[EventLine, ...]
    steps: StepSeries
    fibers: tuple[FiberSeries, ...]
    ranks: tuple[RankTime, ...]
    machine: Machine
    steady: tuple[Steady, ...] = ()
    attempts: tuple[AttemptLine, ...] = ()
    checkers: tuple[Checker, ...] = ()
    missing: tuple[str, ...] = ()
    malformed: Mapping[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Everything that was asked was measured, and is good."""
        return self.verdict == "pass"

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(answer.text for answer in self.answers)

    @property
    def goodput(self) -> float | None:
        """Share 0..1 of the wall time that a job without faults would have needed for the committed tokens."""
        return self.training.goodput

    @property
    def recovery_s(self) -> float | None:
        """Longest gap between commits around a fault, in seconds; None without a fault."""
        return self.training.recovery_s

    @property
    def compute_utilization(self) -> float | None:
        """Compute / (compute + exposed communication) over all ranks, 0..1."""
        return self.training.compute_utilization

    @property
    def train_loss_first(self) -> float | None:
        return self.training.train_loss_first

    @property
    def train_loss_last(self) -> float | None:
        return self.training.train_loss_last


def build(run: RunData) -> Report:
    """Judge a run from what its directory holds; every file of it may be missing."""
    windows = fault_windows(run.events)
    ended = [event.t for event in run.events if event.event == "job-ended"]
    logs = attempts.fenced(run.ranks)
    job = recovery.evaluate(logs, windows, max(ended, default=None))
    origin = _origin(run, job)
    emulator = run.info.emulator or (run.certificate.emulator if run.certificate else "")
    measured = fidelity.under_load(run.fibers, job.began_t, job.ended_t)
    under_load = tuple(promise.direction(each, emulator) for each in measured)
    host = promise.machine(run.hosts, job.began_t, job.ended_t)
    mtu = {link.name: link.mtu for link in run.topology.links} if run.topology else {}
    crossed = wire.check(logs, run.fibers, mtu)
    tried = restarts.lines(attempts.evaluate(logs, run.events, windows, job), origin)
    faults = tuple(_fault(each, origin) for each in job.faults)
    launched = text(run.info.workload, "command")
    checks = hypothesis.steady(run.info, origin)
    found = check(run.checks)
    answers = (
        _ran(run.info, launched) if launched else _trained(run.info, job),
        *([_came_through(faults)] if faults and not launched else []),
        *([_went_on(tried)] if len(tried) > 1 else []),
        _held(emulator, run.info.uncertified, run.certificate, under_load, host),
        # What somebody else's program must move is not known to us.
        *([] if launched else [Answer("wire", "Did the bytes cross it?", _word(crossed.ok), crossed.sentence)]),
        *_right(found),
        *_happened(run.info),
        *(
            Answer(f"steady-{index}", "Steady state?", _word(each.holds), hypothesis.sentence(each))
            for index, each in enumerate(checks, 1)
        ),
        *(_expected(index, each) for index, each in enumerate(run.info.expectations, 1)),
    )
    verdict = _verdict(run.info.status, answers)
    return Report(
        version=VERSION,
        verdict=verdict,
        headline=_headline(verdict, run.info, answers, faults),
        answers=answers,
        run=run.info,
        duration_s=_duration(run.info),
        training=_training(job),
        faults=faults,
        certificate=run.certificate,
        fidelity=under_load,
        wire=crossed,
        topology=run.topology,
        events=tuple(EventLine(event.t - origin, event.event, _event_text(event)) for event in run.events),
        steps=StepSeries(
            step=tuple(commit.step for commit in job.commits),
            t_s=tuple(commit.t - origin for commit in job.commits),
            duration_s=tuple(commit.duration_s for commit in job.commits),
            train_loss=tuple(commit.train_loss for commit in job.commits),
        ),
        fibers=_throughput(run.fibers, origin),
        ranks=job.rank_times,
        machine=host,
        steady=checks,
        attempts=tried,
        checkers=found.checkers,
        missing=run.missing,
        malformed=run.malformed,
    )


def to_json(report: Report) -> dict[str, object]:
    """Plain JSON values only; a number that is not finite is null. Its schema is ``report.schema.json``."""
    document = dataclasses.asdict(report)
    document["certificate"] = report.certificate.to_dict() if report.certificate else None
    wired = document["wire"]
    wired["cuts"] = [{**dataclasses.asdict(cut), "ok": cut.ok} for cut in report.wire.cuts]
    if report.topology:
        document["topology"].pop("origins")
    plain = _plain(document)
    assert isinstance(plain, dict)
    return plain


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _word(ok: bool | None) -> str:
    return "unknown" if ok is None else "yes" if ok else "no"


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False if any is False, else None if any is None or there is none, else True."""
    listed = list(answers)
    if False in listed:
        return False
    return None if None in listed or not listed else True


def _origin(run: RunData, job: JobEvidence) -> float:
    for t in (job.began_t, run.info.started_t, run.events[0].t if run.events else None):
        if t is not None:
            return t
    return run.fibers[0].t if run.fibers else 0.0


def _duration(info: RunInfo) -> float | None:
    if info.started_t is None or info.ended_t is None:
        return None
    return info.ended_t - info.started_t


def _training(job: JobEvidence) -> Training:
    return Training(
        world_size=job.world_size,
        steps_planned=job.steps_planned,
        steps_committed=len(job.commits),
        steps_lost=job.steps_lost,
        tokens=job.tokens,
        tokens_per_s=job.tokens_per_s,
        median_step_s=job.median_step_s,
        wall_s=job.wall_s,
        train_loss_first=job.train_loss_first,
        train_loss_last=job.train_loss_last,
        goodput=job.goodput,
        compute_utilization=job.compute_utilization,
        compute_s=job.compute_s,
        peer_wait_s=sum(each.peer_wait_s for each in job.rank_times),
        network_s=sum(each.network_s for each in job.rank_times),
        recovery_s=job.recovery_s,
    )


def _trained(info: RunInfo, job: JobEvidence) -> Answer:
    question = "Did it train?"
    first, last = job.train_loss_first, job.train_loss_last
    done, planned = len(job.commits), job.steps_planned
    steps = f"{words.count(done)} of {words.plural(planned, 'step')}" if planned else words.plural(done, "step")
    ranks = f" on {words.plural(job.world_size, 'rank')}" if job.world_size else ""
    if not done:
        why = "; ".join(job.failures) or info.reason or "no step was committed by all ranks"
        return Answer("trained", question, "no" if info.status == "failed" else "unknown", f"It did not train: {why}.")
    if first is None or last is None:
        return Answer("trained", question, "unknown", f"{steps}{ranks}, but no train_loss that is a number.")
    went = f"train_loss went from {words.loss(first)} to {words.loss(last)} in {steps}{ranks}"
    if job.failures:
        return Answer("trained", question, "no", f"{went}; then {'; '.join(job.failures)}.")
    if planned and done < planned:
        told = "unknown" if info.status in ("interrupted", "running") else "no"
        return Answer("trained", question, told, f"{went}; the job did not reach its last step.")
    return Answer("trained", question, _word(last < first), f"{went}.")


def _ran(info: RunInfo, command: str) -> Answer:
    """Of a program that was launched: how its ranks ended is all that we know of it."""
    statuses = [it if isinstance(it, int) else None for it in sequence(info.workload, "statuses")]
    bad = [f"rank {rank} with {status}" for rank, status in enumerate(statuses) if status]
    ended = [f"rank {rank}" for rank, status in enumerate(statuses) if status is None]
    said = f"{command} ran on {words.plural(len(statuses), 'rank')}" if statuses else f"{command} was launched"
    if bad:
        return Answer("ran", "Did it run?", "no", f"{said}; ended: {', '.join(bad)}.")
    if not statuses or ended:
        how = f"; ended by us: {', '.join(ended)}" if ended else ""
        return Answer("ran", "Did it run?", "unknown", f"{said}{how}.")
    return Answer("ran", "Did it run?", "yes", f"{said}; each ended with status 0.")


def _came_through(faults: tuple[Fault, ...]) -> Answer:
    return Answer(
        "recovered",
        "Did it come through?",
        _word(_all(fault.recovered for fault in faults)),
        " ".join(_fault_sentence(fault) for fault in faults),
    )


def _went_on(tried: tuple[AttemptLine, ...]) -> Answer:
    resumed = all(it.time_to_resume_s is not None for it in tried[:-1]) and not tried[-1].why
    return Answer("restarted", "Did it go on?", _word(resumed), restarts.sentence(tried))


def _fault_sentence(fault: Fault) -> str:
    if fault.ended_s is None:
        lasted = "until the end of the run"
    else:
        lasted = f"for {words.duration(fault.ended_s - fault.began_s)}"
    began = f"{fault.label} at {words.duration(fault.began_s)} {lasted}"
    began = began[:1].upper() + began[1:]
    if fault.recovered is None:
        return f"{began}: it fell outside the training, so there is no recovery to measure."
    gap = f"longest gap between commits {words.duration(fault.longest_gap_s)}"
    if not fault.recovered:
        return f"{began}: {gap}, and training never came back."
    if fault.back_s == 0:
        after = (
            f", back to that {words.duration(fault.back_after_end_s)} after its end" if fault.back_after_end_s else ""
        )
        return f"{began}: {gap}; no step near its beginning took more than {recovery.BACK:g} × the median{after}."
    return f"{began}: {gap}; back to {recovery.BACK:g} × the median step after {words.duration(fault.back_s)}."


def _held(
    emulator: str, uncertified: bool, certificate: Certificate | None, loaded: tuple[Fidelity, ...], host: Machine
) -> Answer:
    certified, before = promise.certified(certificate, uncertified)
    held, during = promise.under_load(loaded, emulator, host)
    told = _word(_all((certified, held)))
    if told == "unknown" and certified and any(promise.NOT_MEASURABLE in each.verdict for each in loaded):
        told = promise.NOT_MEASURABLE
    return Answer("fidelity", "Did the fiber hold its promise?", told, f"{before}; {during}.")


def _right(found: Checked) -> tuple[Answer, ...]:
    """Not asked of a job whose ranks record nothing for the checkers."""
    if not found.checkers:
        return ()
    return (Answer("checked", "Is it right?", _word(checked.right(found)), checked.sentence(found)),)


def _happened(info: RunInfo) -> tuple[Answer, ...]:
    """What did not happen cannot have been survived."""
    said = hypothesis.missing_faults(info)
    return (Answer("scheduled", "Did all faults happen?", "unknown", said),) if said else ()


def _expected(index: int, expectation: Expectation) -> Answer:
    measured = "" if expectation.measured is None else f" Measured: {expectation.measured:.4g}."
    return Answer(f"expected-{index}", "As expected?", _word(expectation.holds), f"{expectation.text}.{measured}")


def _verdict(status: str, answers: tuple[Answer, ...]) -> str:
    told = [answer.answer for answer in answers]
    if status == "failed" or "no" in told:
        return "fail"
    return "pass" if status == "finished" and set(told) <= {"yes", promise.NOT_MEASURABLE} else "unknown"


def _headline(verdict: str, info: RunInfo, answers: tuple[Answer, ...], faults: tuple[Fault, ...]) -> str:
    if verdict == "pass":
        if answers[0].id == "ran":
            return "The program ran across the fiber."
        if not faults:
            return "It trained across the fiber."
        first, more = f"the {faults[0].type} of {faults[0].target}", len(faults) - 1
        also = f" and {words.plural(more, 'more fault')}" if more else ""
        return f"It trained, and came through {first}{also}."
    if info.status == "interrupted":
        return "The run was interrupted; this is what was measured."
    if info.status == "running":
        return "The run has no end: it is still going, or was killed. This is what was measured."
    if info.status == "failed" and info.reason:
        return f"The run failed: {info.reason.rstrip('.')}."
    if verdict == "fail":
        failed = next((answer.id for answer in answers if answer.answer == "no"), "")
        return {
            "ran": "The program did not end well.",
            "trained": "It did not train as planned.",
            "recovered": "It did not come through the fault.",
            "fidelity": "It ran, but the fiber did not hold its promise.",
            "wire": "It ran, but not over the fiber.",
            "checked": "It ran, but what it trained is wrong.",
            "steady": "It ran, but its steady state did not hold.",
        }.get(failed.partition("-")[0], "It ran, but not as expected.")
    return "Too little was measured for a verdict."


def _fault(each: FaultRecovery, origin: float) -> Fault:
    window = each.window
    return Fault(
        fault=window.fault,
        type=window.type,
        target=window.target,
        links=window.links,
        began_s=window.began_t - origin,
        ended_s=None if window.ended_t is None else window.ended_t - origin,
        carrier_s=window.carrier_s,
        longest_gap_s=each.longest_gap_s,
        back_s=each.back_s,
        back_after_end_s=each.back_after_end_s,
        recovered=each.recovered,
    )


def _throughput(fibers: Iterable[FiberSample], origin: float) -> tuple[FiberSeries, ...]:
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    series = []
    for direction, track in sorted(tracks.items()):
        times, rates = [], []
        for before, after in pairwise(track):
            moved = after.byte_count - before.byte_count
            # An emulator that was started again counts from zero; what it moved in between is not known.
            if after.t > before.t and moved >= 0:
                times.append(after.t - origin)
                rates.append(8.0 * moved / (after.t - before.t))
        series.append(FiberSeries(direction, tuple(times), tuple(rates)))
    return tuple(series)


def _event_text(event: Event) -> str:
    fields = event.fields
    if event.event in ("fault-began", "fault-ended"):
        said = f"{text(fields, 'type')} {text(fields, 'target')}".strip()
        links = fields.get("links")
        if isinstance(links, list | tuple) and links:
            said += f" (links: {', '.join(str(link) for link in links)})"
        return said
    if event.event == "carrier":
        state = "carrier" if fields.get("up") is True else "no carrier"
        return f"{text(fields, 'site')} gateway, {text(fields, 'link')}: {state}"
    rest = {key: value for key, value in fields.items() if key not in ("t", "event")}
    if len(rest) == 1:
        return str(next(iter(rest.values())))
    said_of = {key: value for key, value in rest.items() if isinstance(value, str | int | float) and value != ""}
    return ", ".join(f"{key} {value}" for key, value in said_of.items())
