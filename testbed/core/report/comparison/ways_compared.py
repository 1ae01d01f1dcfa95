"""Several ways of training compared: the same job by each of them, for each seed; paired differences with their spread.

Between two seeds a loss differs by more than between two ways of training. So each run is compared with the run of the
first way that has the same seed. From three seeds on, the mean of these differences has a 95 % interval; of fewer seeds
it has none. Held-out losses are also compared at equal tokens, equal time and equal bytes (``equal_budgets.py``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from testbed.core.analysis.critical_path import Parts
from testbed.core.analysis.declared_steps import CPU_BOUND, HELD
from testbed.core.analysis.equal_budgets import BUDGETS, equal_budget, first_evaluated, loss_within
from testbed.core.analysis.heldout import HeldOut, held_out, payload_until
from testbed.core.analysis.inside_noise import Range
from testbed.core.analysis.job_twin import twin_of
from testbed.core.analysis.paired_interval import paired_interval
from testbed.core.fields import json_values
from testbed.core.records.run_record import RunData
from testbed.core.report import formats, noise_section
from testbed.core.report.comparison.run_side import side_of_run, stalled_share
from testbed.core.report.comparison.side import Quantity, Side
from testbed.core.report.sections import declared_section
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.twin import Twin

__all__ = ["VERSION", "Paired", "WayRun", "WaysCompared", "budget_text", "loss_id", "to_json", "way_of_run"]

VERSION = 1

CORE_WAIT: Final = 0.1
"""Share of compute, chosen by us. From it on, times of compute depend on what else the cores do."""


@dataclass(frozen=True)
class WayRun:
    """One run: ``way`` as it was written, such as ``diloco:every=50``; its quantities by id; its mean step by part."""

    way: str
    seed: int
    side: Side
    heldout: HeldOut
    path: Parts | None
    quantities: Mapping[str, Quantity]

    def value(self, id: str) -> float | None:
        found = self.quantities.get(id)
        return found.value if found else None

    def reach(self, id: str) -> Range:
        """Return the range of a known value within the uncertainty by stalls of the host."""
        quantity = self.quantities[id]
        value = quantity.value or 0.0
        return quantity.uncertainty or Range(value, value)


@dataclass(frozen=True)
class Paired:
    """Differences of one quantity to the baseline's run of the same seed: by seed, their mean, least and greatest.

    ``uncertainty`` is the range of the mean within the uncertainty by stalls of the host; None without any.
    ``interval`` is the 95 % interval of the mean; None with too few seeds.
    """

    way: str
    id: str
    differences: Mapping[int, float]
    uncertainty: Range | None = None

    @property
    def within_noise(self) -> bool:
        """Whether stalls of the host may have caused the difference."""
        return self.uncertainty is not None and self.uncertainty.low <= 0 <= self.uncertainty.high

    @property
    def interval(self) -> Range | None:
        return paired_interval(tuple(self.differences.values()))

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences.values())

    @property
    def low(self) -> float:
        return min(self.differences.values())

    @property
    def high(self) -> float:
        return max(self.differences.values())


@dataclass(frozen=True)
class WaysCompared:
    """The runs so far, in the order in which they were made; they gain their losses at equal budgets here.

    Attributes:
        ways: in the order in which they were named; the first is the baseline.
        seeds: of each way.
        ended: why there are fewer runs than planned; empty if there are not.
        failed: way, seed and reason of each run that failed before its first step: it has nothing to compare.
    """

    topology: str
    ways: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[WayRun, ...]
    ended: str = ""
    failed: tuple[tuple[str, int, str], ...] = ()

    def __post_init__(self) -> None:
        budgets = self.budgets
        runs = tuple(replace(run, quantities={**run.quantities, **_losses_within(run, budgets)}) for run in self.runs)
        object.__setattr__(self, "runs", runs)

    @property
    def budgets(self) -> Mapping[str, float]:
        """The budget by column of the held-out curve, as the shortest run that did not end early has it."""
        early = self.ended_early
        curves = [run.heldout for run in self.runs if run not in early]
        found = {column: equal_budget(curves, column) for column in BUDGETS}
        return {column: budget for column, budget in found.items() if budget}

    @property
    def baseline(self) -> str:
        return self.ways[0]

    @property
    def planned(self) -> int:
        return len(self.ways) * len(self.seeds)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on conditions: that compute is declared, what that stands for, and where the cores fell short."""
        reports = [(run.way, run.side.report) for run in self.runs if run.side.report is not None]
        declared = dict.fromkeys(
            declared_section.note(report.declared, report.topology) for _, report in reports if report.declared
        )
        late = dict.fromkeys(way for way, report in reports if report.declared and report.declared.verdict != HELD)
        bound = f"{CPU_BOUND}: steps of {', '.join(late)} took longer than declared; their exposed times are affected."
        return (
            *self._incomplete(),
            *declared,
            *([bound] if late else []),
            *self._cpu_bound(),
            *self._noisy(),
            *self._unlike(),
            *self._unevaluated(),
        )

    @property
    def ended_early(self) -> tuple[WayRun, ...]:
        """Runs that did not commit their last step."""
        known = [(it, it.side.report.training) for it in self.runs if it.side.report is not None]
        return tuple(it for it, of in known if of.steps_planned and of.steps_committed < of.steps_planned)

    def _incomplete(self) -> Iterator[str]:
        """Yield a sentence on runs that are missing, and one on those that ended before their last step."""
        for way, seed, why in self.failed:
            yield f"Failed before its first step: {_run(way, seed)} ({why})."
        had = {(it.way, it.seed) for it in self.runs} | {(way, seed) for way, seed, _ in self.failed}
        if missing := [_run(way, seed) for seed in self.seeds for way in self.ways if (way, seed) not in had]:
            yield f"Missing: {', '.join(missing)}{f' ({self.ended})' if self.ended else ''}."
        early = []
        for it in self.ended_early:
            assert it.side.report is not None
            done = it.side.report.training
            early.append(f"{_run(it.way, it.seed)} after step {done.steps_committed} of {done.steps_planned}")
        if early:
            yield f"Ended early: {', '.join(early)}; what is said of them is of their steps until then."

    def _cpu_bound(self) -> Iterator[str]:
        """Yield a sentence on real compute whose ranks waited for cores: it is the machine's, not the strategy's."""
        waits = {way: wait for way in self.ways if (wait := self.mean(way, "core_wait")) is not None}
        if max(waits.values(), default=0.0) < CORE_WAIT:
            return
        times = {way: time_s for way in waits if (time_s := self.mean(way, "compute_s")) is not None}
        steps = ", ".join(
            f"{way} {formats.duration(time_s)} (waiting: {formats.small_share(waits[way])})"
            for way, time_s in times.items()
        )
        # Rounded up to 10 ms. Half of the steps take longer than their median, so it is the least to declare.
        declared_s = math.ceil(100 * max(times.values())) / 100
        yield (
            f"{CPU_BOUND}: compute is real, and ranks waited for a core. Compute of a step: {steps}. Times, utilization"
            " and goodput depend on what else the cores do. Declare compute to compare strategies:"
            f" --compute real:{declared_s * 1e3:.0f}ms or more."
        )

    def _unevaluated(self) -> Iterator[str]:
        """Yield a sentence on each budget that a run spent before it evaluated anything."""
        for column, budget in self.budgets.items():
            firsts: dict[str, list[float]] = {}
            for run in self.runs:
                first = first_evaluated(run.heldout, column)
                if first is not None and first > budget:
                    firsts.setdefault(run.way, []).append(first)
            if firsts:
                late = ", ".join(
                    way
                    + (f" ({len(late_s)} of {len(self.seeds)} seeds)" if len(late_s) < len(self.seeds) else "")
                    + f" after {budget_text(column, max(late_s))}"
                    for way, late_s in firsts.items()
                )
                yield (
                    f"No loss at equal {BUDGETS[column]} ({budget_text(column, budget)}) where the first evaluation"
                    f" came later: {late}. Nothing is extrapolated; raise --evaluations."
                )

    def _noisy(self) -> Iterator[str]:
        """Yield a sentence on runs on a noisy host, where small differences do not count."""
        reports = ((_run(run.way, run.seed), run.side.report) for run in self.runs)
        noises = ((name, report.noise) for name, report in reports if report is not None)
        noisy = {name: noise for name, noise in noises if noise is not None and noise.noisy}
        if noisy:
            worst = max(noisy, key=lambda name: noisy[name].stalled_share)
            among = "" if len(noisy) == 1 else f", the worst of {len(noisy)} runs on a noisy host"
            yield f"{worst}{among}: {noise_section.sentence(noisy[worst])}"

    def _unlike(self) -> Iterator[str]:
        """Yield a sentence on ways whose steps have other tokens than the baseline's."""
        base = self._tokens_of_a_step(self.baseline)
        found = {way: tokens / base for way in self.ways if base and (tokens := self._tokens_of_a_step(way))}
        if others := [f"{way} {ratio:.3g} times" for way, ratio in found.items() if abs(ratio - 1) > 1e-3]:
            yield (
                f"Tokens differ: in a step, {', '.join(others)} as many as {self.baseline}. Compare over time or"
                " tokens, not over steps."
            )

    def _tokens_of_a_step(self, way: str) -> float | None:
        for it in self.of(way):
            training = None if it.side.report is None else it.side.report.training
            if training and training.tokens and training.steps_committed:
                return training.tokens / training.steps_committed
        return None

    @property
    def verdict(self) -> str:
        """fail if a run failed; unknown if one has no verdict or is missing; else pass."""
        verdicts = [it.side.verdict for it in self.runs]
        if "fail" in verdicts or self.failed:
            return "fail"
        return "pass" if verdicts.count("pass") == self.planned else "unknown"

    def of(self, way: str) -> tuple[WayRun, ...]:
        return tuple(it for it in self.runs if it.way == way)

    def mean(self, way: str, id: str) -> float | None:
        """Return the mean over seeds; None if no run has the quantity."""
        values = [value for it in self.of(way) if (value := it.value(id)) is not None]
        return statistics.fmean(values) if values else None

    def paired(self, way: str, id: str) -> Paired | None:
        """Return the differences to the baseline; None for the baseline itself, and without a common seed."""
        if way == self.baseline:
            return None
        baselines = {run.seed: run for run in self.of(self.baseline)}
        pairs = {run.seed: (run, baselines[run.seed]) for run in self.of(way) if run.seed in baselines}
        differences = {
            seed: value - base_value
            for seed, (run, base) in pairs.items()
            if (value := run.value(id)) is not None and (base_value := base.value(id)) is not None
        }
        if not differences:
            return None
        reaches = [(pairs[seed][0].reach(id), pairs[seed][1].reach(id)) for seed in differences]
        uncertainty = Range(
            statistics.fmean(reach.low - base_reach.high for reach, base_reach in reaches),
            statistics.fmean(reach.high - base_reach.low for reach, base_reach in reaches),
        )
        return Paired(way, id, differences, uncertainty if uncertainty.low < uncertainty.high else None)

    def mean_path(self, way: str) -> Parts | None:
        """Return the mean step by part, over seeds; None if no run has it."""
        found = [it.path for it in self.of(way) if it.path is not None]
        return sum(found, Parts()) * (1 / len(found)) if found else None

    @property
    def ids(self) -> tuple[str, ...]:
        """The quantities that any run has, in their order."""
        return tuple(dict.fromkeys(id for it in self.runs for id, of in it.quantities.items() if of.value is not None))

    def quantity(self, id: str) -> Quantity:
        """Return one of the quantity, for its name and unit."""
        return next(it.quantities[id] for it in self.runs if id in it.quantities)


def _run(way: str, seed: int) -> str:
    return f"{way} of seed {seed}"


def loss_id(column: str) -> str:
    """Return the id of the held-out loss at the equal budget of a column: ``loss_at_equal_tokens``."""
    return f"loss_at_equal_{BUDGETS[column]}"


def budget_text(column: str, budget: float) -> str:
    """Return a budget with its unit, ``1 228 800 tokens``, ``72.4 s`` or ``7.1 MB``."""
    if column == "tokens":
        return f"{formats.count(budget)} tokens"
    return formats.duration(budget) if column == "t_s" else formats.size(budget)


def _losses_within(run: WayRun, budgets: Mapping[str, float]) -> dict[str, Quantity]:
    return {
        loss_id(column): Quantity(
            loss_id(column),
            f"held-out loss at equal {BUDGETS[column]}",
            "nats",
            loss_within(run.heldout, column, budget),
        )
        for column, budget in budgets.items()
    }


def way_of_run(way: str, seed: int, name: str, folder: str, run: RunData) -> WayRun:
    """Return what a run says of a way of training; every file of its directory may be missing."""
    side = side_of_run(name, folder, run)
    report = side.report
    assert report is not None
    mtu = {link.name: link.mtu for link in run.topology.links} if run.topology else {}
    began_t = min((log.jobs[0].t for log in run.ranks if log.jobs), default=None)
    curve = held_out(run.ranks, run.fibers, mtu, began_t)
    path = report.critical_path.mean if report.critical_path else None
    listed = _quantities(run, side, curve, path, mtu)
    return WayRun(way, seed, side, curve, path, {it.id: it for it in listed})


def _quantities(
    run: RunData, side: Side, curve: HeldOut, path: Parts | None, mtu: Mapping[str, int]
) -> Iterator[Quantity]:
    report = side.report
    assert report is not None
    training = report.training
    # Of a job that did not reach its last step it is not the loss after as many tokens as the others'.
    whole = bool(curve.step) and curve.step[-1] == training.steps_planned
    yield Quantity("heldout_loss", "held-out loss", "nats", curve.loss[-1] if whole else None)
    known = {it.id: it for it in side.sections.get("figures", ())}
    for id in ("compute_utilization", "goodput", "tokens_per_s"):
        if id in known:
            yield replace(known[id], name="tokens per second") if id == "tokens_per_s" else known[id]
    evaluated_s = report.rank_seconds.total.evaluation_s if report.rank_seconds else 0.0
    wall_s, ranks = training.wall_s, training.world_size or 1
    stalled = stalled_share(report)

    def time(id: str, name: str, seconds: float | None, of_s: float | None) -> Quantity:
        """Return a time; ``of_s`` is the time in which stalls count."""
        by_s = stalled * (of_s or 0.0)
        uncertainty = Range(max(0.0, seconds - by_s), seconds + by_s) if seconds is not None and by_s else None
        return Quantity(id, name, "s", seconds, uncertainty=uncertainty)

    trained_s = None if wall_s is None else wall_s - evaluated_s / ranks
    step_s = path.total_s if path else None
    yield time("trained_s", "time of training", trained_s, wall_s)
    yield time("step_s", "step, mean", step_s, step_s)
    yield time("exposed_s", "exposed per step", path.exposed_s if path else None, step_s)
    yield from _compute(run)
    measured = _measured_bytes(run, mtu)
    tokens = training.tokens
    yield Quantity("fiber_bytes_per_token", "bytes per token", "B", measured / tokens if measured and tokens else None)
    twin = twin_of(run.ranks, run.info.workload)
    theory = _theory_bytes_per_token(twin) if twin and training.steps_committed == training.steps_planned else None
    yield Quantity("theory_bytes_per_token", "by theory", "B", theory)
    if "recovery_s" in known:
        yield replace(known["recovery_s"], name="recovery")
    if "steps_lost" in known:
        yield known["steps_lost"]


def _compute(run: RunData) -> Iterator[Quantity]:
    """Yield compute of a step, and of real compute the share in which ranks waited for a core.

    Both are medians, so that the steps of a fault do not count. Computing takes as much CPU time as it lasts, on a core
    of its own. Threads beside it take CPU time too, so the share is at least that.
    """
    steps = [step for log in run.ranks for step in log.steps]
    compute_s = statistics.median(step.compute_s for step in steps) if steps else None
    yield Quantity("compute_s", "compute per step, median", "s", compute_s)
    waits = [
        max(0.0, 1 - step.cpu_s / step.compute_s)
        for step in steps
        if step.cpu_s is not None and step.declared_s is None and step.compute_s > 0
    ]
    yield Quantity(
        "core_wait", "compute waiting for a core, at least", "share", statistics.median(waits) if waits else None
    )


def _measured_bytes(run: RunData, mtu: Mapping[str, int]) -> float | None:
    """Return the payload that all directions carried until the job had ended."""
    times = [record.t for log in run.ranks for record in log.ends] + [it.t_end for log in run.ranks for it in log.steps]
    if not run.fibers or not times:
        return None
    # A direction that was read last before the job's end carried a little more: the last sample has it.
    crossed = payload_until(run.fibers, mtu)
    # What was timed before the first step is not the job's.
    before = crossed(min((it.t_begin for log in run.ranks for it in log.steps), default=0.0)) or 0.0
    all_of_it = crossed(max(max(times), run.fibers[-1].t))
    return None if all_of_it is None else all_of_it - before


def _theory_bytes_per_token(twin: Twin) -> float | None:
    """Return what the twin's operations send between sites, over the tokens of all ranks."""
    layout = twin.layout
    tokens = layout.tokens * sum(twin.inner_steps(layout.steps, rank) for rank in range(layout.world_size))
    if not tokens:
        return None
    per_step: dict[tuple[object, ...], float] = {}
    total = 0.0
    for step in range(layout.steps + 2):
        operations = tuple(twin.operations(step))
        if operations not in per_step:
            per_step[operations] = sum(site_bytes(operations, layout.sites).values())
        total += per_step[operations]
    return total / tokens


def to_json(found: WaysCompared) -> dict[str, object]:
    """Return plain JSON values; a number that is not finite is null. docs/reference.md describes them."""
    document = json_values(
        {
            "version": VERSION,
            "topology": found.topology,
            "ways": found.ways,
            "baseline": found.baseline,
            "seeds": found.seeds,
            "planned": found.planned,
            "verdict": found.verdict,
            "ended": found.ended,
            "failed": [{"way": way, "seed": seed, "reason": why} for way, seed, why in found.failed],
            "notes": found.notes,
            "budgets": {BUDGETS[column]: budget for column, budget in found.budgets.items()},
            "quantities": {id: {"name": found.quantity(id).name, "unit": found.quantity(id).unit} for id in found.ids},
            "means": {way: {id: found.mean(way, id) for id in found.ids} for way in found.ways},
            "differences": [_plain(it) for it in _all_paired(found)],
            "path": {way: found.mean_path(way) for way in found.ways},
            "runs": [
                {
                    "way": it.way,
                    "seed": it.seed,
                    "name": it.side.name,
                    "folder": it.side.folder,
                    "verdict": it.side.verdict,
                    "headline": it.side.headline,
                    "values": {id: it.value(id) for id in found.ids},
                    "heldout": it.heldout,
                    "path": it.path,
                }
                for it in found.runs
            ],
        }
    )
    assert isinstance(document, dict)
    return document


def _all_paired(found: WaysCompared) -> Iterable[Paired]:
    pairs: Sequence[Paired | None] = [found.paired(way, id) for way in found.ways for id in found.ids]
    return [it for it in pairs if it is not None]


def _plain(pair: Paired) -> dict[str, object]:
    return {
        "way": pair.way,
        "id": pair.id,
        "by_seed": pair.differences,
        "mean": pair.mean,
        "low": pair.low,
        "high": pair.high,
        "interval": pair.interval,
        "uncertainty": pair.uncertainty,
        "within_noise": pair.within_noise,
    }
