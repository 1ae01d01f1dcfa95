"""Predict a step of a strategy from its own operations, timed alone before the job. Pure.

The twin knows the operations; :func:`volleys` says which of them the agents time (``testbed_agents.calibration``): each
distinct one of a cycle once, at its size and after as long an idle time as in the job, with all groups that do it at
the same time. What an exchange takes beyond its delays and bytes on the certified fiber is the library's time, o. The
closed forms of ``predict`` then compose it with the compute: c, w and the payload are the twin's.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.core.analysis.step_costs import FiberModel
from testbed.core.prediction.bucket_pipeline import FORWARD_SHARE, send_in_order
from testbed.core.prediction.inputs import Inputs, mistakes
from testbed.core.prediction.predicted_outcome import Exposed
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.layout import FLOAT32_BYTES
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["StepPrediction", "Volley", "predict_step", "timed_alone", "volleys"]

_LONGEST_GAP_S: Final = 0.35
"""Beyond TCP's least retransmission timeout (0.2 s): a connection that idles longer is no colder."""
_LONGEST_CYCLE: Final = 2000
_IN_FLIGHT: Final = 2
"""Operations that torch's gloo runs at once: it has two threads."""


@dataclass(frozen=True)
class Volley:
    """Operations of one kind and size that groups do at the same time.

    ``groups``: names and ranks. ``gap_s``: for how long the connections idle before it in the job.
    """

    kind: str
    byte_count: float
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    gap_s: float
    crosses: bool
    before_update: bool

    def to_message(self) -> dict[str, Any]:
        """Return what the agents are told."""
        groups = [[name, list(ranks)] for name, ranks in self.groups]
        return {"kind": self.kind, "bytes": round(self.byte_count), "groups": groups, "gap_s": self.gap_s}


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


def volleys(twin: Twin, step_s: float) -> tuple[Volley, ...]:
    """Return what is to be timed, in the order in which a cycle does it. ``step_s``: about how long a step takes."""
    cycle = _cycle(twin)
    found: dict[tuple[object, ...], Volley] = {}
    times: defaultdict[tuple[object, ...], int] = defaultdict(int)
    for step in range(1, cycle + 1):
        together: defaultdict[tuple[object, ...], list[Operation]] = defaultdict(list)
        for it in twin.operations(step):
            if len(it.ranks) > 1 and it.byte_count > 0:
                together[it.kind, it.what, it.fragment, it.byte_count].append(it)
        for (kind, what, _, byte_count), operations in together.items():
            first = operations[0]
            groups = tuple(dict.fromkeys((it.group, tuple(it.ranks)) for it in operations))
            key = (kind, what, tuple(ranks for _, ranks in groups))
            times[key] += 1
            assert isinstance(byte_count, float | int)
            size = byte_count / _buckets(twin) if first.before_update else byte_count
            if key not in found or size > found[key].byte_count:
                crosses = _crosses(operations, twin)
                found[key] = Volley(str(kind), size, groups, 0.0, crosses, first.before_update)
    return tuple(replace(it, gap_s=min(_LONGEST_GAP_S, step_s * cycle / times[key])) for key, it in found.items())


def timed_alone(rows: Iterable[Mapping[int, Sequence[float]]]) -> tuple[float, ...]:
    """Return how long each volley took: the median over repetitions of the slowest rank's time.

    ``rows``: of each volley, rank -> its times in s; the first repetition, which warms connections, does not count.
    """
    found = []
    for ranks in rows:
        slowest = [max(times) for times in zip(*(it for it in ranks.values() if it), strict=False)]
        found.append(statistics.median(slowest[1:] or slowest) if slowest else 0.0)
    return tuple(found)


def predict_step(
    twin: Twin, fiber: FiberModel, compute_s: float, planned: Sequence[Volley] = (), took_s: Sequence[float] = ()
) -> StepPrediction | None:
    """Return the prediction; None for a strategy without a closed form, or inputs that it cannot have.

    Args:
        compute_s: of a step, as declared or measured.
        planned, took_s: the volleys and how long each took alone; empty: the library's time is left out.
    """
    form = STRATEGIES.get(twin.prediction or twin.name)
    if form is None or len(twin.layout.site_names) < 2:
        return None
    cycle = _cycle(twin)
    steps = [site_bytes(twin.operations(step), twin.layout.sites) for step in range(1, cycle + 1)]
    pairs = {pair for it in steps for pair in it}
    per_direction = max((sum(it.get(pair, 0.0) for it in steps) for pair in pairs), default=0.0)
    inputs = _inputs(twin, fiber, compute_s, per_direction, steps)
    if form.needs & {name for name in form.needs if not getattr(inputs, name)} or mistakes(inputs):
        return None
    if len(inputs.tiers) > 1:
        return None  # each tier has bytes and delays of its own, and the closed form has one w and one c
    library_s = _library_s(twin, fiber, inputs.delays or 0.0, planned, took_s)
    # The form's own count of what crosses (it gathers parameters twice, say) must come to the twin's bytes.
    bits, counted = 8 * per_direction / cycle, form.predict(inputs).bits_per_step
    if counted > 0:
        inputs = inputs.but(wire_factor=(inputs.wire_factor or 0.0) * bits / counted)
    outcome = form.predict(inputs.but(operation_s=library_s))
    site_s = _exposed_in_site(twin, compute_s, planned, took_s)
    exposed = outcome.exposed + Exposed(software_s=site_s)
    return StepPrediction(compute_s, exposed, site_s, per_direction / cycle, library_s, inputs)


def _cycle(twin: Twin) -> int:
    return max(1, min(twin.cycle, twin.layout.steps, _LONGEST_CYCLE))


def _buckets(twin: Twin) -> int:
    return int(twin.values.get("buckets", 1) or 1)


def _crosses(operations: Sequence[Operation], twin: Twin) -> bool:
    sites = twin.layout.sites
    return any(len({sites[rank] for rank in it.ranks}) > 1 for it in operations)


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
        in_flight=_IN_FLIGHT,
        every=of_steps,
        fragments=int(values.get("fragments", 1) or 1),
        overlap=int(values.get("overlap", 0) or 0),
        accumulate=int(values.get("accumulate", 1) or 1),
    ).but(**twin.predicted_by(fiber.rate_bps, fiber.delay_s))


def _library_s(
    twin: Twin, fiber: FiberModel, of_bucket: float, planned: Sequence[Volley], took_s: Sequence[float]
) -> float:
    """Return o: what one exchange took alone beyond its delays and its bytes; an operation, or a bucket's several.

    ``of_bucket``: delays of one bucket's operations, of those within the step.
    """
    timed = list(zip(planned, took_s, strict=False))
    crossing = [it for it, _ in timed if it.crosses]
    if not crossing:
        return 0.0
    within = any(it.before_update for it in crossing)
    alone_s = sum(seconds for it, seconds in timed if it.before_update == within)
    operations = [
        Operation("send" if it.kind == "send" else it.kind, ranks, it.byte_count, "", name)  # type: ignore[arg-type]
        for it in crossing
        if it.before_update == within
        for name, ranks in it.groups
    ]
    moved = max(site_bytes(operations, twin.layout.sites).values(), default=0.0)
    delays = of_bucket if within else twin.delays
    return max(0.0, alone_s - delays * fiber.delay_s - 8 * moved / fiber.rate_bps)


def _exposed_in_site(twin: Twin, compute_s: float, planned: Sequence[Volley], took_s: Sequence[float]) -> float:
    """Return what operations inside the site, in each step, are not hidden by the backward pass."""
    timed = list(zip(planned, took_s, strict=False))
    if any(it.crosses and it.before_update for it, _ in timed):
        return 0.0  # they belong to the exchange of each bucket
    bucket_s = sum(seconds for it, seconds in timed if it.before_update)
    if not bucket_s:
        return 0.0
    count, begin_s = _buckets(twin), FORWARD_SHARE * compute_s
    ready = [begin_s + (compute_s - begin_s) * (done + 1) / count for done in range(count)]
    return max(0.0, send_in_order(ready, bucket_s, 0.0, 0.0, None)[-1].arrived_s - compute_s)
