"""Build the report of a run from its directory alone, of which every file may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from testbed.core.analysis import attempt_history, blame, launched_seconds, program_evidence, scraped_metrics
from testbed.core.analysis.costs import run_path
from testbed.core.analysis.costs.predicted_run import PredictedRun, predicted_run, why_unpredicted
from testbed.core.analysis.declared_steps import declared_steps
from testbed.core.analysis.goodput import JobEvidence, evaluate
from testbed.core.analysis.job_twin import strategy_words, twin_of
from testbed.core.analysis.noise import uncertainty
from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.analysis.program_evidence import ProgramEvidence
from testbed.core.analysis.timeline import FaultWindow, fault_windows
from testbed.core.analysis.wire import fidelity, traffic_gaps, wire_check, wire_loads
from testbed.core.checkers.checks import check
from testbed.core.fields import integer, sequence, text
from testbed.core.records.process_end import read_ends
from testbed.core.records.rank_log import RankLog
from testbed.core.records.run_info import RunInfo
from testbed.core.records.run_record import RunData
from testbed.core.records.samples import FiberSample
from testbed.core.report import answers, job_end, noise_section, open_metrics
from testbed.core.report.document import VERSION, FiberSeries, Report, StepSeries, Training
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
from testbed.core.report.sections.fidelity_section import Fidelity
from testbed.core.report.sections.rank_seconds_section import TimeShares
from testbed.core.training.twin import Twin

__all__ = ["build"]

_ENDS = ("job-ended", "rank-died")
"""Events of the end of a rank. One that was killed reports no end of its own."""


def build(run: RunData) -> Report:
    """Return the report with the verdict."""
    windows = fault_windows(run.events)
    logs = attempt_history.fenced(run.ranks)
    twin = twin_of(logs, run.info.workload)
    program = None
    if text(run.info.workload, "command"):
        program = program_evidence.evaluate(logs, run.info, windows, _observed_until(run))
    noise = StallLog(run.stalls, run.tcp_timeouts, run.watched)
    job = uncertainty.of_faults(program.job if program else _trained(run, logs, windows, twin), noise)
    report = _measured(run, logs, windows, twin, job, program, noise)
    cause = job_end.sentence(run, job, report.faults)
    checked = check(run.checks, twin, logs)
    report = replace(report, checkers=checked.checkers)
    answered = answers.answer(report, job, checked, blame.blame(read_ends(run.info, run.events)))
    verdict = answers.verdict(report.run, answered)
    headline = answers.headline(verdict, report.run, answered, report.faults, cause)
    return replace(report, verdict=verdict, headline=headline, answers=answered)


def _trained(run: RunData, logs: Sequence[RankLog], windows: Sequence[FaultWindow], twin: Twin | None) -> JobEvidence:
    return evaluate(
        logs,
        windows,
        max((event.t for event in run.events if event.event in _ENDS), default=None),
        attempt_history.detections(run.events),
        seen_t=_observed_until(run),
        failed=run.info.status == "failed" and not run.info.unknown_because,
        twin=twin,
    )


def _measured(
    run: RunData,
    logs: Sequence[RankLog],
    windows: Sequence[FaultWindow],
    twin: Twin | None,
    job: JobEvidence,
    program: ProgramEvidence | None,
    noise: StallLog,
) -> Report:
    """Return the report before any answer is given."""
    origin, topology = _origin(run, job), run.topology
    scale = topology.scale if topology else 1.0
    mtu = {link.name: link.mtu for link in topology.links} if topology else {}
    attempts = program.attempts if program else attempt_history.evaluate(logs, run.events, windows, job)
    attempt_lines = restarts_section.lines(attempts, origin)
    faults = faults_section.lines(job.faults, origin, scale)
    traffic = _traffic(run, job, windows) if program else traffic_gaps.TrafficGaps()
    bounds = open_metrics.open_metrics(job, attempt_lines, origin)
    ranges = uncertainty.of_job(job, attempts, noise)
    expectations = noise_section.judged(open_metrics.judged(run.info.expectations, bounds), ranges)
    path = run_path.evaluate(run, logs)
    prediction = predicted_run(run, path)
    return Report(
        version=VERSION,
        verdict="unknown",
        headline="",
        answers=(),
        run=replace(run.info, expectations=expectations),
        duration_s=_duration(run.info),
        training=_training(job, None if program else strategy_words(logs)),
        faults=faults,
        certificate=run.certificate,
        fidelity=_under_load(run, job, noise),
        wire=wire_check.check(logs, run.fibers, mtu, topology, windows, twin, _exchanges(run)),
        topology=topology,
        events=events_section.lines(run.events, origin, {fault.fault: fault.parameters for fault in faults}, scale),
        steps=_steps(job, origin),
        fibers=_throughput(run.fibers, origin),
        ranks=job.rank_times,
        machine=fidelity_section.machine(run.hosts, job.began_t, job.ended_t),
        steady=steady_section.steady(run.info, origin, noise),
        attempts=attempt_lines,
        in_force=in_force_section.lines(run.events, origin),
        rank_seconds=_rank_seconds(run, job, origin),
        prediction=prediction,
        unpredicted=_unpredicted(run, logs, twin, prediction) if program is None else "",
        declared=declared_steps(run.ranks, integer(run.info.host, "cpus")),
        critical_path=critical_path_section.series(path, origin),
        scraped=scraped_metrics.evaluate(run.rank_samples, run.ranks, job.began_t, job.ended_t),
        program=program_section.steps(run.info, program, run.output) if program else None,
        traffic=traffic_section.lines(traffic, origin, _ranks_of_nodes(run)),
        placement=placement_section.lines(logs, run.info.workload, topology),
        idle=traffic.idle,
        missing=run.missing,
        malformed=run.malformed,
        open_metrics=bounds,
        noise=noise.summary(job.began_t, job.ended_t),
        uncertainty=ranges,
    )


def _under_load(run: RunData, job: JobEvidence, noise: StallLog) -> tuple[Fidelity, ...]:
    rates = {link.name: link.rate_bps for link in run.topology.links} if run.topology else {}
    emulator = run.info.emulator or (run.certificate.emulator if run.certificate else "")
    loads = fidelity.under_load(run.fibers, job.began_t, job.ended_t, noise, rates)
    return tuple(fidelity_section.direction(load, emulator) for load in loads)


def _unpredicted(run: RunData, logs: Sequence[RankLog], twin: Twin | None, prediction: PredictedRun | None) -> str:
    if prediction is not None or not any(log.steps for log in logs):
        return ""
    return why_unpredicted(twin, run.certificate, run.ranks, run.topology) or "no whole step was measured"


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
    ranks: dict[str, list[int]] = {}
    members = [member for member in sequence(run.info.workload, "members") if isinstance(member, Mapping)]
    pairs = [(integer(member, "rank"), text(member, "node")) for member in members]
    for rank, node in pairs or [(log.rank, log.node) for log in run.ranks]:
        if rank is not None and node:
            ranks.setdefault(node, []).append(rank)
    return ranks


def _exchanges(run: RunData) -> wire_loads.Exchanges:
    """Return what the ranks recorded of exchanges with a server, by attempt."""
    by_attempt: dict[int, list[Mapping[str, object]]] = {}
    for log in run.checks:
        for version in log.versions:
            by_attempt.setdefault(version.attempt, []).append(version.fields)
    return by_attempt


def _observed_until(run: RunData) -> float | None:
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
        peer_wait_s=None if program else sum(times.peer_wait_s for times in job.rank_times),
        network_s=None if program else sum(times.network_s for times in job.rank_times),
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
