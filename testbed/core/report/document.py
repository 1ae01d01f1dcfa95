"""The report as a value: the types that ``build.py`` fills and ``to_json`` turns into report.json.

Times that end in ``_s`` and refer to the job (``began_s``, ``t_s``) count from the moment its first rank started.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from testbed.core.analysis.costs.predicted_run import PredictedRun
from testbed.core.analysis.declared_steps import DeclaredSteps
from testbed.core.analysis.noise.host_noise import NoiseSummary
from testbed.core.analysis.noise.inside_noise import Range
from testbed.core.analysis.rank_times import RankTime
from testbed.core.analysis.scraped_metrics import ScrapedMetrics
from testbed.core.analysis.wire.wire_check import WireCut, WireVerdict
from testbed.core.analysis.wire.wire_directions import DirectionBytes
from testbed.core.certification.certificate import Certificate
from testbed.core.checkers.finding import Checker
from testbed.core.experiment.steady import SteadyCheck
from testbed.core.fields import text
from testbed.core.json_form import JsonForm, Keywords, Schema
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats
from testbed.core.report.answers import Answer
from testbed.core.report.certificate_document import CertificateDocument
from testbed.core.report.open_metrics import OpenMetric
from testbed.core.report.sections.critical_path_section import PathSeries
from testbed.core.report.sections.events_section import EventLine
from testbed.core.report.sections.faults_section import FaultLine, gap_words
from testbed.core.report.sections.fidelity_section import Fidelity, Machine
from testbed.core.report.sections.in_force_section import InForceLine
from testbed.core.report.sections.program_section import ProgramSteps
from testbed.core.report.sections.rank_seconds_section import TimeShares
from testbed.core.report.sections.restarts_section import AttemptLine
from testbed.core.report.sections.steady_section import Steady
from testbed.core.report.sections.traffic_section import TrafficLine
from testbed.core.topology.model import Link, Site, Topology, topology_to_dict

__all__ = ["VERSION", "FiberSeries", "Report", "StepSeries", "Training", "json_schema", "to_json"]

VERSION = 1


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
    """Run by some rank, and not in the final outer parameters."""
    tokens: int
    """Committed, over all ranks; of a launched program, those after its first print."""
    tokens_per_s: float | None
    median_step_s: float | None
    """Fault-free."""
    wall_s: float | None
    """Of a launched program, from the first step that its ranks print to the last, or to its end if it failed or
    stopped printing."""
    train_loss_first: float | None
    """Mean of the first 10 committed steps."""
    train_loss_last: float | None
    """Mean of the last 10 committed steps."""
    goodput: float | None
    """(productive + fault-free exposed communication) / (world size x wall time), 0..1; of a launched program, its
    steps at their fault-free pace / wall time."""
    compute_utilization: Annotated[float | None, Keywords(minimum=0, maximum=1)]
    """Compute / (compute + exposed)."""
    compute_s: float | None
    """Rank-seconds; null of a launched program, which does not tell."""
    peer_wait_s: float | None
    """Rank-seconds; null of a launched program, which does not tell."""
    network_s: float | None
    """Rank-seconds; null of a launched program, which does not tell."""
    recovery_s: float | None
    """Longest gap between commits around a fault, at least this long if recovery_open; null without a fault."""
    recovery_open: bool = False
    """No step came after one of the faults."""
    died: bool = False
    """A rank failed and nothing restarted the job: goodput is at most what it was until then."""
    recovery_at_most: bool = False
    """Recovery_s is an upper bound, as the program prints too seldom to tell."""
    strategy: str = ""
    """Way of training across sites with its options, as in diloco:every=50; empty if unknown."""

    @property
    def goodput_words(self) -> str:
        """Goodput with the sign of a bound: a job that died has at most that."""
        share = formats.share(self.goodput)
        return f"<= {share}" if self.died and self.goodput is not None else share

    @property
    def recovery_words(self) -> str:
        """Recovery with the sign of a bound where it is one."""
        return gap_words(self.recovery_s, self.recovery_open, self.recovery_at_most)


@dataclass(frozen=True)
class StepSeries:
    """Committed steps in the order of time, one list per column.

    Of a program that prints every n-th step, a row stands for the steps since the row before: ``covers`` of them, and
    ``duration_s`` is their mean. The first print only begins the count.
    """

    step: tuple[int, ...] = ()
    t_s: tuple[float, ...] = ()
    duration_s: tuple[float, ...] = ()
    """Since the row before; the mean where a row covers several steps."""
    train_loss: tuple[float | None, ...] = ()
    tokens: tuple[int, ...] = ()
    """Of all ranks in that step, or in all that the row covers."""
    covers: tuple[int, ...] = ()
    """Steps that each row stands for: 1, or more of a program that prints every n-th step."""

    @property
    def interval_s(self) -> tuple[float, ...]:
        """The whole time of each row's steps."""
        return tuple(steps * mean_s for steps, mean_s in zip(self.covers, self.duration_s, strict=True))


@dataclass(frozen=True)
class FiberSeries:
    """Mean rate between two samples, in bits per second of L2 bytes, at the later one's time."""

    direction: str
    t_s: tuple[float, ...]
    bps: tuple[float, ...]


@dataclass(frozen=True)
class Report:
    """The result of a run. ``verdict`` is pass, fail or unknown; ``answers`` give the reasons, most important first."""

    version: Annotated[int, Keywords(const=VERSION)]
    verdict: Annotated[str, Keywords(enum=["pass", "fail", "unknown"])]
    headline: str
    answers: tuple[Answer, ...]
    run: RunInfo
    duration_s: float | None
    """The whole run, with building and removing the lab."""
    training: Training
    faults: tuple[FaultLine, ...]
    certificate: Certificate | None
    """As certificate.json."""
    fidelity: tuple[Fidelity, ...]
    """Under load, while the job ran."""
    wire: WireVerdict
    topology: Topology | None
    events: tuple[EventLine, ...]
    steps: StepSeries
    fibers: tuple[FiberSeries, ...]
    ranks: tuple[RankTime, ...]
    machine: Machine
    steady: tuple[Steady, ...] = ()
    """Conditions of the steady state."""
    attempts: tuple[AttemptLine, ...] = ()
    """Runs of the job from its beginning, or a checkpoint, until it failed or ended."""
    in_force: tuple[InForceLine, ...] = ()
    """What was in force on each direction between two faults, and who made it."""
    checkers: tuple[Checker, ...] = ()
    """Was what was trained right? Empty if no rank recorded for them; exchanges and served are missing where there are
    none."""
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
    """Files that the run directory lacks."""
    malformed: Mapping[str, int] = field(default_factory=dict)
    """Lines that could not be read, by file."""
    open_metrics: Mapping[str, OpenMetric] = field(default_factory=dict)
    """Metrics of which only a bound is known, as the job did not come back, or as the program prints seldom."""
    noise: NoiseSummary | None = None
    """The host's stalls during the job; None where they were not recorded."""
    uncertainty: Mapping[str, Annotated[Range, Keywords(items={"type": ["number", "null"]})]] = field(
        default_factory=dict
    )
    """The ranges of figures that stalls make uncertain, by name."""

    @property
    def is_program(self) -> bool:
        """Whether the run is of a launched program, which keeps no records of its own."""
        return bool(text(self.run.workload, "command"))

    @property
    def has_steps(self) -> bool:
        return self.training.steps_committed > 0

    @property
    def scale(self) -> float:
        """The topology's scale; 1 of a run without a topology."""
        return self.topology.scale if self.topology else 1.0

    @property
    def shortcomings(self) -> tuple[str, ...]:
        """Sentences about the files that were missing or could not be read."""
        # A launched program has no step records to miss.
        missing = [name for name in self.missing if not (self.is_program and name.startswith("ranks/"))]
        return (
            *((f"Missing from the run directory: {', '.join(missing)}.",) if missing else ()),
            *(
                f"{formats.plural(lines, 'line')} of {name} could not be read."
                for name, lines in self.malformed.items()
            ),
        )

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


def _steady_check(check: SteadyCheck) -> dict[str, object]:
    """Return a condition with its violations as (began, ended, measured)."""
    violations = [(violation.began_t, violation.ended_t, violation.measured) for violation in check.violations]
    return {**vars(check), "violations": violations}


FORM: Final = JsonForm(
    derived={
        DirectionBytes: ("ratio", "ok"),
        WireCut: ("ok",),
        DeclaredSteps: ("verdict",),
        PredictedRun: ("residual", "residual_uncertainty"),
    },
    omitted={FaultLine: ("scale",), Topology: ("origins",), SteadyCheck: ("samples",)},
    optional={Site: ("fabric_bps", "oversubscription"), Topology: ("congestion",)},
    extensible=frozenset({Link}),
    written={
        Certificate: (Certificate.to_dict, CertificateDocument),
        Topology: (topology_to_dict, Topology),
        SteadyCheck: (_steady_check, dict[str, object]),
    },
)


def to_json(report: Report) -> dict[str, object]:
    """Return plain JSON values; a number that is not finite is null."""
    document: dict[str, object] = FORM.values(report)
    return document


def json_schema() -> Schema:
    """Return the JSON schema of report.json."""
    description = (
        "SI units. Times since the beginning of the job end in _s, as durations do. Unknown values are null. Later"
        " versions may add properties but remove none."
    )
    return FORM.document(Report, f"Report of a testbed run, version {VERSION}", description)
