"""Level 1: closed forms, one per strategy, in microseconds of computing time. Pure.

Symbols as in :mod:`testbed.core.prediction.inputs`; s = w S / B.

================  =====================================================================  ============================
strategy          time of a cycle                                                        source
================  =====================================================================  ============================
ddp               A T, and until the last bucket has arrived; for any number of          PyTorch DDP (Li et al.,
                  operations in flight T/3 + max(2T/3 + s/K + cd, 2T/(3K) + s + cd)      arXiv:2006.15704)
hierarchical      as ddp, two-level; also hsdp, whose fibers carry the same              arXiv:2304.11277
fsdp              as ddp with c/2 and w/2, which a reduce-scatter has; and each layer    arXiv:2304.11277
                  is gathered before its forward and its backward pass, with as much:
                  T + 2 g + 2 (L - 1) max(0, g - f) + ddp's exposed time
local-sgd         H T + o + c d + s + outer step                                         arXiv:1808.07217
diloco            the same; overlapping the last backward: (H - 1) T + ddp's step        arXiv:2311.08105
streaming-diloco  max(H T + sum of what fragments are late, s); a fragment is late by    arXiv:2501.18512
                  max(0, o + c d + s/P - tau T) and its outer step; if P does not
                  divide L, s l/L for s/P
sparse-loco       as diloco, with a gather; ``bits`` are those per parameter             arXiv:2508.15706
async-diloco      max(H T, (H T + 2 (o + c d + s) + outer step) / (sigma + 1), s), T     arXiv:2401.09135;
                  that of the slowest site                                               stale synchronous parallel
                                                                                         (Ho et al., NIPS 2013)
decoupled         H T: learners never wait; a merge at the K-th smallest H T_i + o +     ours
                  c d + s, and the grace after it
tiers             T + sum over tiers of (o + c d_i + w S / B_i + outer step) / H_i       ours
pipeline          (M + stages - 1) T/M + 2 (stages - 1) (o + d + A/B); a pass whose      arXiv:1811.06965 (GPipe)
                  micro-batch p is shorter than A/B adds (M - 1) (A/B - p)
moe               T + 4 (o + c d + w A / B) per layer with experts                       arXiv:2006.16668
================  =====================================================================  ============================

What all of them leave out: TCP's windows and loss, jitter between ranks; what fabrics inside sites add where these have
a rate is in ``fabric_tier.py``. Model quality depends
on the strategy and is not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE, Sent, send_in_order
from testbed.core.prediction.collective_times import Pattern, flat_ring, gather, two_level
from testbed.core.prediction.fabric_tier import inside_s, through_fabric
from testbed.core.prediction.inputs import Inputs, option
from testbed.core.prediction.predicted_outcome import Exposed, Outcome

__all__ = ["STRATEGIES", "Cycle", "Strategy"]


@dataclass(frozen=True)
class Cycle:
    """A cycle of ``steps`` steps: its exposed time by part, its bits on the fiber, those of its largest exchange.

    ``lane_s`` is the least time of a cycle if the fiber is busy all the time, where the exposed time does not know it.
    ``by_fiber``: bits of each of several fibers, from near to far; ``bits`` are then those of the farthest.
    """

    steps: int
    exposed: Exposed
    bits: float
    largest_bits: float
    lane_s: float = 0.0
    by_fiber: tuple[float, ...] = ()


@dataclass(frozen=True)
class Strategy:
    """A way of synchronising, as the predictor sees it.

    Attributes:
        pattern: its exchange between sites, as far as nothing else is declared or measured.
        cycle: what a cycle costs the fastest site.
        own: names of the inputs that only some strategies have, and this one does.
        needs: those of them that must not be empty.
        own_fibers: name of the input that has rates and delays in place of the one rate and delay; empty for none.
        exact: the closed form leaves out nothing that the event model knows.
        merge_s: time between two merges, where learners do not wait for each other.
        averages_inside: whether ranks of a site average gradients over its fabric in each step.
    """

    name: str
    pattern: Callable[[Inputs], Pattern]
    cycle: Callable[[Inputs, Pattern], Cycle]
    own: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    own_fibers: str = ""
    exact: bool = True
    merge_s: Callable[[Inputs, Pattern], float] | None = None
    averages_inside: bool = False

    @property
    def flat(self) -> bool:
        """Whether all ranks are in one ring, rather than each site reducing its own first."""
        return self.pattern is _flat

    @property
    def replicas(self) -> bool:
        """Whether each site holds the whole model, and exchanges all of it."""
        return not self.own & {"activation_bits", "token_bits"}

    def sent(self, inputs: Inputs) -> Inputs:
        """Return ``inputs`` whose payload is what an exchange sends: the model, activations, or tokens."""
        if "activation_bits" in self.own:
            return inputs.but(parameters=inputs.activation_bits, bits=1.0, payload_factor=1.0)
        if "token_bits" in self.own:
            bits = inputs.token_bits * (inputs.sites - 1) / inputs.sites
            return inputs.but(parameters=bits, bits=1.0, payload_factor=1.0)
        return inputs if self.own_fibers else inputs.but(tiers=())

    def missing(self, inputs: Inputs) -> tuple[str, ...]:
        """Return what the strategy cannot do without."""
        return tuple(f"strategy {self.name} needs {option(it)}" for it in sorted(self.needs) if not getattr(inputs, it))

    def exchanged(self, inputs: Inputs) -> Pattern:
        """Return c and w as measured, declared, or else of the pattern; nothing crosses a fiber with a single site."""
        return self.pattern(inputs).measured(inputs) if inputs.sites > 1 else Pattern(0, 0)

    def over_fabric(self, inputs: Inputs) -> Inputs:
        """Return ``inputs`` with the rate that the fabrics of the sites leave to a ring of all ranks."""
        return through_fabric(inputs) if self.flat else inputs

    def with_fabric(self, outcome: Outcome, inputs: Inputs) -> Outcome:
        """Return ``outcome`` with what the fabrics of the sites expose."""
        inside = Exposed(inside_s=inside_s(inputs, inputs.every if "every" in self.own else 0))
        if not self.averages_inside or not inside.total_s:
            return outcome
        return replace(outcome, step_s=outcome.step_s + inside.total_s, exposed=outcome.exposed + inside)

    def predict(self, inputs: Inputs) -> Outcome:
        """Return the closed form's outcome. ``inputs`` have no mistakes (``inputs.mistakes``)."""
        inputs = self.over_fabric(inputs)
        pattern = self.exchanged(inputs)
        cycle = self.cycle(inputs, pattern)
        missing_s = cycle.lane_s - (cycle.steps * inputs.fastest_s + cycle.exposed.total_s)
        exposed = (cycle.exposed + Exposed(serialization_s=max(0.0, missing_s))) * (1 / cycle.steps)
        outcome = Outcome(
            step_s=inputs.fastest_s + exposed.total_s,
            compute_s=inputs.fastest_s,
            exposed=exposed,
            bits_per_step=cycle.bits / cycle.steps,
            peak_bps=cycle.largest_bits / inputs.step_s,
            formula=self.name,
            merge_s=None if self.merge_s is None else self.merge_s(inputs, pattern),
            bits_by_fiber=tuple(it / cycle.steps for it in cycle.by_fiber or (cycle.bits,)),
        )
        return self.with_fabric(outcome, inputs)


def _flat(inputs: Inputs) -> Pattern:
    return flat_ring(inputs.ranks)


def _between_sites(inputs: Inputs) -> Pattern:
    return two_level(inputs.sites)


def _gathered(inputs: Inputs) -> Pattern:
    return gather(inputs.sites)


def _one_way(inputs: Inputs) -> Pattern:
    return Pattern(1, 1.0)


def _beside_backward(inputs: Inputs, pattern: Pattern, operations: int, steps: int) -> Exposed:
    """Exchange the payload in ``operations`` during the backward pass of the last of ``steps`` steps."""
    before_s = (steps - 1) * inputs.slowest_s + FORWARD_SHARE * inputs.slowest_s
    backward_s = (1 - FORWARD_SHARE) * inputs.slowest_s
    ready = [before_s + backward_s * (done + 1) / operations for done in range(operations)]
    return _send(inputs, pattern, ready, inputs.payload_bits)[-1].exposed(steps * inputs.fastest_s)


def _send(inputs: Inputs, pattern: Pattern, ready_s: list[float], payload_bits: float) -> tuple[Sent, ...]:
    """Send ``payload_bits`` in equal operations that are ready at ``ready_s``."""
    serial_s = pattern.wire_factor * payload_bits / len(ready_s) / inputs.rate_bps
    return send_in_order(ready_s, serial_s, pattern.delays * inputs.delay_s, inputs.operation_s, inputs.in_flight)


def _data_parallel(inputs: Inputs, pattern: Pattern) -> Cycle:
    exposed = _beside_backward(inputs, pattern, inputs.bucket_count, inputs.accumulate)
    bits = pattern.wire_factor * inputs.payload_bits
    return Cycle(inputs.accumulate, exposed, bits, bits)


def _sharded(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Gather each layer before either pass, one layer ahead, and scatter the gradients: half an all-reduce each.

    Gathers and scatters do not meet here; they do in events.
    """
    half = Pattern(pattern.delays / 2, pattern.wire_factor / 2)
    layer_bits = half.wire_factor * inputs.payload_bits / inputs.layers
    propagation_s, serial_s = half.delays * inputs.delay_s, layer_bits / inputs.rate_bps
    gather_s = inputs.operation_s + propagation_s + serial_s
    exposed = _beside_backward(inputs, half, inputs.bucket_count, 1)
    for share in (FORWARD_SHARE, 1 - FORWARD_SHARE):
        layer_s = share * inputs.slowest_s / inputs.layers
        late = Exposed.tail(gather_s - layer_s, propagation_s, serial_s, inputs.operation_s)
        first = Exposed.tail(gather_s, propagation_s, serial_s, inputs.operation_s)
        exposed = exposed + first + late * (inputs.layers - 1)
    bits = half.wire_factor * inputs.payload_bits
    return Cycle(1, exposed, 3 * bits, bits, lane_s=3 * bits / inputs.rate_bps)


def _blocking(inputs: Inputs, pattern: Pattern) -> Cycle:
    bits = pattern.wire_factor * inputs.payload_bits
    if inputs.overlap_last_backward:
        exposed = _beside_backward(inputs, pattern, inputs.bucket_count, inputs.every)
    else:
        ready = [inputs.every * inputs.slowest_s] * (inputs.buckets or 1)
        sent = _send(inputs, pattern, ready, inputs.payload_bits)
        exposed = sent[-1].exposed(inputs.every * inputs.fastest_s)
    return Cycle(inputs.every, exposed + Exposed(software_s=inputs.outer_step_s), bits, bits)


def _streaming(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Exchange each fragment while the lane is free; if it never is, the lane sets the pace."""
    bits = pattern.wire_factor * inputs.payload_bits
    behind_s = inputs.every * (inputs.slowest_s - inputs.fastest_s)
    exposed = Exposed(waiting_s=behind_s)
    for fragment in range(inputs.fragments):
        layers = range(fragment, inputs.layers, inputs.fragments)
        exposed = exposed + (
            _layers_late(inputs, pattern, layers)
            if inputs.overlap_last_backward
            else _fragment_late(inputs, pattern, len(layers) / inputs.layers)
        )
    largest = math.ceil(inputs.layers / inputs.fragments) / inputs.layers
    return Cycle(inputs.every, exposed, bits, bits * largest, lane_s=bits / inputs.rate_bps)


def _fragment_late(inputs: Inputs, pattern: Pattern, share: float) -> Exposed:
    sent = _send(inputs, pattern, [0.0], inputs.payload_bits * share)
    return sent[-1].exposed(inputs.overlap * inputs.slowest_s) + Exposed(software_s=inputs.outer_step_s * share)


def _layers_late(inputs: Inputs, pattern: Pattern, layers: range) -> Exposed:
    """Send each layer when its backward pass is done; let only its own forward pass wait for it."""
    layer_s = inputs.slowest_s / inputs.layers
    forward_s, backward_s = FORWARD_SHARE * layer_s, (1 - FORWARD_SHARE) * layer_s
    order = sorted(layers, reverse=True)  # of the backward pass, which ends at 0
    ready = [-layer * backward_s + inputs.slowest_s for layer in order]  # shifted, so that no time is negative
    sent = dict(
        zip(order, _send(inputs, pattern, ready, inputs.payload_bits * len(order) / inputs.layers), strict=True)
    )
    late = Exposed()
    for layer in sorted(layers):
        needed_s = (1 + inputs.overlap) * inputs.slowest_s + layer * forward_s + late.total_s
        late = late + sent[layer].exposed(needed_s) + Exposed(software_s=inputs.outer_step_s / inputs.layers)
    return late


def _asynchronous(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Push and pull beside compute; begin a round once all but ``staleness`` of the rounds before it have come back.

    A round is H T and the trip of its push and its pull. So sigma + 1 rounds take at least that; with sigma = 0 the
    site waits for every trip, as blocking training does for its exchange. The rounds are those of all sites: in the
    long run the fastest goes at the pace of the slowest, sigma rounds ahead of it.
    """
    serial_s = pattern.wire_factor * inputs.payload_bits / inputs.rate_bps
    propagation_s = 2 * pattern.delays * inputs.delay_s
    software_s = 2 * inputs.operation_s + inputs.outer_step_s
    trip_s = software_s + propagation_s + 2 * serial_s
    own_s, cycle_s = inputs.every * inputs.fastest_s, inputs.every * inputs.slowest_s
    bound_s = (cycle_s + trip_s) / (inputs.staleness + 1)
    round_s = max(cycle_s, bound_s, serial_s)
    exposed = (
        Exposed(serialization_s=round_s - cycle_s)  # the lane is always busy
        if serial_s >= bound_s
        else Exposed.tail(round_s - cycle_s, propagation_s, 2 * serial_s, software_s)
    )
    bits = pattern.wire_factor * inputs.payload_bits
    return Cycle(inputs.every, exposed + Exposed(waiting_s=cycle_s - own_s), bits, bits)


def _decoupled(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Learners never wait, and send once per merge."""
    bits = pattern.wire_factor * inputs.payload_bits
    merges = inputs.every * inputs.fastest_s / _quorum_merge_s(inputs, pattern)  # per H steps
    return Cycle(inputs.every, Exposed(), bits * merges, bits / inputs.fragments)


def _quorum_merge_s(inputs: Inputs, pattern: Pattern) -> float:
    """Wait for the K-th learner, then for the others, at most the grace; a lane that is too slow sets the pace."""
    up_s = inputs.operation_s + pattern.delays * inputs.delay_s
    up_s += pattern.wire_factor * inputs.payload_bits / inputs.rate_bps
    done = sorted(inputs.every * inputs.step_s * slow + up_s for slow in inputs.slowdowns or (1.0,))
    quorum = (inputs.quorum or inputs.sites) if inputs.slowdowns else 1  # sites that are alike are done at once
    return max(min(done[quorum - 1] + inputs.grace_s, done[-1]), up_s)


def _tiers(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Each tier blocks: per step its exchange through its own number of steps."""
    exposed, by_fiber = Exposed(), []
    for tier in inputs.tiers:
        tier_bits = pattern.wire_factor * inputs.payload_bits
        exposed = exposed + (
            Exposed(
                propagation_s=pattern.delays * tier.delay_s,
                serialization_s=tier_bits / tier.rate_bps,
                software_s=inputs.operation_s + (inputs.outer_step_s if tier.every > 1 else 0.0),
            )
            * (1 / tier.every)
        )
        by_fiber.append(tier_bits / tier.every)
    waiting = Exposed(waiting_s=inputs.slowest_s - inputs.fastest_s)
    return Cycle(1, exposed + waiting, by_fiber[-1], tier_bits, by_fiber=tuple(by_fiber))


def _pipeline(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Fill and drain once a step; activations go one way, their gradients the other."""
    hops = 2 * (inputs.stages - 1)
    message_s = pattern.wire_factor * inputs.activation_bits / inputs.rate_bps
    bubble_s = (inputs.stages - 1) * inputs.slowest_s / inputs.micro_batches
    passes = [share * inputs.slowest_s / inputs.micro_batches for share in (FORWARD_SHARE, 1 - FORWARD_SHARE)]
    paced_s = sum(max(0.0, message_s - pass_s) for pass_s in passes) if hops else 0.0
    exposed = Exposed(
        propagation_s=hops * pattern.delays * inputs.delay_s,
        serialization_s=hops * message_s + (inputs.micro_batches - 1) * paced_s,
        software_s=hops * inputs.operation_s,
        waiting_s=bubble_s + inputs.slowest_s - inputs.fastest_s,
    )
    bits = inputs.micro_batches * pattern.wire_factor * inputs.activation_bits if hops else 0.0
    return Cycle(1, exposed, bits, bits / inputs.micro_batches, lane_s=bits / inputs.rate_bps)


def _experts(inputs: Inputs, pattern: Pattern) -> Cycle:
    """Send tokens to the other sites' experts and back, in either pass: 4 all-to-alls a layer."""
    bits = inputs.token_bits * (inputs.sites - 1) / inputs.sites * pattern.wire_factor
    each = Exposed(
        propagation_s=pattern.delays * inputs.delay_s,
        serialization_s=bits / inputs.rate_bps,
        software_s=inputs.operation_s,
    )
    operations = 4 * inputs.expert_layers
    waiting = Exposed(waiting_s=inputs.slowest_s - inputs.fastest_s)
    return Cycle(1, each * operations + waiting, operations * bits, bits)


_SYNCHRONOUS: Final = frozenset({"accumulate"})
_PERIODIC: Final = frozenset({"every", "overlap_last_backward", "outer_step_s"})
_STREAMED: Final = _PERIODIC | {"fragments", "overlap"}
_MERGED: Final = frozenset({"every", "fragments", "quorum", "grace_s"})
_STAGED: Final = frozenset({"micro_batches", "stages", "activation_bits"})
_EXPERTS: Final = frozenset({"expert_layers", "token_bits"})
_LAGGING: Final = frozenset({"every", "staleness", "outer_step_s"})
_TIERED: Final = frozenset({"tiers"})

STRATEGIES: Final = {
    it.name: it
    for it in (
        Strategy("ddp", _flat, _data_parallel, _SYNCHRONOUS),
        Strategy("hierarchical", _between_sites, _data_parallel, _SYNCHRONOUS, averages_inside=True),
        Strategy("hsdp", _between_sites, _data_parallel, _SYNCHRONOUS, averages_inside=True),
        Strategy("fsdp", _flat, _sharded, exact=False),
        Strategy("local-sgd", _between_sites, _blocking, _PERIODIC, averages_inside=True),
        Strategy("diloco", _between_sites, _blocking, _PERIODIC, averages_inside=True),
        Strategy("streaming-diloco", _between_sites, _streaming, _STREAMED, exact=False, averages_inside=True),
        Strategy("sparse-loco", _gathered, _blocking, _PERIODIC, averages_inside=True),
        Strategy("async-diloco", _one_way, _asynchronous, _LAGGING, averages_inside=True),
        Strategy("decoupled", _one_way, _decoupled, _MERGED, merge_s=_quorum_merge_s, averages_inside=True),
        Strategy("tiers", _between_sites, _tiers, _TIERED | {"outer_step_s"}, needs=_TIERED, own_fibers="tiers"),
        Strategy("pipeline", _one_way, _pipeline, _STAGED, needs=frozenset({"activation_bits"})),
        Strategy("moe", _one_way, _experts, _EXPERTS, needs=_EXPERTS),
    )
}
"""All strategies by the name that a workload has."""
