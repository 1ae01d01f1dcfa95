"""The bytes of each direction against what a ring moves: too few, too many, retransmitted, and only in calm steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire_check import EXCESS, check
from testbed.core.analysis.wire_directions import compare
from testbed.core.records.rank_log import JobRecord, RankLog, StepRecord
from testbed.core.records.samples import FiberSample
from testbed.core.topology.model import Topology
from testbed.host.files import catalog

GRADIENT = 1_000_000
STEPS = 100
SEGMENT = 1448


@pytest.fixture(scope="module")
def metro() -> Topology:
    return catalog.load_topology("metro-40km")


def logs(
    sites: Sequence[str] = ("east", "east", "west", "west"),
    algorithm: str = "gloo ring",
    resent: dict[int, dict[str, list[int]]] | None = None,
    early: dict[int, dict[str, list[int]]] | None = None,
) -> list[RankLog]:
    """A step a second: step i from i to i + 0.8. ``resent``: by rank and peer, the cumulative bytes of each step.
    ``early``: likewise packets that came out of order."""
    found = []
    for rank, site in enumerate(sites):
        rows = tuple(
            StepRecord(
                i,
                i,
                i + 0.5,
                i + 0.8,
                i + 0.9,
                8,
                retransmitted={peer: counts[i - 1] for peer, counts in (resent or {}).get(rank, {}).items()},
                out_of_order={peer: counts[i - 1] for peer, counts in (early or {}).get(rank, {}).items()},
            )
            for i in range(1, STEPS + 1)
        )
        job = JobRecord(0.5, rank, len(sites), f"n{rank}", site, "ddp", 1, GRADIENT, STEPS, algorithm=algorithm)
        found.append(RankLog(rank, (job,), rows))
    return found


def track(
    direction: str, per_step: float, *, acks: int = 0, drops: Sequence[int] = (), until: float = 103.0
) -> list[FiberSample]:
    """A sample each half second from 0.05 on; a step's bytes cross evenly while it runs, in full segments."""
    found = []
    for index in range(math.ceil(2 * until)):
        t = 0.05 + index / 2
        done = sum(min(1.0, max(0.0, (t - i) / 0.8)) for i in range(1, STEPS + 1))
        segments = round(done * per_step / SEGMENT)
        lost = drops[min(int(done), len(drops) - 1)] if drops else 0
        found.append(
            FiberSample(
                t,
                direction,
                packets=segments,
                segments=segments + acks * int(done),
                byte_count=segments * (SEGMENT + 66) + 66 * acks * int(done),
                drops={"queue": lost},
                queue_bytes=None,
                lateness_bounds_s=(),
                lateness_counts=(),
            )
        )
    return found


def fibers(west: float, east: float = 1.5, south: float = 0.0) -> list[FiberSample]:
    """In units of the gradient per step: north toward west and east, and south toward west."""
    return [
        *track("north:west", west * GRADIENT, acks=300),
        *track("north:east", east * GRADIENT, acks=300),
        *track("south:west", south * GRADIENT),
        *track("south:east", 0.0),
    ]


@pytest.mark.parametrize(
    ("share", "finding"),
    [(1.0, "ok"), (0.97, "ok"), (1.03, "ok"), (0.9, "few"), (0.67, "few"), (1.1, "many"), (2.0, "many")],
)
def test_a_direction_carries_what_the_ring_moves_within_five_percent_both_ways(
    metro: Topology, share: float, finding: str
) -> None:
    samples = fibers(1.5 * share)
    found = {it.direction: it for it in compare(metro, logs(), samples, ())}
    assert set(found) == {"north:west", "north:east", "south:west", "south:east"}
    west = found["north:west"]
    assert west.ratio == pytest.approx(share, rel=0.005)
    assert (west.ok, west.too_few, west.too_many) == (finding == "ok", finding == "few", finding == "many")
    assert found["north:east"].ok
    verdict = check(logs(), samples, topology=metro)
    assert verdict.compared_with == "algorithm"
    assert verdict.ok is (finding == "ok")
    if finding != "ok":
        assert "north:west" in verdict.sentence
        assert verdict.sentence.startswith("A collective bypassed" if finding == "few" else EXCESS)


def test_a_fiber_off_the_ring_carries_nothing_but_acknowledgements(metro: Topology) -> None:
    assert check(logs(), fibers(1.5, south=0.02), topology=metro).ok is True
    verdict = check(logs(), fibers(1.5, south=0.2), topology=metro)
    assert verdict.ok is False
    assert verdict.sentence.startswith(EXCESS)
    assert "south:west" in verdict.sentence


def test_bytes_on_another_fiber_do_not_make_up_for_those_that_are_missing(metro: Topology) -> None:
    """The sum into the site is what a ring moves; the direction is not."""
    verdict = check(logs(), fibers(1.0, south=0.5), topology=metro)
    assert verdict.ok is False
    assert sum(cut.measured_bytes for cut in verdict.cuts) == pytest.approx(verdict.expected_bytes, rel=0.03)


def test_what_was_retransmitted_is_no_payload(metro: Topology) -> None:
    """A fifth of each step crosses twice: the receiver had it already."""
    peer = "10.2.1.1"  # west-0, from east-1
    more = [int(0.3 * GRADIENT * i) for i in range(1, STEPS + 1)]
    samples = fibers(1.8)
    assert check(logs(), samples, topology=metro).ok is False
    verdict = check(logs(resent={1: {peer: more}}), samples, topology=metro)
    assert verdict.ok is True
    (west,) = [it for it in verdict.directions if it.direction == "north:west"]
    assert west.ratio == pytest.approx(1.0, abs=0.02)
    assert west.retransmitted_bytes > 0


def test_what_ranks_sent_before_their_first_step_does_not_count(metro: Topology) -> None:
    """Rank 3 begins the first step 0.7 s later: until then parameters that were spread before are on their way."""
    late = [
        replace(log, steps=(replace(log.steps[0], t_begin=1.7), *log.steps[1:])) if log.rank == 3 else log
        for log in logs()
    ]
    samples = [
        replace(it, byte_count=it.byte_count + 20 * GRADIENT) if it.t > 1.3 and it.direction == "north:west" else it
        for it in fibers(1.5)
    ]
    assert check(logs(), samples, topology=metro).ok is False
    assert check(late, samples, topology=metro).ok is True


def test_lists_of_what_came_out_of_order_are_no_excess(metro: Topology) -> None:
    """A tenth of what goes east is in acknowledgements of packets from the east that came out of order at rank 2."""
    peer, often = "10.1.1.2", round(0.15 * GRADIENT / 28)  # east-1
    samples = fibers(1.5, east=1.65)
    assert check(logs(), samples, topology=metro).ok is False
    verdict = check(logs(early={2: {peer: [often * i for i in range(1, STEPS + 1)]}}), samples, topology=metro)
    assert verdict.ok is True
    assert "acknowledgements of packets out of order" in verdict.sentence
    # The other way they excuse nothing.
    assert check(logs(early={1: {"10.2.1.1": [often * STEPS] * STEPS}}), samples, topology=metro).ok is False


def test_a_retransmission_that_replaces_a_drop_crosses_once(metro: Topology) -> None:
    more = [int(0.3 * GRADIENT * i) for i in range(1, STEPS + 1)]
    lost = [count // SEGMENT for count in [0, *more]]
    samples = [
        *track("north:west", 1.5 * GRADIENT, drops=lost),
        *track("north:east", 1.5 * GRADIENT),
    ]
    verdict = check(logs(resent={1: {"10.2.1.1": more}}), samples, topology=metro)
    assert verdict.ok is True
    (west,) = [it for it in verdict.directions if it.direction == "north:west"]
    assert west.ratio == pytest.approx(1.0, abs=0.02)


def test_only_calm_steps_are_compared(metro: Topology) -> None:
    """During the cut, from 40 to 70 s, the ring crosses south; the bound holds there, the comparison is of the rest."""
    cut = FaultWindow("f1", "cut", "north", ("north",), 40.0, 70.0)
    samples = []
    for direction, over in (("north", False), ("south", True)):
        for site in ("west", "east"):
            counted = 0
            for sample in track(f"{direction}:{site}", 1.5 * GRADIENT):
                before = samples[-1].t if samples and samples[-1].direction == sample.direction else None
                if before is not None and (40.0 <= before < 70.0) is over:
                    counted += round(0.5 * 1.5 * GRADIENT / SEGMENT)
                samples.append(
                    FiberSample(
                        sample.t, sample.direction, counted, counted, counted * (SEGMENT + 66), {}, None, (), ()
                    )
                )
    assert check(logs(), samples, topology=metro).ok is False
    verdict = check(logs(), samples, topology=metro, windows=(cut,))
    assert verdict.compared_with == "algorithm"
    assert verdict.ok is True, verdict.lines
    assert 60 < verdict.directions[0].steps < 72


@pytest.mark.parametrize(
    "case", ["unknown algorithm", "never calm", "no topology"], ids=["unknown algorithm", "never calm", "no topology"]
)
def test_where_the_algorithm_cannot_be_compared_a_bound_is_said_to_be_one(metro: Topology, case: str) -> None:
    always = FaultWindow("f1", "jitter", "north", ("north",), 0.0, None)
    verdict = check(
        logs(algorithm="" if case == "unknown algorithm" else "gloo ring"),
        fibers(1.1, 1.1),
        topology=None if case == "no topology" else metro,
        windows=(always,) if case == "never calm" else (),
    )
    assert (verdict.compared_with, verdict.directions) == ("bound", ())
    assert verdict.ok is True
    assert "a bound" in verdict.sentence
    assert "bound" not in check(logs(), fibers(1.5), topology=metro).sentence


def test_less_than_the_bound_is_a_bypass_also_where_the_algorithm_is_unknown(metro: Topology) -> None:
    verdict = check(logs(algorithm=""), fibers(0.5, 0.5), topology=metro)
    assert verdict.ok is False
    assert "bypassed" in verdict.sentence


def test_in_a_ring_of_sites_each_hop_is_expected_on_the_fibers_that_it_is_routed_over() -> None:
    triangle = catalog.load_topology("metro-triangle")
    sites = [site.name for site in triangle.sites for _ in range(site.nodes)]
    by_ends = {frozenset(link.between): link for link in triangle.links}
    names = [site.name for site in triangle.sites]
    # The three sites are joined pairwise, and the fiber between two of them is the shortest path: a hop, a fiber.
    # Gloo sends to the rank before: measured in a ring of four sites, where the other directions carry nothing.
    used = {f"{by_ends[frozenset((a, b))].name}:{b}" for a, b in zip(names, [names[-1], *names[:-1]], strict=True)}
    per_step = 2 * (len(sites) - 1) / len(sites) * GRADIENT
    samples = [
        it
        for link in triangle.links
        for direction in link.directions
        for it in track(direction, per_step if direction in used else 0.0)
    ]
    found = compare(triangle, logs(sites), samples, ())
    assert {it.direction for it in found if it.expected_bytes} == used
    assert all(it.ok for it in found)
    assert {round(it.ratio, 2) for it in found if it.ratio is not None} == {1.0}
