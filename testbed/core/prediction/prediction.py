"""One prediction: checked inputs in, utilization, exposed time, bits and the least rate out. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.energy import exchange_j, waiting_j
from testbed.core.prediction.failure_costs import daly_interval_s, goodput_synchronous
from testbed.core.prediction.inputs import PAYLOAD_SHARE, Inputs, mistakes, option
from testbed.core.prediction.machine_limits import cpu_share
from testbed.core.prediction.event_heap import TooMany
from testbed.core.prediction.plans import predict_events
from testbed.core.prediction.predicted_outcome import Outcome
from testbed.core.prediction.required_rate import least_rate_bps
from testbed.core.prediction.similarity import Groups, full_scale, groups
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.prediction.tcp_limits import usable_rate_bps
from testbed.errors import UnknownName, UserError

__all__ = ["Failures", "Power", "Prediction", "SimilarLab", "Tcp", "predict"]

@dataclass(frozen=True)
class Tcp:
    """What TCP allows the connections of one exchange: together, in bytes of window, and in loss of packets."""

    connections: int = 1
    window_bytes: float = math.inf
    loss: float = 0.0

    def usable(self, inputs: Inputs) -> Inputs:
        """Return ``inputs`` with the rate that these connections reach."""
        return inputs.but(
            rate_bps=usable_rate_bps(
                inputs.rate_bps,
                2 * inputs.delay_s,
                connections=self.connections,
                window_bytes=self.window_bytes,
                loss=self.loss,
            )
        )


@dataclass(frozen=True)
class Failures:
    """Failures of a job that any of them stops: mean time between them, cost of a checkpoint, of a restart, in seconds.

    ``interval_s``: work between two checkpoints; None for the best, by Daly.
    """

    mtbf_s: float
    checkpoint_s: float
    restart_s: float
    interval_s: float | None = None

    @property
    def best_interval_s(self) -> float:
        return daly_interval_s(self.checkpoint_s, self.mtbf_s)

    def goodput(self, utilization: float) -> float:
        """Return the share of time that is committed compute."""
        interval_s = self.interval_s or self.best_interval_s
        return goodput_synchronous(utilization, self.checkpoint_s, interval_s, self.restart_s, self.mtbf_s)


@dataclass(frozen=True)
class Power:
    """What energy costs: joules per bit that a site sends over its fiber, watts of an accelerator that waits."""

    joules_per_bit: float = 0.0
    idle_watts: float = 0.0

    def step_j(self, inputs: Inputs, outcome: Outcome) -> tuple[float, float]:
        """Return the joules of a step's bits and of its waiting, over all sites and ranks."""
        sent = outcome.bits_per_step * inputs.sites
        return (
            exchange_j({"fiber": sent}, {"fiber": self.joules_per_bit}),
            waiting_j(outcome.exposed.total_s, inputs.ranks, self.idle_watts),
        )


@dataclass(frozen=True)
class SimilarLab:
    """The lab that has the same utilization: its step, one-way delay, fiber, payload rate, and the CPU that it needs.

    ``cpu_share``: of all its cores beside compute; above 1 the lab is CPU-bound and shows less.
    """

    step_s: float
    delay_s: float
    length_m: float
    rate_bps: float
    scale: float
    cpu_share: float

    @classmethod
    def of(cls, inputs: Inputs, step_s: float, scale: float, cores: int) -> SimilarLab:
        """Return the lab whose step takes ``step_s``, with payloads divided by ``scale``, on ``cores`` cores."""
        lab = full_scale(inputs.delay_s, inputs.rate_bps, inputs.step_s, step_s, 1 / scale)  # the way back
        return cls(step_s, lab.delay_s, lab.length_m, lab.rate_bps, scale, cpu_share(inputs.ranks, step_s, cores))


@dataclass(frozen=True)
class Prediction:
    """What the numbers say of one strategy.

    Attributes:
        outcome: by events where the closed form leaves something out, else by the closed form.
        closed: by the closed form.
        groups: w kappa, lambda and o / T.
        failures, similar: as asked for.
        target, rate_bps: a wanted compute utilization, and the least payload rate that reaches it; None if none does.
    """

    strategy: str
    inputs: Inputs
    pattern: Pattern
    outcome: Outcome
    closed: Outcome
    groups: Groups
    target: float | None = None
    rate_bps: float | None = None
    failures: Failures | None = None
    similar: SimilarLab | None = None
    power: Power | None = None

    @property
    def utilization(self) -> float:
        return self.outcome.utilization

    @property
    def goodput(self) -> float | None:
        """Share of time that is committed compute; None without failures."""
        return None if self.failures is None else self.failures.goodput(self.utilization)

    @property
    def energy_j(self) -> tuple[float, float] | None:
        """Joules of a step's bits and of its waiting, over all sites and ranks; None unless asked for."""
        return None if self.power is None else self.power.step_j(self.inputs, self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in SI units; what is infinite is None. ``rate_bps`` is that of ``target``."""
        rate_bps = self.inputs.rate_bps if self.target is None else self.rate_bps
        plain = {
            "strategy": self.strategy,
            "utilization": self.utilization,
            **self.outcome.to_dict(),
            "target": self.target,
            "rate_bps": rate_bps,
            "line_rate_bps": None if rate_bps is None else rate_bps / PAYLOAD_SHARE,
            "goodput": self.goodput,
            "best_checkpoint_interval_s": None if self.failures is None else self.failures.best_interval_s,
            "energy_j": None
            if self.energy_j is None
            else dict(zip(("exchange", "waiting"), self.energy_j, strict=True)),
            "similar_lab": None if self.similar is None else asdict(self.similar),
            "closed_form": self.closed.to_dict(),
            "groups": asdict(self.groups),
            "pattern": asdict(self.pattern),
            "inputs": asdict(self.inputs),
        }
        finite: dict[str, Any] = _finite(plain)
        return finite


def predict(
    strategy: str,
    inputs: Inputs,
    *,
    target: float | None = None,
    given: Collection[str] = (),
    tcp: Tcp | None = None,
    failures: Failures | None = None,
    lab: tuple[float, float, int] | None = None,
    power: Power | None = None,
) -> Prediction:
    """Return the prediction of ``strategy``.

    Args:
        target: compute utilization to find the least payload rate for; ``inputs.rate_bps`` does not matter then.
        tcp: limits the rate to what its connections reach.
        failures: adds goodput.
        lab: step in seconds, scale and cores of a lab: adds the one that is similar.
        power: adds the energy of a step.
        given: names of inputs that were given explicitly: those that the strategy does not have are refused.

    Raises:
        UserError: an unknown strategy, impossible inputs (all at once), an input that the strategy does not have.
    """
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, list(STRATEGIES))
    wrong = [*mistakes(inputs), *STRATEGIES[strategy].missing(inputs), *_foreign(strategy, given)]
    if target is not None and not 0 < target < 1:
        wrong.append(f"--target must be greater than 0 and less than 1, got {target:g}")
    if (own := STRATEGIES[strategy].own_fibers) and (target is not None or {"rate_bps", "delay_s"} & set(given)):
        refused = "so it has no --target, --rate or --delay"
        wrong.append(f"strategy {strategy} has the rate and delay of each {option(own)}, {refused}")
    wrong += _mistakes_beside(tcp, failures, lab)
    if power is not None and not (0 <= power.joules_per_bit < math.inf and 0 <= power.idle_watts < math.inf):
        wrong.append("--joules-per-bit and --idle-watts must be 0 or more, and finite")
    if wrong:
        raise UserError("; ".join(wrong))
    usable = (tcp or Tcp()).usable
    rate_bps = None
    if target is not None:
        rate_bps = least_rate_bps(
            lambda rate: _outcome(strategy, usable(inputs.but(rate_bps=rate))).utilization, target
        )
        inputs = inputs.but(rate_bps=rate_bps or math.inf)
    inputs = usable(inputs)
    pattern = STRATEGIES[strategy].exchanged(inputs)
    return Prediction(
        strategy,
        inputs,
        pattern,
        _outcome(strategy, inputs),
        STRATEGIES[strategy].predict(inputs),
        groups(inputs, pattern),
        target,
        rate_bps,
        failures,
        None if lab is None else SimilarLab.of(inputs, *lab),
        power,
    )


def _finite(value: Any) -> Any:
    """Return ``value`` with None for each infinite number, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(it) for name, it in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(it) for it in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mistakes_beside(tcp: Tcp | None, failures: Failures | None, lab: tuple[float, float, int] | None) -> list[str]:
    wrong = []
    if tcp is not None and not (tcp.connections >= 1 and tcp.window_bytes > 0 and 0 <= tcp.loss < 1):
        wrong.append("--connections must be 1 or more, --window greater than 0, --loss 0 or more and less than 1")
    if failures is not None and not (
        failures.mtbf_s > 0
        and failures.checkpoint_s > 0
        and failures.restart_s >= 0
        and (failures.interval_s is None or failures.interval_s > 0)
    ):
        wrong.append("--mtbf, --checkpoint and --checkpoint-every must be greater than 0, --restart 0 or more")
    if lab is not None and not (0 < lab[0] < math.inf and 0 < lab[1] < math.inf and lab[2] >= 1):
        wrong.append("--lab-step-time and --lab-scale must be greater than 0 and finite, cores 1 or more")
    return wrong


def _outcome(strategy: str, inputs: Inputs) -> Outcome:
    """Return the outcome by events where the closed form leaves something out, else by the closed form."""
    if STRATEGIES[strategy].exact:
        return STRATEGIES[strategy].predict(inputs)
    return _events(strategy, inputs)[0] or STRATEGIES[strategy].predict(inputs)


def _events(strategy: str, inputs: Inputs) -> tuple[Outcome | None, str]:
    """Return the outcome by events, or None and why there is none."""
    try:
        return replace(predict_events(strategy, inputs), peak_bps=STRATEGIES[strategy].predict(inputs).peak_bps), ""
    except TooMany as error:
        return None, str(error)


def _foreign(strategy: str, given: Collection[str]) -> list[str]:
    """Return the inputs that only other strategies have, and those that are missing."""
    special = frozenset().union(*(it.own for it in STRATEGIES.values()))
    wrong = []
    for name in sorted((special & set(given)) - STRATEGIES[strategy].own):
        of = ", ".join(it.name for it in STRATEGIES.values() if name in it.own)
        wrong.append(f"strategy {strategy} has no {option(name)} (it belongs to {of})")
    return wrong
