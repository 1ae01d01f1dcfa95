"""Predict a step of a strategy from its own operations, timed alone before the job. Pure.

Where a rank stands still for its operations, or does them beside the backward pass, they are composed with the compute
(``composed_step.py``). Where sites wait inside each other's passes, or not at all, the model of ``predict`` that the
twin names composes them. Without times, the closed form of ``predict`` alone, whose c, w and payload are the twin's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.analysis.composed_step import Alone, composed, library_s, slots
from testbed.core.analysis.step_costs import FiberModel
from testbed.core.analysis.volleys import Volley, cycle_of, rounds, why_not
from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.inputs import Inputs, mistakes
from testbed.core.prediction.plans import predict_events
from testbed.core.prediction.predicted_outcome import Exposed, Outcome
from testbed.core.prediction.similarity import Groups, groups
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.twin import Twin

__all__ = ["StepPrediction", "predict_step"]


@dataclass(frozen=True)
class StepPrediction:
    """A mean step as predicted: ``exposed`` has the part in the site, ``site_s``, in its software.

    ``bytes_per_direction``: payload of a step in the busiest direction between two sites.
    """

    compute_s: float
    exposed: Exposed
    site_s: float
    bytes_per_direction: float
    library_s: float
    inputs: Inputs

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed.total_s

    @property
    def utilization(self) -> float:
        return self.compute_s / self.step_s

    @property
    def groups(self) -> Groups:
        """w kappa, lambda and o / T."""
        return groups(self.inputs, Pattern(self.inputs.delays or 0.0, self.inputs.wire_factor or 0.0))


def predict_step(
    twin: Twin,
    fiber: FiberModel,
    compute_s: float,
    planned: Sequence[Volley] = (),
    took_s: Sequence[float] = (),
    steps_s: Sequence[Sequence[float]] = (),
) -> StepPrediction | None:
    """Return the prediction; None for a strategy that has none (:func:`why_not`), or without times and a closed form.

    Args:
        compute_s: of a step, as declared or measured.
        planned, took_s: the volleys and how long each took alone; empty: the library's time is left out.
        steps_s: compute of steps that all ranks began together, of each rank.
    """
    if why_not(twin):
        return None
    cycle = cycle_of(twin)
    steps = [site_bytes(twin.operations(step), twin.layout.sites) for step in range(1, cycle + 1)]
    pairs = {pair for it in steps for pair in it}
    per_direction = max((sum(it.get(pair, 0.0) for it in steps) for pair in pairs), default=0.0)
    alone = Alone(planned, took_s, steps_s)
    inputs = _inputs(twin, fiber, compute_s, per_direction, steps).but(operation_s=library_s(twin, fiber, alone))
    exposed, site_s = composed(twin, fiber, compute_s, alone) if alone else (Exposed(), 0.0)
    if not alone or not twin.composed:
        outcome = _by_predict(twin, inputs, 8 * per_direction / cycle)
        if outcome is None:
            return None
        # What waits inside the site is the same, however the rest is composed.
        exposed = outcome.exposed + Exposed(software_s=site_s, waiting_s=exposed.waiting_s)
    return StepPrediction(compute_s, exposed, site_s, per_direction / cycle, inputs.operation_s, inputs)


def _by_predict(twin: Twin, inputs: Inputs, bits_per_step: float) -> Outcome | None:
    """Return what ``predict`` says of the twin's form; None without one, or for inputs that it cannot have."""
    form = STRATEGIES.get(twin.prediction or twin.name)
    if form is None or form.missing(inputs) or mistakes(inputs):
        return None
    if len(inputs.tiers) > 1:
        return None  # each tier has bytes and delays of its own, and the closed form has one w and one c
    # The form's own count of what crosses (it gathers parameters twice, say) must come to the twin's bytes.
    counted = form.predict(inputs).bits_per_step
    if counted > 0:
        inputs = inputs.but(wire_factor=(inputs.wire_factor or 0.0) * bits_per_step / counted)
    return form.predict(inputs) if twin.composed else predict_events(form.name, inputs)


def _buckets(twin: Twin) -> int:
    return int(twin.values.get("buckets", 1) or 1)


def _slots(twin: Twin) -> int | None:
    """Return how many exchanges between sites the library runs at once; None for any number."""
    for step in range(1, cycle_of(twin) + 1):
        if crossing := [it for it in rounds(twin.operations(step), twin.layout.sites) if it.crosses]:
            return min((it for it in map(slots, crossing) if it is not None), default=None)
    return None


def _inputs(
    twin: Twin,
    fiber: FiberModel,
    compute_s: float,
    per_direction: float,
    steps: Sequence[Mapping[tuple[str, str], float]],
) -> Inputs:
    """Return the closed form's inputs. Bits on the fiber are the twin's: the payload is the model, w what is left."""
    values, layout = twin.values, twin.layout
    exchanged_bits = 8 * layout.payload_bytes
    of_steps = 1 if not values.get("every") else int(values["every"])
    cycles = max(1, len(steps) // of_steps) if values.get("every") else len(steps) // int(values.get("accumulate", 1))
    return Inputs(
        step_s=compute_s,
        parameters=float(layout.elements),
        layers=max(layout.layers, _buckets(twin), int(values.get("fragments", 1) or 1)),
        rate_bps=fiber.rate_bps,
        delay_s=fiber.delay_s,
        sites=len(layout.site_names),
        ranks_per_site=max(len(ranks) for ranks in layout.members.values()),
        bits=8.0 * FLOAT32_BYTES,
        wire_factor=8 * per_direction / max(1, cycles) / exchanged_bits if exchanged_bits else 0.0,
        delays=twin.delays,
        buckets=_buckets(twin),
        in_flight=_slots(twin),
        every=of_steps,
        fragments=int(values.get("fragments", 1) or 1),
        overlap=int(values.get("overlap", 0) or 0),
        accumulate=int(values.get("accumulate", 1) or 1),
    ).but(**twin.predicted_by(fiber.rate_bps, fiber.delay_s))
