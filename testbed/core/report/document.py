"""The report as a value: ``build`` makes it from a run directory, ``to_json`` turns it into report.json.

Times that end in ``_s`` and refer to the job (``began_s``, ``t_s``) count from the moment its first rank started.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from testbed.core.analysis import (
    attempt_history,
    blame,
    fidelity,
    launched_seconds,
    program_evidence,
    run_path,
    scraped_metrics,
    traffic_gaps,
    uncertainty,
    wire_check,
    wire_loads,
)
from testbed.core.analysis.declared_steps import DeclaredSteps, declared_steps
from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.host_noise import NoiseSummary, StallLog
from testbed.core.analysis.inside_noise import Range
from testbed.core.analysis.job_twin import strategy_words, twin_of
from testbed.core.analysis.predicted_run import PredictedRun, predicted_run, why_unpredicted
from testbed.core.analysis.rank_times import RankTime
from testbed.core.analysis.scraped_metrics import ScrapedMetrics
from testbed.core.analysis.timeline import FaultWindow, fault_windows
from testbed.core.certification.certificate import Certificate
from testbed.core.checkers.checks import check
from testbed.core.checkers.finding import Checker
from testbed.core.fields import integer, json_values, sequence, text
from testbed.core.records.process_end import read_ends
from testbed.core.records.run_info import RunInfo
from testbed.core.records.run_record import RunData
from testbed.core.records.samples import FiberSample
from testbed.core.report import answers, job_end, noise_section, open_metrics
from testbed.core.report.answers import Answer
from testbed.core.report.open_metrics import OpenMetric
from testbed.core.report.sections import (
    critical_path_section,
    events_section,
    faults_section,
    fidelity_section,
    in_force_section,
    placement_section,
    program_section,
    rank_seconds_section,
    restarts_section,
    steady_section,
    traffic_section,
)
from testbed.core.report.sections.critical_path_section import PathSeries
from testbed.core.report.sections.events_section import EventLine
from testbed.core.report.sections.faults_section import Fault
from testbed.core.report.sections.fidelity_section import Fidelity, Machine
from testbed.core.report.sections.in_force_section import InForce
from testbed.core.report.sections.program_section import ProgramSteps
from testbed.core.report.sections.rank_seconds_section import TimeShares
from testbed.core.report.sections.restarts_section import AttemptLine
from testbed.core.report.sections.steady_section import Steady
from testbed.core.report.sections.traffic_section import TrafficLine
from testbed.core.topology.model import Topology, topology_to_dict

__all__ = [
    "VERSION",
    "Answer",
    "EventLine",
    "Fault",
    "FiberSeries",
    "Report",
    "StepSeries",
    "build",
    "to_json",
]

VERSION = 1

_ENDS = ("job-ended", "rank-died")
"""Events of the end of a rank. One that was killed reports no end of its own."""


@dataclass(frozen=True)
class Training:
    """The training of all ranks together; ``compute_s``, ``peer_wait_s`` and ``network_s`` are rank-seconds.

    ``recovery_s`` is at least that if ``recovery_open``: no step came after one of the faults. ``died``: a rank failed
    and nothing restarted the job, so ``goodput`` is at most what it was until then. ``strategy``: with its options, as
    in ``diloco:every=50``; empty if unknown.
    """

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
    compute_s: float | None
    peer_wait_s: float | None
    network_s: float | None
    recovery_s: float | None
    recovery_open: bool = False
    died: bool = False
    recovery_at_most: bool = False
    strategy: str = ""


@dataclass(frozen=True)
class StepSeries:
    """Committed steps in the order of time, one list per column.

    Of a program that prints every n-th step, a row stands for the steps since the row before: ``covers`` of them, and
    ``duration_s`` is their mean. The first print only begins the count.
    """

    step: tuple[int, ...] = ()
    t_s: tuple[float, ...] = ()
    duration_s: tuple[float, ...] = ()
    train_loss: tuple[float | None, ...] = ()
    tokens: tuple[int, ...] = ()
    """Of all ranks in that step, or in all that the row covers."""
    covers: tuple[int, ...] = ()

    @property
    def interval_s(self) -> tuple[float, ...]:
        """The whole time of each row's steps."""
        return tuple(count * each for count, each in zip(self.covers, self.duration_s, strict=True))


@dataclass(frozen=True)
class FiberSeries:
    """Mean rate between two samples, in bits per second of L2 bytes, at the later one's time."""

    direction: str
    t_s: tuple[float, ...]
    bps: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """The result of a run. ``verdict`` is pass, fail or unknown; ``answers`` give the reasons, most important first."""

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
    wire: wire_check.WireVerdict
    topology: Topology | None
    events: tuple[EventLine, ...]
    steps: StepSeries
    fibers: tuple[FiberSeries, ...]
    ranks: tuple[RankTime, ...]
    machine: Machine
    steady: tuple[Steady, ...] = ()
    attempts: tuple[AttemptLine, ...] = ()
    in_force: tuple[InForce, ...] = ()
    checkers: tuple[Checker, ...] = ()
    rank_seconds: TimeShares | None = None
    prediction: PredictedRun | None = None
    unpredicted: str = ""
    """Of a job of agents that trained: why its step was not predicted; empty if it was."""
    declared: DeclaredSteps | None = None
    """Of a job with declared compute: how close the ranks came to it."""
    critical_path: PathSeries | None = None
    scraped: ScrapedMetrics = field(default_factory=ScrapedMetrics)
    program: ProgramSteps | None = None
    """Of a launched program: how its steps are read."""
    traffic: tuple[TrafficLine, ...] = ()
    """Of a launched program: the silences of fibers and nodes."""
    placement: tuple[str, ...] = ()
    """Which dimension of parallelism crossed which fiber, and the rates of the tiers, in lines."""
    idle: tuple[str, ...] = ()
    """Of a launched program: the fibers and nodes without traffic."""
    missing: tuple[str, ...] = ()
    malformed: Mapping[str, int] = field(default_factory=dict)
    open_metrics: Mapping[str, OpenMetric] = field(default_factory=dict)
    noise: NoiseSummary | None = None
    """The host's stalls during the job; None where they were not recorded."""
    uncertainty: Mapping[str, Range] = field(default_factory=dict)
    """The ranges of figures that stalls make uncertain, by name."""

    @property
    def holds(self) -> bool:
        """Whether every question was measured and answered with yes."""
        return self.verdict == "pass"

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(answer.text for answer in self.answers)

    @property
    def goodput(self) -> float | None:
        """(Productive + fault-free exposed communication) / (world size x wall time), 0..1; None if unknown.

        Checkpoints, lost work, restarts and what faults slowed are in the wall time; :attr:`rank_seconds` has them.
        """
        return self.training.goodput

    @property
    def recovery_s(self) -> float | None:
        """Longest gap between commits around a fault, in seconds; None without a fault.

        Infinite if training did not come back, so that no upper bound is met; ``training.recovery_s`` is what was seen.
        """
        return math.inf if self.training.recovery_open else self.training.recovery_s

    @property
    def compute_utilization(self) -> float | None:
        """Compute / (compute + exposed communication) over all ranks, 0..1."""
        return self.training.compute_utilization

    @property
    def asleep(self) -> bool:
        """Whether layers only slept, so that train_loss says nothing."""
        return self.declared is not None and self.declared.asleep

    @property
    def train_loss_first(self) -> float | None:
        return self.training.train_loss_first

    @property
    def train_loss_last(self) -> float | None:
        return self.training.train_loss_last


def build(run: RunData) -> Report:
    """Judge a run by the contents of its directory, of which every file may be missing."""
    windows = fault_windows(run.events)
    ended = [event.t for event in run.events if event.event in _ENDS]
    logs = attempt_history.fenced(run.ranks)
    twin = twin_of(logs, run.info.workload)
    found_program = None
    if text(run.info.workload, "command"):
        found_program = program_evidence.evaluate(logs, run.info, windows, _seen(run))
        job = found_program.job
    else:
        job = evaluate(
            logs,
            windows,
            max(ended, default=None),
            attempt_history.detections(run.events),
            seen_t=_seen(run),
            failed=run.info.status == "failed" and not run.info.unknown_because,
            twin=twin,
        )
    origin = _origin(run, job)
    emulator = run.info.emulator or (run.certificate.emulator if run.certificate else "")
    noise = StallLog(run.stalls, run.tcp_timeouts, run.watched)
    rates = {link.name: link.rate_bps for link in run.topology.links} if run.topology else {}
    measured = fidelity.under_load(run.fibers, job.began_t, job.ended_t, noise, rates)
    under_load = tuple(fidelity_section.direction(each, emulator) for each in measured)
    host = fidelity_section.machine(run.hosts, job.began_t, job.ended_t)
    job = uncertainty.of_faults(job, noise)
    mtu = {link.name: link.mtu for link in run.topology.links} if run.topology else {}
    crossed = wire_check.check(logs, run.fibers, mtu, run.topology, windows, twin, _exchanges(run))
    attempts = found_program.attempts if found_program else attempt_history.evaluate(logs, run.events, windows, job)
    tried = restarts_section.lines(attempts, origin)
    scale = run.topology.scale if run.topology else 1.0
    faults = faults_section.lines(job.faults, origin, scale)
    checks = steady_section.steady(run.info, origin, noise)
    program = program_section.steps(run.info, found_program, run.output) if found_program else None
    talked = _traffic(run, job, windows) if found_program else traffic_gaps.TrafficGaps()
    traffic = traffic_section.lines(talked, origin, _ranks_of_nodes(run))
    found = check(run.checks, twin, logs)
    bounds = open_metrics.open_metrics(job, tried, origin)
    ranges = uncertainty.of_job(job, attempts, noise)
    expectations = noise_section.judged(open_metrics.judged(run.info.expectations, bounds), ranges)
    info = replace(run.info, expectations=expectations)
    declared = declared_steps(run.ranks, integer(run.info.host, "cpus"))
    predicted, unpredicted = predicted_run(run), ""
    if found_program is None and predicted is None and any(log.steps for log in logs):
        unpredicted = why_unpredicted(twin, run.certificate, run.ranks, run.topology) or "no whole step was measured"
    told = answers.answer(
        answers.Evidence(
            info=info,
            job=job,
            faults=faults,
            attempts=tried,
            certificate=run.certificate,
            under_load=under_load,
            machine=host,
            emulator=emulator,
            wire=crossed,
            checked=found,
            blame=blame.blame(read_ends(run.info, run.events)),
            steady=checks,
            program=program,
            traffic=traffic,
            asleep=declared is not None and declared.asleep,
        )
    )
    verdict = answers.verdict(info, told)
    return Report(
        version=VERSION,
        verdict=verdict,
        headline=answers.headline(verdict, info, told, faults, job_end.sentence(run, job, faults)),
        answers=told,
        run=info,
        duration_s=_duration(run.info),
        training=_training(job, strategy_words(logs) if found_program is None else None),
        faults=faults,
        certificate=run.certificate,
        fidelity=under_load,
        wire=crossed,
        topology=run.topology,
        events=events_section.lines(run.events, origin, {it.fault: it.parameters for it in faults}, scale),
        steps=_steps(job, origin),
        fibers=_throughput(run.fibers, origin),
        ranks=job.rank_times,
        machine=host,
        steady=checks,
        attempts=tried,
        in_force=in_force_section.lines(run.events, origin),
        checkers=found.checkers,
        rank_seconds=_rank_seconds(run, job, origin),
        prediction=predicted,
        unpredicted=unpredicted,
        declared=declared,
        critical_path=critical_path_section.series(run_path.evaluate(run, logs), origin),
        scraped=scraped_metrics.evaluate(run.rank_samples, run.ranks, job.began_t, job.ended_t),
        program=program,
        traffic=traffic,
        placement=placement_section.lines(logs, run.info.workload, run.topology),
        idle=talked.idle,
        missing=run.missing,
        malformed=run.malformed,
        open_metrics=bounds,
        noise=noise.summary(job.began_t, job.ended_t),
        uncertainty=ranges,
    )


def to_json(report: Report) -> dict[str, object]:
    """Return plain JSON values; a number that is not finite is null. The schema is ``report.schema.json``."""
    document: dict[str, Any] = json_values(report)
    document["certificate"] = json_values(report.certificate.to_dict()) if report.certificate else None
    for line, cut in zip(document["wire"]["cuts"], report.wire.cuts, strict=True):
        line["ok"] = cut.ok
    for line, direction in zip(document["wire"]["directions"], report.wire.directions, strict=True):
        line |= {"ratio": direction.ratio, "ok": direction.ok}
    if report.declared:
        document["declared"]["verdict"] = report.declared.verdict
    if report.prediction:
        document["prediction"]["residual"] = report.prediction.residual
        document["prediction"]["residual_uncertainty"] = report.prediction.residual_uncertainty
    for fault in document["faults"]:
        fault.pop("scale")
    if report.topology:
        document["topology"] = json_values(topology_to_dict(report.topology))
        document["topology"].pop("origins")
    return document


def _steps(job: JobEvidence, origin: float) -> StepSeries:
    timed = [commit for commit in job.commits if commit.timed]
    return StepSeries(
        step=tuple(commit.step for commit in timed),
        t_s=tuple(commit.t - origin for commit in timed),
        duration_s=tuple(commit.duration_s / commit.steps for commit in timed),
        train_loss=tuple(commit.train_loss for commit in timed),
        tokens=tuple(commit.tokens for commit in timed),
        covers=tuple(commit.steps for commit in timed),
    )


def _traffic(run: RunData, job: JobEvidence, windows: Sequence[FaultWindow]) -> traffic_gaps.TrafficGaps:
    """Return the silences while the program ran; what follows the last traffic of one that ended well is none."""
    return traffic_gaps.evaluate(run.fibers, run.nodes, windows, job.began_t, job.ended_t, done=job.complete)


def _ranks_of_nodes(run: RunData) -> Mapping[str, Sequence[int]]:
    """Return the ranks of each node, as run.json or the ranks' records have them."""
    found: dict[str, list[int]] = {}
    listed = [it for it in sequence(run.info.workload, "members") if isinstance(it, Mapping)]
    pairs = [(integer(it, "rank"), text(it, "node")) for it in listed] or [(log.rank, log.node) for log in run.ranks]
    for rank, node in pairs:
        if rank is not None and node:
            found.setdefault(node, []).append(rank)
    return found


def _exchanges(run: RunData) -> wire_loads.Exchanges:
    """Return what the ranks recorded of exchanges with a server, by attempt."""
    found: dict[int, list[Mapping[str, object]]] = {}
    for log in run.checks:
        for it in log.versions:
            found.setdefault(it.attempt, []).append(it.fields)
    return found


def _seen(run: RunData) -> float | None:
    """Return until when the run was observed."""
    if run.info.ended_t is not None:
        return run.info.ended_t
    return run.events[-1].t if run.events else None


def _origin(run: RunData, job: JobEvidence) -> float:
    for t in (job.began_t, run.info.started_t, run.events[0].t if run.events else None):
        if t is not None:
            return t
    return run.fibers[0].t if run.fibers else 0.0


def _duration(info: RunInfo) -> float | None:
    if info.started_t is None or info.ended_t is None:
        return None
    return info.ended_t - info.started_t


def _training(job: JobEvidence, strategy: str | None) -> Training:
    """``strategy``: None for a launched program, of which it is not known."""
    program = strategy is None
    return Training(
        world_size=job.world_size,
        steps_planned=job.steps_planned,
        steps_committed=job.steps_committed,
        steps_lost=job.steps_lost,
        tokens=job.tokens,
        tokens_per_s=job.tokens_per_s,
        median_step_s=job.median_step_s,
        wall_s=job.wall_s,
        train_loss_first=job.train_loss_first,
        train_loss_last=job.train_loss_last,
        goodput=job.goodput,
        compute_utilization=job.compute_utilization,
        compute_s=None if program else job.compute_s,
        peer_wait_s=None if program else sum(each.peer_wait_s for each in job.rank_times),
        network_s=None if program else sum(each.network_s for each in job.rank_times),
        recovery_s=job.recovery_s,
        recovery_open=job.recovery_open,
        died=job.died,
        recovery_at_most=job.gap_at_most and not job.recovery_open,
        strategy=strategy or "",
    )


def _rank_seconds(run: RunData, job: JobEvidence, origin: float) -> TimeShares | None:
    if not text(run.info.workload, "command"):
        return rank_seconds_section.measure(job.world_size or 0, job.spans, origin, job.fault_costs)
    return rank_seconds_section.measure(*launched_seconds.account(run.info), origin)


def _throughput(fibers: Iterable[FiberSample], origin: float) -> tuple[FiberSeries, ...]:
    tracks: dict[str, list[FiberSample]] = {}
    for sample in fibers:
        tracks.setdefault(sample.direction, []).append(sample)
    series = []
    for direction, track in sorted(tracks.items()):
        times, rates = [], []
        for before, after in pairwise(track):
            moved = after.byte_count - before.byte_count
            # A restarted emulator counts from zero; what it moved in between is unknown.
            if after.t > before.t and moved >= 0:
                times.append(after.t - origin)
                rates.append(8.0 * moved / (after.t - before.t))
        series.append(FiberSeries(direction, tuple(times), tuple(rates)))
    return tuple(series)
