"""What failures leave of a prediction's utilization: how often a job fails, and goodput by how it recovers. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from testbed.core.prediction.duct_routes import DuctRoutes, single_route
from testbed.core.prediction.failure_costs import (
    YEAR_S,
    daly_interval_s,
    failure_rate_hz,
    goodput_elastic,
    goodput_synchronous,
)
from testbed.core.prediction.failure_events import simulate_failures
from testbed.core.prediction.network import length_m
from testbed.core.prediction.predicted_job import Job
from testbed.core.prediction.simulator import Simulated

__all__ = ["Failures", "UnderFailures"]

LEAST_S: Final = 1e-3
EVENT_INTERVALS: Final = 3_000
"""Intervals between checkpoints that are simulated: 20 ms of computing, and within 2 % of the mean."""


@dataclass(frozen=True)
class Failures:
    """Failures of a job and what they cost, in seconds.

    Attributes:
        mtbf_s: mean time between failures of the job, for causes that are not named below.
        checkpoint_s, restart_s: cost of a checkpoint, and of a restart or rejoin.
        interval_s: work between two checkpoints; None for the best, by Daly.
        mtbf_rank_s, mtbf_site_s: of each accelerator, and of each site.
        cuts_per_1000_km_year, repair_s: of ducts; a cut that a bypass leaves without effect stops no job.
        routes: ducts of a topology; None for one fiber of the prediction's delay.
    """

    mtbf_s: float = math.inf
    checkpoint_s: float = 30.0
    restart_s: float = 300.0
    interval_s: float | None = None
    mtbf_rank_s: float = math.inf
    mtbf_site_s: float = math.inf
    cuts_per_1000_km_year: float = 0.0
    repair_s: float = 12 * 3600.0
    routes: DuctRoutes | None = None

    def mistakes(self) -> list[str]:
        """Return what is impossible, by option."""
        means = {"--mtbf": self.mtbf_s, "--mtbf-rank": self.mtbf_rank_s, "--mtbf-site": self.mtbf_site_s}
        costs = {"--checkpoint": self.checkpoint_s, "--repair": self.repair_s}
        if self.interval_s is not None:
            costs["--checkpoint-every"] = self.interval_s
        wrong = [
            f"{name} must be {LEAST_S:g} s or more, got {seconds:g} s"
            for name, seconds in (means | costs).items()
            if not seconds >= LEAST_S
        ]
        wrong += [f"{name} must be finite" for name, seconds in costs.items() if math.isinf(seconds)]
        if not 0 <= self.restart_s < math.inf:
            wrong.append(f"--restart must be 0 or more and finite, got {self.restart_s:g} s")
        if not 0 <= self.cuts_per_1000_km_year < math.inf:
            wrong.append(f"--cuts must be 0 or more and finite, got {self.cuts_per_1000_km_year:g}")
        return wrong

    def routes_of(self, job: Job) -> DuctRoutes:
        return self.routes or single_route(length_m(job.delay_s))

    def rates_hz(self, job: Job) -> dict[str, float]:
        """Return failures per second that stop the job, by cause."""
        cuts_m = self.routes_of(job).separating_m() if job.sites > 1 else 0.0
        return {
            "accelerators": failure_rate_hz(ranks=job.ranks, mtbf_rank_s=self.mtbf_rank_s),
            "sites": failure_rate_hz(sites=job.sites, mtbf_site_s=self.mtbf_site_s),
            "fibers": failure_rate_hz(route_m=cuts_m, cuts_per_1000_km_year=self.cuts_per_1000_km_year),
            "others": 1 / self.mtbf_s,
        }

    def job_mtbf_s(self, job: Job) -> float:
        """Return M: the mean time between failures of the whole job; infinite without any."""
        rate_hz = sum(self.rates_hz(job).values())
        return 1 / rate_hz if rate_hz else math.inf


@dataclass(frozen=True)
class UnderFailures:
    """A prediction under failures.

    ``synchronous``: any failure stops all ranks, which restart from a checkpoint. ``elastic``: a failure stops one
    site, the others redo the step under way. ``decoupled``: a failure stops one site, which redoes its round; the
    others go on. Both of the latter recover from a site that is alive, without checkpoints.
    """

    failures: Failures
    job: Job
    outcome: Simulated

    @property
    def mtbf_s(self) -> float:
        return self.failures.job_mtbf_s(self.job)

    @property
    def best_interval_s(self) -> float:
        return daly_interval_s(self.failures.checkpoint_s, self.mtbf_s)

    @property
    def interval_s(self) -> float:
        return self.failures.interval_s or self.best_interval_s

    @property
    def synchronous(self) -> float:
        failures = self.failures
        if math.isinf(self.interval_s):
            return self.outcome.utilization
        return goodput_synchronous(
            self.outcome.utilization, failures.checkpoint_s, self.interval_s, failures.restart_s, self.mtbf_s
        )

    def by_events(self) -> float | None:
        """Return ``synchronous`` by events, a checkpoint after a whole number of steps; None if it hardly ever ends."""
        failures, mtbf_s = self.failures, self.mtbf_s
        if math.isinf(mtbf_s) or self.interval_s + failures.checkpoint_s + failures.restart_s > 3 * mtbf_s:
            return None
        interval_s = max(1, round(self.interval_s / self.outcome.step_s)) * self.outcome.step_s
        if interval_s > 3 * mtbf_s:
            return None
        simulated = simulate_failures(
            EVENT_INTERVALS * interval_s, checkpoint_s=failures.checkpoint_s, interval_s=interval_s,
            restart_s=failures.restart_s, mtbf_s=mtbf_s, seed=1,
        )  # fmt: skip
        return self.outcome.utilization * simulated.goodput

    @property
    def elastic(self) -> float:
        """All sites lose half a step at each failure of any."""
        return self._one_site(self.job.sites * self.outcome.step_s / 2)

    @property
    def decoupled(self) -> float:
        """The site that failed loses half a round."""
        return self._one_site(self.job.twin.cycle * self.outcome.step_s / 2)

    def _one_site(self, lost_s: float) -> float:
        sites = self.job.sites
        return goodput_elastic(self.outcome.utilization, sites, sites * self.mtbf_s, self.failures.restart_s, lost_s)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in seconds and shares."""
        failures, routes = self.failures, self.failures.routes_of(self.job)
        rates = failures.rates_hz(self.job)
        worst = routes.availability(failures.cuts_per_1000_km_year, failures.repair_s)
        return {
            "mtbf_s": self.mtbf_s,
            "failures_per_year": {cause: rate * YEAR_S for cause, rate in rates.items()},
            "interval_s": self.interval_s,
            "goodput_synchronous": self.synchronous,
            "goodput_synchronous_by_events": self.by_events(),
            "goodput_elastic": self.elastic,
            "goodput_decoupled": self.decoupled,
            "cuts_per_year": routes.total_m() / 1e6 * failures.cuts_per_1000_km_year,
            "route_availability": worst.share,
            "route_down_s_per_year": (1 - worst.share) * YEAR_S,
            "routes": worst.routes,
            "routes_between": list(worst.between),
        }
