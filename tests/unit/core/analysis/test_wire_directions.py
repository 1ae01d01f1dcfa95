"""The bytes of each direction against what a ring moves: too few, too many, retransmitted, and only in calm steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.tables import table
from builders.wire_records import METRO, SEGMENT, SITES, STEPS, Burst, job_logs, sample, track

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire.wire_check import EXCESS, WireVerdict, check
from testbed.core.analysis.wire.wire_directions import DirectionBytes, compare
from testbed.core.records.rank_log import RankLog, StepRecord
from testbed.core.records.samples import FiberSample
from testbed.host.files import catalog

GRADIENT = 1_000_000
EACH_STEP = range(1, STEPS + 1)
Counts = Mapping[int, tuple[str, Sequence[int]]]
"""By rank: a peer, and the cumulative count after each step."""


def logs(sites: Sequence[str] = SITES, algorithm: str = "gloo ring", **counts: Counts) -> list[RankLog]:
    """A step a second: step i from i to i + 0.8. ``counts``: ``retransmitted`` bytes, or packets ``out_of_order``."""
    steps = [StepRecord(i, i, i + 0.5, i + 0.8, i + 0.9, 8) for i in EACH_STEP]
    found = job_logs(steps, GRADIENT, sites, algorithm=algorithm)
    for name, by_rank in counts.items():
        for rank, (peer, values) in by_rank.items():
            fields: list[dict[str, Any]] = [{name: {peer: value}} for value in values]
            rows = (replace(row, **changes) for row, changes in zip(steps, fields, strict=True))
            found[rank] = replace(found[rank], steps=tuple(rows))
    return found


def bursts(share: float) -> list[Burst]:
    """The bytes of each step, in units of the gradient; they cross evenly while it runs."""
    return [(i, i + 0.8, share * GRADIENT) for i in EACH_STEP]


def fibers(west: float, east: float = 1.5, south: float = 0.0) -> list[FiberSample]:
    """In units of the gradient per step: north toward west and east, and south toward west."""
    return [
        *track("north:west", bursts(west), acks=300),
        *track("north:east", bursts(east), acks=300),
        *track("south:west", bursts(south)),
        *track("south:east", ()),
    ]


def verdict(samples: Sequence[FiberSample], job: Sequence[RankLog] | None = None, **fields: Any) -> WireVerdict:
    return check(logs() if job is None else job, samples, **{"topology": METRO, **fields})


def toward_west(directions: Sequence[DirectionBytes]) -> DirectionBytes:
    return next(it for it in directions if it.direction == "north:west")


@pytest.mark.parametrize(
    ("share", "finding"),
    [(1.0, "ok"), (0.97, "ok"), (1.03, "ok"), (0.9, "few"), (0.67, "few"), (1.1, "many"), (2.0, "many")],
)
def test_compare_accepts_five_percent_both_ways(share: float, finding: str) -> None:
    samples = fibers(1.5 * share)
    directions = compare(METRO, logs(), samples, ())
    assert {it.direction for it in directions} == {"north:west", "north:east", "south:west", "south:east"}
    west = toward_west(directions)
    assert west.ratio == pytest.approx(share, rel=0.005)
    assert (west.ok, west.too_few, west.too_many) == (finding == "ok", finding == "few", finding == "many")
    assert next(it for it in directions if it.direction == "north:east").ok
    judged = verdict(samples)
    assert (judged.compared_with, judged.ok) == ("algorithm", finding == "ok")
    if finding != "ok":
        assert "north:west" in judged.sentence
        assert judged.sentence.startswith("A collective bypassed" if finding == "few" else EXCESS)


def test_check_expects_nothing_but_acknowledgements_off_the_ring() -> None:
    assert verdict(fibers(1.5, south=0.02)).ok is True
    excess = verdict(fibers(1.5, south=0.2))
    assert excess.ok is False
    assert excess.sentence.startswith(EXCESS)
    assert "south:west" in excess.sentence


def test_check_does_not_make_up_for_missing_bytes_by_those_on_another_fiber() -> None:
    """The sum into the site is what a ring moves; the direction is not."""
    judged = verdict(fibers(1.0, south=0.5))
    assert judged.ok is False
    assert sum(cut.measured_bytes for cut in judged.cuts) == pytest.approx(judged.expected_bytes, rel=0.03)


WEST_0, EAST_1 = "10.2.1.1", "10.1.1.2"
RESENT = [int(0.3 * GRADIENT * i) for i in EACH_STEP]
"""A fifth of each step crosses twice: the receiver had it already."""


def test_check_takes_off_what_was_retransmitted() -> None:
    samples = fibers(1.8)
    assert verdict(samples).ok is False
    judged = verdict(samples, logs(retransmitted={1: (WEST_0, RESENT)}))
    assert judged.ok is True
    west = toward_west(judged.directions)
    assert west.ratio == pytest.approx(1.0, abs=0.02)
    assert west.retransmitted_bytes > 0


def test_check_counts_a_retransmission_that_replaces_a_drop_once() -> None:
    lost = [count // SEGMENT for count in [0, *RESENT]]
    samples = [*track("north:west", bursts(1.5), drops=lost), *track("north:east", bursts(1.5))]
    judged = verdict(samples, logs(retransmitted={1: (WEST_0, RESENT)}))
    assert judged.ok is True
    assert toward_west(judged.directions).ratio == pytest.approx(1.0, abs=0.02)


def test_check_ignores_what_ranks_sent_before_their_first_step() -> None:
    """Rank 3 begins the first step 0.7 s later: until then parameters that were spread before are on their way."""
    *others, last = logs()
    late = replace(last, steps=(replace(last.steps[0], t_begin=1.7), *last.steps[1:]))
    samples = [
        replace(it, byte_count=it.byte_count + 20 * GRADIENT) if it.t > 1.3 and it.direction == "north:west" else it
        for it in fibers(1.5)
    ]
    assert verdict(samples).ok is False
    assert verdict(samples, [*others, late]).ok is True


def test_check_excuses_acknowledgements_of_what_came_out_of_order() -> None:
    """A tenth of what goes east is in acknowledgements of packets from the east that came out of order at rank 2."""
    often = round(0.15 * GRADIENT / 28)
    samples = fibers(1.5, east=1.65)
    assert verdict(samples).ok is False
    judged = verdict(samples, logs(out_of_order={2: (EAST_1, [often * i for i in EACH_STEP])}))
    assert judged.ok is True
    assert "acknowledgements of packets out of order" in judged.sentence
    # The other way they excuse nothing.
    assert verdict(samples, logs(out_of_order={1: (WEST_0, [often * STEPS] * STEPS)})).ok is False


def test_check_compares_only_calm_steps() -> None:
    """During the cut, from 40 to 70 s, the ring crosses south; the bound holds there, the comparison is of the rest."""
    cut = FaultWindow("f1", "cut", "north", ("north",), 40.0, 70.0)
    per_sample = round(0.5 * 1.5 * GRADIENT / SEGMENT)
    samples = []
    for link, during_cut in (("north", False), ("south", True)):
        for site in ("west", "east"):
            segments, before_t = 0, None
            for it in track(f"{link}:{site}", ()):
                if before_t is not None and (40.0 <= before_t < 70.0) is during_cut:
                    segments += per_sample
                samples.append(sample(it.t, segments * (SEGMENT + 66), it.direction, segments))
                before_t = it.t
    assert verdict(samples).ok is False
    judged = verdict(samples, windows=(cut,))
    assert judged.compared_with == "algorithm"
    assert judged.ok is True, judged.lines
    assert 60 < judged.directions[0].steps < 72


@table(
    "algorithm, fields",
    {
        "unknown algorithm": ("", {}),
        "never calm": ("gloo ring", {"windows": [FaultWindow("f1", "jitter", "north", ("north",), 0.0, None)]}),
        "no topology": ("gloo ring", {"topology": None}),
    },
)
def test_check_calls_a_bound_one_where_the_algorithm_cannot_be_compared(algorithm: str, fields: dict) -> None:
    judged = verdict(fibers(1.1, 1.1), logs(algorithm=algorithm), **fields)
    assert (judged.compared_with, judged.directions, judged.ok) == ("bound", (), True)
    assert "a bound" in judged.sentence
    assert "bound" not in verdict(fibers(1.5)).sentence


def test_check_finds_a_bypass_by_the_bound_where_the_algorithm_is_unknown() -> None:
    judged = verdict(fibers(0.5, 0.5), logs(algorithm=""))
    assert judged.ok is False
    assert "bypassed" in judged.sentence


def test_compare_expects_each_hop_of_a_ring_of_sites_on_the_fibers_that_it_is_routed_over() -> None:
    triangle = catalog.load_topology("metro-triangle")
    sites = [site.name for site in triangle.sites for _ in range(site.nodes)]
    by_ends = {frozenset(link.between): link.name for link in triangle.links}
    names = [site.name for site in triangle.sites]
    # The three sites are joined pairwise, and the fiber between two of them is the shortest path: a hop, a fiber.
    # Gloo sends to the rank before: measured in a ring of four sites, where the other directions carry nothing.
    used = {f"{by_ends[frozenset(hop)]}:{hop[1]}" for hop in zip(names, [names[-1], *names[:-1]], strict=True)}
    share = 2 * (len(sites) - 1) / len(sites)
    samples = [
        it
        for link in triangle.links
        for direction in link.directions
        for it in track(direction, bursts(share if direction in used else 0.0))
    ]
    directions = compare(triangle, logs(sites), samples, ())
    assert {it.direction for it in directions if it.expected_bytes} == used
    assert all(it.ok for it in directions)
    assert {round(it.ratio, 2) for it in directions if it.ratio is not None} == {1.0}
