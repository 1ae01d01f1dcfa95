"""One prediction: checked inputs in, utilization, exposed time, bits and the least rate out. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Final

from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.inputs import PAYLOAD_SHARE, Inputs, mistakes
from testbed.core.prediction.plans import PLANS, predict_events
from testbed.core.prediction.predicted_outcome import Outcome
from testbed.core.prediction.required_rate import least_rate_bps
from testbed.core.prediction.similarity import Groups, groups
from testbed.core.prediction.strategies import STRATEGIES
from testbed.errors import UnknownName, UserError

__all__ = ["OWN_INPUTS", "Prediction", "predict"]

MOST_EVENT_STEPS: Final = 10_000
"""Steps between exchanges up to which events are simulated: three times as many take a tenth of a second."""

OWN_INPUTS: Final[dict[str, frozenset[str]]] = {
    "every": frozenset({"local-sgd", "diloco", "streaming-diloco", "sparse-loco", "async-diloco", "decoupled"}),
    "overlap_last_backward": frozenset({"local-sgd", "diloco", "streaming-diloco", "sparse-loco"}),
    "fragments": frozenset({"streaming-diloco", "decoupled"}),
    "overlap": frozenset({"streaming-diloco"}),
    "accumulate": frozenset({"ddp", "hierarchical", "hsdp"}),
    "staleness": frozenset({"async-diloco"}),
    "quorum": frozenset({"decoupled"}),
    "grace_s": frozenset({"decoupled"}),
    "tiers": frozenset({"tiers"}),
    "micro_batches": frozenset({"pipeline"}),
    "stages": frozenset({"pipeline"}),
    "activation_bits": frozenset({"pipeline"}),
    "expert_layers": frozenset({"moe"}),
    "token_bits": frozenset({"moe"}),
}
"""Inputs that only some strategies have, with their names."""


@dataclass(frozen=True)
class Prediction:
    """What the numbers say of one strategy.

    Attributes:
        outcome: by events where the closed form leaves something out, else by the closed form.
        closed: by the closed form.
        groups: w kappa, lambda and o / T.
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

    @property
    def utilization(self) -> float:
        return self.outcome.utilization

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, in SI units. ``rate_bps`` is that of ``target`` if one was given."""
        rate_bps = self.inputs.rate_bps if self.target is None else self.rate_bps
        return {
            "strategy": self.strategy,
            "utilization": self.utilization,
            **self.outcome.to_dict(),
            "target": self.target,
            "rate_bps": rate_bps,
            "line_rate_bps": None if rate_bps is None else rate_bps / PAYLOAD_SHARE,
            "closed_form": self.closed.to_dict(),
            "groups": asdict(self.groups),
            "pattern": asdict(self.pattern),
            "inputs": asdict(self.inputs),
        }


def predict(strategy: str, inputs: Inputs, *, target: float | None = None, given: Collection[str] = ()) -> Prediction:
    """Return the prediction of ``strategy``.

    Args:
        target: compute utilization to find the least payload rate for; ``inputs.rate_bps`` does not matter then.
        given: names of inputs that were given explicitly: those that the strategy does not have are refused.

    Raises:
        UserError: an unknown strategy, impossible inputs (all at once), an input that the strategy does not have.
    """
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, list(STRATEGIES))
    wrong = [*mistakes(inputs), *_foreign(strategy, given)]
    if target is not None and not 0 < target < 1:
        wrong.append(f"--target must be greater than 0 and less than 1, got {target:g}")
    if wrong:
        raise UserError("; ".join(wrong))
    rate_bps = None
    if target is not None:
        rate_bps = least_rate_bps(lambda rate: _outcome(strategy, inputs.but(rate_bps=rate)).utilization, target)
        inputs = inputs.but(rate_bps=rate_bps or float("inf"))
    pattern = STRATEGIES[strategy].pattern(inputs).measured(inputs)
    return Prediction(
        strategy,
        inputs,
        pattern,
        _outcome(strategy, inputs),
        STRATEGIES[strategy].predict(inputs),
        groups(inputs, pattern),
        target,
        rate_bps,
    )


def _outcome(strategy: str, inputs: Inputs) -> Outcome:
    closed = STRATEGIES[strategy].predict(inputs)
    if STRATEGIES[strategy].exact or strategy not in PLANS or inputs.every > MOST_EVENT_STEPS:
        return closed
    events = predict_events(strategy, inputs)
    return Outcome(
        events.step_s, events.compute_s, events.exposed, events.bits_per_step, closed.peak_bps, events.formula
    )


def _foreign(strategy: str, given: Collection[str]) -> list[str]:
    return [
        f"strategy {strategy} has no --{name.removesuffix('_s').replace('_', '-')}"
        f" (it belongs to {', '.join(sorted(OWN_INPUTS[name]))})"
        for name in given
        if name in OWN_INPUTS and strategy not in OWN_INPUTS[name]
    ]
