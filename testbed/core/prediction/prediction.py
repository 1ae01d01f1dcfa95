"""One prediction: checked inputs in, utilization, exposed time, bits and the least rate out. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from testbed.core.prediction.collective_times import Pattern, exchange_s
from testbed.core.prediction.energy import FABRIC, Power, StepEnergy, bits_by_class
from testbed.core.prediction.event_heap import TooMany
from testbed.core.prediction.inputs import PAYLOAD_SHARE, Inputs, mistakes, option
from testbed.core.prediction.job_failures import Failures, UnderFailures
from testbed.core.prediction.plans import predict_events
from testbed.core.prediction.predicted_outcome import Outcome
from testbed.core.prediction.published_quality import Published, published_quality
from testbed.core.prediction.required_rate import least_rate_bps
from testbed.core.prediction.similar_lab import SimilarLab
from testbed.core.prediction.similarity import Groups, groups
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.prediction.tcp_limits import cold_start_s, usable_rate_bps
from testbed.errors import UnknownName, UserError

__all__ = ["Failures", "Power", "Prediction", "SimilarLab", "SingleExchange", "Tcp", "predict"]


@dataclass(frozen=True)
class Tcp:
    """What TCP allows the connections of one exchange: together, in bytes of window, and in loss of packets.

    ``cold``: they were idle before each exchange, so each begins with slow start.
    """

    connections: int = 1
    window_bytes: float = math.inf
    loss: float = 0.0
    cold: bool = False

    def usable(self, inputs: Inputs) -> Inputs:
        """Return ``inputs`` with the rate that these connections reach."""
        rate_bps = usable_rate_bps(
            inputs.rate_bps,
            2 * inputs.delay_s,
            connections=self.connections,
            window_bytes=self.window_bytes,
            loss=self.loss,
        )
        return inputs.but(rate_bps=rate_bps)

    def cold_start_s(self, inputs: Inputs, bits: float) -> float:
        """Return what slow start adds to an exchange of ``bits`` on the fiber, in seconds."""
        if not bits or math.isinf(inputs.rate_bps):
            return 0.0
        return cold_start_s(inputs.rate_bps / self.connections, 2 * inputs.delay_s, bits / self.connections)

    def started(self, inputs: Inputs, pattern: Pattern, bits: float) -> Inputs:
        """Return ``inputs`` whose exchanges of ``bits`` begin with slow start: as many more one-way delays."""
        if not (self.cold and inputs.delay_s):
            return inputs
        return inputs.but(delays=pattern.delays + self.cold_start_s(inputs, bits) / inputs.delay_s)


@dataclass(frozen=True)
class SingleExchange:
    """The largest exchange by itself: bits on the fiber, seconds without overlap, and what slow start would add."""

    bits: float
    alone_s: float
    cold_start_s: float


@dataclass(frozen=True)
class Prediction:
    """What the numbers say of one strategy.

    Attributes:
        outcome: by events where the closed form leaves something out, else by the closed form.
        closed: by the closed form.
        groups: w kappa, lambda and o / T.
        exchange: the largest exchange by itself; None for tiers, which have fibers of their own.
        failures, similar, power: as asked for.
        target, rate_bps: a wanted compute utilization, and the least payload rate that reaches it; None if none does.
    """

    strategy: str
    inputs: Inputs
    pattern: Pattern
    outcome: Outcome
    closed: Outcome
    groups: Groups
    exchange: SingleExchange | None = None
    target: float | None = None
    rate_bps: float | None = None
    failures: Failures | None = None
    similar: SimilarLab | None = None
    power: Power | None = None

    @property
    def utilization(self) -> float:
        return self.outcome.utilization

    @functools.cached_property
    def _events(self) -> tuple[Outcome | None, str]:
        return _events(self.strategy, self.inputs)

    @property
    def events(self) -> Outcome | None:
        """By events, simulated when first asked for; None where they would be too many: ``no_events`` says why."""
        return self._events[0] if self.outcome is self.closed else self.outcome

    @property
    def no_events(self) -> str:
        return self._events[1] if self.outcome is self.closed else ""

    @property
    def fell_back(self) -> bool:
        """Whether the closed form leaves something out, and counts all the same, because events would be too many."""
        return self.outcome is self.closed and not STRATEGIES[self.strategy].exact

    @property
    def under_failures(self) -> UnderFailures | None:
        """What failures leave; None unless asked for."""
        return None if self.failures is None else UnderFailures(self.failures, self.inputs, self.outcome)

    @property
    def goodput(self) -> float | None:
        """Share of time that is committed compute, if any failure stops all ranks; None without failures."""
        return None if self.under_failures is None else self.under_failures.synchronous

    @property
    def energy(self) -> StepEnergy | None:
        """Joules of a step; None unless asked for."""
        if self.power is None:
            return None
        return self.power.step(self.inputs, self.outcome, _energy_bits(self.strategy, self.inputs, self.outcome))

    @property
    def quality(self) -> tuple[Published, ...]:
        """What others published about the quality of models: no prediction."""
        return published_quality(self.strategy)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in SI units; what is infinite is None. ``rate_bps`` is that of ``target``."""
        rate_bps = self.inputs.rate_bps if self.target is None else self.rate_bps
        under, energy = self.under_failures, self.energy
        plain = {
            "strategy": self.strategy,
            "utilization": self.utilization,
            **self.outcome.to_dict(),
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
            "closed_form": self.closed.to_dict(),
            "events": None if self.events is None else self.events.to_dict(),
            "no_events": self.no_events or None,
            "exchange": None if self.exchange is None else asdict(self.exchange),
            "groups": asdict(self.groups),
            "pattern": asdict(self.pattern),
            "published_quality": [asdict(it) for it in self.quality],
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
    tcp = tcp or Tcp()
    if STRATEGIES[strategy].own_fibers and tcp.cold:
        wrong.append(f"strategy {strategy} has no --cold-start")
    wrong += _mistakes_beside(tcp, failures, lab, power)
    if wrong:
        raise UserError("; ".join(wrong))

    def usable(inputs: Inputs) -> Inputs:
        inputs = tcp.usable(inputs)
        return tcp.started(inputs, STRATEGIES[strategy].exchanged(inputs), _largest_bits(strategy, inputs))

    rate_bps = None
    if target is not None:
        rate_bps = least_rate_bps(
            lambda rate: _outcome(strategy, usable(inputs.but(rate_bps=rate))).utilization, target
        )
        inputs = inputs.but(rate_bps=rate_bps or math.inf)
    inputs = usable(inputs)
    pattern = STRATEGIES[strategy].exchanged(inputs)
    closed = STRATEGIES[strategy].predict(inputs)
    events = None if STRATEGIES[strategy].exact else _events(strategy, inputs)[0]
    outcome = events or closed
    if power is not None:
        _check_classes(strategy, power, _energy_bits(strategy, inputs, outcome))
    return Prediction(
        strategy,
        inputs,
        pattern,
        outcome,
        closed,
        groups(STRATEGIES[strategy].sent(inputs), pattern),
        None if STRATEGIES[strategy].own_fibers else _single(strategy, inputs, pattern, tcp),
        target,
        rate_bps,
        failures,
        None if lab is None else SimilarLab.of(_farthest(strategy, inputs), *lab),
        power,
    )


def _farthest(strategy: str, inputs: Inputs) -> Inputs:
    """Return ``inputs`` with the farthest of several fibers, which is the one that a lab shows."""
    if not STRATEGIES[strategy].own_fibers:
        return inputs
    return inputs.but(rate_bps=inputs.tiers[-1].rate_bps, delay_s=inputs.tiers[-1].delay_s)


def _largest_bits(strategy: str, inputs: Inputs) -> float:
    """Return the bits of the largest exchange on the fiber."""
    return STRATEGIES[strategy].predict(inputs).peak_bps * inputs.step_s


def _single(strategy: str, inputs: Inputs, pattern: Pattern, tcp: Tcp) -> SingleExchange:
    bits = _largest_bits(strategy, inputs)
    alone_s = exchange_s(bits, Pattern(pattern.delays, 1.0), inputs.rate_bps, inputs.delay_s, inputs.operation_s)
    return SingleExchange(bits, alone_s, tcp.cold_start_s(inputs, bits))


def _energy_bits(strategy: str, inputs: Inputs, outcome: Outcome) -> dict[str, float]:
    of = STRATEGIES[strategy]
    bits = bits_by_class(inputs, of.exchanged(inputs), outcome, flat=of.flat)
    return {it: amount for it, amount in bits.items() if it != FABRIC or of.replicas}


def _check_classes(strategy: str, power: Power, bits: dict[str, float]) -> None:
    """Refuse joules that do not cover the paths, or that have none."""
    if FABRIC in power.by_class and not STRATEGIES[strategy].replicas:
        raise UserError(f"--joules-per-bit: bits inside the sites of {strategy} are not predicted; omit {FABRIC}=")
    if missing := power.missing(bits):
        raise UserError(
            f"--joules-per-bit: expected a value for {' and '.join(missing)} fiber, which the exchange crosses;"
            f" write {missing[0]}=J, or J alone for every fiber"
        )


def _finite(value: Any) -> Any:
    """Return ``value`` with None for each infinite number, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(it) for name, it in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(it) for it in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _mistakes_beside(
    tcp: Tcp, failures: Failures | None, lab: tuple[float, float, int] | None, power: Power | None
) -> list[str]:
    wrong = []
    if not (tcp.connections >= 1 and tcp.window_bytes > 0 and 0 <= tcp.loss < 1):
        wrong.append("--connections must be 1 or more, --window greater than 0, --loss 0 or more and less than 1")
    if failures is not None:
        wrong += failures.mistakes()
    if power is not None:
        wrong += power.mistakes()
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
    of = STRATEGIES[strategy]
    try:
        outcome = of.with_fabric(predict_events(strategy, of.over_fabric(inputs)), inputs)
        return replace(outcome, peak_bps=of.predict(inputs).peak_bps), ""
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
