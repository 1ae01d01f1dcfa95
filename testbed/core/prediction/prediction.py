"""One prediction: a job in, utilization, exposed time by cause, bits and the least rate out. Pure."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from testbed.core.prediction.energy import Power, StepEnergy, bits_by_class
from testbed.core.prediction.job_failures import Failures, UnderFailures
from testbed.core.prediction.library_costs import GLOO
from testbed.core.prediction.network import PAYLOAD_SHARE
from testbed.core.prediction.predicted_job import Job, Tcp
from testbed.core.prediction.required_rate import least_rate_bps
from testbed.core.prediction.similar_lab import SimilarLab
from testbed.core.prediction.similarity import Groups, groups
from testbed.core.prediction.simulator import Parts, Simulated, TooMany
from testbed.core.training.exchange import Exchange
from testbed.core.training.published_quality import PublishedQuality
from testbed.errors import UserError

__all__ = ["Failures", "Job", "Merges", "Power", "Prediction", "SimilarLab", "SingleExchange", "Tcp", "predict"]

_LITTLE = 0.01
"""Where no larger share of a step is exposed, compute limits."""
_CAUSES = {
    "propagation_s": "distance",
    "serialization_s": "rate",
    "queueing_s": "rate",
    "software_s": "software",
    "waiting_s": "the slowest site",
    "tcp_s": "TCP's slow start",
    "unattributed_s": "unattributed time",
}


@dataclass(frozen=True)
class SingleExchange:
    """The largest exchange by itself: bits on its busiest lane at full scale, seconds without overlap, and what slow
    start would add."""

    bits: float
    alone_s: float
    cold_start_s: float


@dataclass(frozen=True)
class Merges:
    """How old updates are where no site waits for them.

    Attributes:
        age_s: median, from the end of an inner step until another site has adopted it; ``age_p99_s``: 99th percentile.
        merge_s: between two merges of a part of the model.
        steps_per_push: inner steps in a push, at the mean; more than declared where pushes are withheld.
        saturated: the fiber carries less than the pushes, so some are withheld.
    """

    age_s: float
    age_p99_s: float
    merge_s: float
    steps_per_push: float
    saturated: bool


@dataclass(frozen=True)
class Prediction:
    """The prediction of one job.

    Attributes:
        outcome: of a mean step in the steady state.
        groups: w kappa, lambda and o / T.
        failures, similar, power: as asked for.
        target, rate_bps: a wanted compute utilization, and the least payload rate that reaches it; None if none does.
    """

    job: Job
    outcome: Simulated
    groups: Groups
    target: float | None = None
    rate_bps: float | None = None
    failures: Failures | None = None
    similar: SimilarLab | None = None
    power: Power | None = None

    @property
    def strategy(self) -> str:
        return self.job.twin.name

    @property
    def utilization(self) -> float:
        return self.outcome.utilization

    @functools.cached_property
    def interval(self) -> tuple[float, float] | None:
        """Utilization with operations at the quartiles of their calibration; None if none were measured."""
        jobs = [self.job.but(library=library) for library in self.job.quartiles]
        if not jobs:
            return None
        utilizations = [self.utilization, *(job.simulate().utilization for job in jobs)]
        return min(utilizations), max(utilizations)

    @property
    def exposed(self) -> Parts:
        return self.outcome.parts

    @property
    def limit(self) -> str:
        """What limits: the cause of the largest part of exposed time, or "compute" where little is exposed."""
        if self.exposed.total_s <= _LITTLE * self.outcome.step_s:
            return "compute"
        causes: dict[str, float] = {}
        for name, cause in _CAUSES.items():
            causes[cause] = causes.get(cause, 0.0) + getattr(self.exposed, name)
        return max(causes, key=lambda cause: causes[cause])

    @property
    def bits_by_fiber(self) -> dict[str, float]:
        """Bits of a mean step at full scale, by direction of a fiber."""
        rates = self.job.network.rates_bps
        moved = self.outcome.lane_bytes
        return {lane: 8 * moved[lane] * self.job.scale for lane in moved if lane in rates}

    @property
    def bits_per_step(self) -> float:
        """Of the busiest direction."""
        return max(self.bits_by_fiber.values(), default=0.0)

    @property
    def peak_bps(self) -> float:
        """Bits of the largest exchange within one step of compute."""
        return 0.0 if self.exchange is None else self.exchange.bits / self.job.step_s

    @functools.cached_property
    def exchange(self) -> SingleExchange | None:
        """The largest exchange between sites; None if there is none."""
        moved = [(self._bits(exchange), exchange) for exchange in self._exchanges]
        bits, largest = max(moved, key=lambda pair: pair[0], default=(0.0, None))
        if largest is None or not bits:
            return None
        cost, slow = self.job.costs.of(largest), self.job.but(tcp=Tcp(self.job.tcp.connections, cold=True)).costs
        rows = 1 if cost.slots is None else math.ceil(largest.parts / cost.slots)
        serial_s = largest.parts * max(cost.lanes.values(), default=0.0)
        alone_s = max(rows * cost.alone_s, cost.alone_s + serial_s * (1 - 1 / largest.parts))
        return SingleExchange(bits, alone_s, slow.of(largest).cold_s)

    @property
    def not_timed(self) -> tuple[str, ...]:
        """Kinds of operations that the library's measurement lacks, so that they have gloo's costs."""
        measured = self.job.library.measured
        return (
            () if measured is None else tuple(sorted({exchange.first.kind for exchange in self._exchanges} - measured))
        )

    @property
    def _exchanges(self) -> list[Exchange]:
        exchanges = {id(transfer.exchange): transfer.exchange for transfer in self.outcome.transfers}
        return [exchange for exchange in exchanges.values() if exchange is not None and exchange.operations]

    def _bits(self, exchange: Exchange) -> float:
        moved, rates = self.job.costs.of(exchange).bytes, self.job.network.rates_bps
        return max(
            (8 * byte_count * exchange.parts * self.job.scale for lane, byte_count in moved.items() if lane in rates),
            default=0.0,
        )

    @property
    def merges(self) -> Merges | None:
        """How old updates are; None where sites wait for them."""
        samples = self.outcome.samples
        if "withheld" not in samples:
            return None
        ages, withheld = sorted(samples.get("age_s", ())), statistics.fmean(samples["withheld"])
        at_s, parts = samples.get("merge_s", ()), int(self.job.twin.values.get("fragments", 1))
        return Merges(
            age_s=statistics.median(ages) if ages else math.inf,
            age_p99_s=ages[min(len(ages) - 1, int(0.99 * len(ages)))] if ages else math.inf,
            merge_s=self.outcome.steps * self.outcome.step_s * parts / len(at_s) if at_s else math.inf,
            steps_per_push=self.job.twin.cycle / (1 - withheld) if withheld < 1 else math.inf,
            saturated=withheld > 0,
        )

    @property
    def under_failures(self) -> UnderFailures | None:
        """What failures leave; None unless asked for."""
        return None if self.failures is None else UnderFailures(self.failures, self.job, self.outcome)

    @property
    def goodput(self) -> float | None:
        """Share of time that is committed compute, if any failure stops all ranks; None without failures."""
        return None if self.under_failures is None else self.under_failures.synchronous

    @property
    def energy(self) -> StepEnergy | None:
        """Joules of a step; None unless asked for."""
        return None if self.power is None else self.power.step(self.job, self.outcome)

    @property
    def quality(self) -> tuple[PublishedQuality, ...]:
        """What others published about the quality of models: no prediction."""
        quality: tuple[PublishedQuality, ...] = vars(type(self.job.twin)).get("quality", ())
        return quality

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in SI units; what is infinite is None. ``rate_bps`` is that of ``target``."""
        job, layout = self.job, self.job.twin.layout
        rate_bps = job.rate_bps if self.target is None else self.rate_bps
        under, energy = self.under_failures, self.energy
        plain = {
            "strategy": self.strategy,
            "options": dict(job.twin.values),
            "utilization": self.utilization,
            "interval": None if self.interval is None else list(self.interval),
            "step_s": self.outcome.step_s,
            "compute_s": self.outcome.compute_s,
            "exposed": asdict(self.exposed),
            "limit": self.limit,
            "bits_per_step": self.bits_per_step,
            "bits_by_fiber": self.bits_by_fiber,
            "peak_bps": self.peak_bps,
            "steady": self.outcome.steady,
            "merges": None if self.merges is None else asdict(self.merges),
            "target": self.target,
            "rate_bps": rate_bps,
            "line_rate_bps": None if rate_bps is None else rate_bps / PAYLOAD_SHARE,
            "goodput": self.goodput,
            "best_checkpoint_interval_s": None if under is None else under.best_interval_s,
            "failures": None if under is None else under.to_dict(),
            "energy_j": None
            if energy is None
            else {"exchange": energy.exchange_j, "waiting": energy.waiting_j, "by_class": dict(energy.by_class)},
            "similar_lab": None
            if self.similar is None
            else asdict(self.similar) | {"cpu_bound": self.similar.cpu_bound},
            "exchange": None if self.exchange is None else asdict(self.exchange),
            "groups": asdict(self.groups),
            "published_quality": [asdict(published) for published in self.quality],
            "job": {
                "sites": job.sites,
                "ranks_per_site": job.ranks_per_site,
                "delay_s": job.delay_s,
                "rate_bps": job.rate_bps,
                "steps_s": dict(job.steps_s),
                "parameters": layout.elements * job.scale,
                "layers": layout.layers,
                "scale": job.scale,
                "library": job.library.name,
                "not_timed": list(self.not_timed),
            },
        }
        finite: dict[str, Any] = _finite(plain)
        return finite


def predict(
    job: Job,
    *,
    target: float | None = None,
    merge_within_s: float | None = None,
    failures: Failures | None = None,
    lab: tuple[float, float, int] | None = None,
    power: Power | None = None,
) -> Prediction:
    """Return the prediction of ``job``.

    Args:
        target: compute utilization to find the least payload rate for; the network's rates do not matter then.
        merge_within_s: with a target, the greatest median age of updates where no site waits for them.
        failures: adds goodput.
        lab: step in seconds, scale and cores of a lab: adds the one that is similar.
        power: adds the energy of a step.

    Raises:
        UserError: impossible inputs, all at once; or a step with too many events.
    """
    wrong = []
    if target is not None and not 0 < target < 1:
        wrong.append(f"--target must be greater than 0 and less than 1, got {target:g}")
    if job.as_published and not job.twin.published:
        wrong.append(f"--as-published simulates what a paper's table shows, and {job.twin.name} is not in it")
    if job.as_published and (power is not None or job.tcp.cold or job.library is not GLOO):
        wrong.append("--as-published simulates one fiber without a library, so it has no energy, costs or slow start")
    waits = job.twin.waits
    if target is not None and not waits and merge_within_s is None:
        wrong.append(f"sites never wait with strategy {job.twin.name}, so --target needs --merge-within, as 60s")
    if merge_within_s is not None and (waits or target is None):
        wrong.append("--merge-within needs --target, and a strategy whose sites never wait")
    wrong += _mistakes_beside(job.tcp, failures, lab, power)
    if wrong:
        raise UserError("; ".join(wrong))
    try:
        rate_bps = None
        if target is not None:
            utilization_at = _utilization_by_rate(job, merge_within_s)
            rate_bps = least_rate_bps(utilization_at, target)
            job = job.but(network=job.network.with_rate((rate_bps or math.inf) / job.scale))
        outcome = job.simulate(keep=True)
    except TooMany as error:
        raise UserError(f"strategy {job.twin.name} cannot be simulated: {error}") from error
    if power is not None and (missing := power.missing(bits_by_class(job, outcome))):
        raise UserError(
            f"--joules-per-bit: expected a value for {' and '.join(missing)} fiber, which the exchange crosses;"
            f" write {missing[0]}=J, or J alone for every fiber"
        )
    similar = None if lab is None else SimilarLab.of(job, *lab)
    similarity = groups(job.costs, job.costs.network, job.twin.cycle, job.step_s, outcome)
    return Prediction(job, outcome, similarity, target, rate_bps, failures, similar, power)


def _utilization_by_rate(job: Job, merge_within_s: float | None) -> Callable[[float], float]:
    """Return the utilization by payload rate; 0 where updates are older than allowed."""

    def utilization(rate_bps: float) -> float:
        at_rate = job.but(network=job.network.with_rate(rate_bps / job.scale))
        outcome = at_rate.simulate()
        if merge_within_s is not None:
            merges = Prediction(at_rate, outcome, Groups(0, 0, 0)).merges
            if merges is None or merges.age_s > merge_within_s:
                return 0.0
        return outcome.utilization

    return utilization


def _finite(value: Any) -> Any:
    """Return ``value`` with None for each infinite number, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(nested) for name, nested in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(nested) for nested in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mistakes_beside(
    tcp: Tcp, failures: Failures | None, lab: tuple[float, float, int] | None, power: Power | None
) -> list[str]:
    wrong = []
    if not tcp.connections >= 1:
        wrong.append(f"--connections must be 1 or more, got {tcp.connections}")
    if not tcp.window_bytes > 0:
        wrong.append(f"--window must be greater than 0, got {tcp.window_bytes:g} bytes")
    if not 0 <= tcp.loss < 1:
        wrong.append(f"--loss must be 0 or more and less than 1, got {tcp.loss:g}")
    if failures is not None:
        wrong += failures.mistakes()
    if power is not None:
        wrong += power.mistakes()
    if lab is not None and not 0 < lab[0] < math.inf:
        wrong.append(f"--lab-step-time must be greater than 0 and finite, got {lab[0]:g} s")
    if lab is not None and not (0 < lab[1] < math.inf and lab[2] >= 1):
        wrong.append(f"--lab-scale must be greater than 0 and finite, got {lab[1]:g}")
    return wrong
