"""Bytes on the fibers: algorithms executed on numbers, with every message counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from builders.tables import table

from testbed.core.validation.bound import Placed
from testbed.core.validation.operation import OPERATIONS
from testbed.core.validation.traffic import BYPASS, crossing, diagnose_algorithm, least, patterns, payload_bytes

TWO = ("east", "east", "west", "west")
SPLIT = ("east", "west", "east", "west")
UNEQUAL = ("east", "east", "east", "west", "west")
THREE = ("alba", "alba", "brava", "brava", "costa", "costa")
N = 1_200_000


class Play:
    """Ranks that hold vectors and exchange pieces; counts the elements that cross."""

    def __init__(self, sites: Sequence[str], elements: int) -> None:
        self.sites, self.elements = sites, elements
        self.vectors = [[(rank + 1) * 1000 + it for it in range(elements)] for rank in range(len(sites))]
        self.sums = [sum(column) for column in zip(*self.vectors, strict=True)]
        self.toward: Counter[str] = Counter(dict.fromkeys(sites, 0))

    def send(self, sender: int, receiver: int, piece: range) -> list[int]:
        if self.sites[sender] != self.sites[receiver]:
            self.toward[self.sites[receiver]] += len(piece)
        return [self.vectors[sender][it] for it in piece]

    def bytes_toward(self) -> dict[str, float]:
        return {site: N * count / self.elements for site, count in self.toward.items()}


def _ring(sites: Sequence[str]) -> Play:
    """Patarasuk and Yuan: P - 1 steps that reduce, P - 1 that forward."""
    world = len(sites)
    play = Play(sites, 2 * world)

    def block(number: int) -> range:
        return range(2 * (number % world), 2 * (number % world) + 2)

    for adding in (True, False):
        for step in range(world - 1):
            shift = 0 if adding else 1
            sent = [(rank, block(rank - step + shift)) for rank in range(world)]
            came = [(rank, piece, play.send(rank, (rank + 1) % world, piece)) for rank, piece in sent]
            for rank, piece, values in came:
                mine = play.vectors[(rank + 1) % world]
                for place, value in zip(piece, values, strict=True):
                    mine[place] = mine[place] + value if adding else value
    return play


def _doubling(sites: Sequence[str]) -> Play:
    """Recursive doubling; ranks beyond the last power of two contribute before and get the result after."""
    world = len(sites)
    play = Play(sites, 4)
    whole = range(4)
    power = 2 ** (world.bit_length() - 1)
    aside = [(2 * it, 2 * it + 1) for it in range(world - power)]
    for away, stays in aside:
        play.vectors[stays] = [a + b for a, b in zip(play.vectors[stays], play.send(away, stays, whole), strict=True)]
    active = [rank for rank in range(world) if rank not in {away for away, _ in aside}]
    distance = 1
    while distance < power:
        came = {rank: play.send(active[place ^ distance], rank, whole) for place, rank in enumerate(active)}
        for rank, values in came.items():
            play.vectors[rank] = [a + b for a, b in zip(play.vectors[rank], values, strict=True)]
        distance *= 2
    for away, stays in aside:
        play.vectors[away] = play.send(stays, away, whole)
    return play


def _halving(sites: Sequence[str], nearest_first: bool) -> Play:
    """Rabenseifner's, on 2**k ranks: each step halves the part that a rank reduces; then the same in reverse."""
    world = len(sites)
    play = Play(sites, world * 2)
    bits = list(range(world.bit_length() - 1))
    order = bits if nearest_first else bits[::-1]
    part = {rank: range(play.elements) for rank in range(world)}
    history = []
    for bit in order:
        halves = {
            rank: (part[rank][: len(part[rank]) // 2], part[rank][len(part[rank]) // 2 :]) for rank in range(world)
        }
        kept = {rank: halves[rank][rank >> bit & 1] for rank in range(world)}
        came = {rank: play.send(rank ^ (1 << bit), rank, kept[rank]) for rank in range(world)}
        for rank, values in came.items():
            for place, value in zip(kept[rank], values, strict=True):
                play.vectors[rank][place] += value
        history.append((bit, part))
        part = kept
    for bit, before in reversed(history):
        other = {rank: part[rank ^ (1 << bit)] for rank in range(world)}
        came = {rank: play.send(rank ^ (1 << bit), rank, other[rank]) for rank in range(world)}
        for rank, values in came.items():
            for place, value in zip(other[rank], values, strict=True):
                play.vectors[rank][place] = value
        part = before
    return play


def _tree(sites: Sequence[str]) -> Play:
    """A binomial tree up to rank 0 and down again."""
    world = len(sites)
    play = Play(sites, 4)
    edges = [(rank, rank & (rank - 1)) for rank in range(1, world)]
    for child, parent in sorted(edges, key=lambda edge: edge[0] & -edge[0]):
        values = play.send(child, parent, range(4))
        play.vectors[parent] = [a + b for a, b in zip(play.vectors[parent], values, strict=True)]
    for child, parent in sorted(edges, key=lambda edge: -(edge[0] & -edge[0])):
        play.vectors[child] = play.send(parent, child, range(4))
    return play


@pytest.mark.parametrize("sites", [TWO, SPLIT, UNEQUAL, THREE, TWO + TWO])
def test_crossing_is_what_a_played_all_reduce_sends(sites: tuple[str, ...]) -> None:
    placed = Placed("all_reduce", N, sites)
    theory = {name: crossing(placed, messages) for name, messages in patterns(placed).items()}
    played = {"flat ring": _ring(sites), "recursive doubling": _doubling(sites), "binomial tree": _tree(sites)}
    if len(sites) in (4, 8):
        played["recursive halving, nearest first"] = _halving(sites, nearest_first=True)
        played["recursive halving, farthest first"] = _halving(sites, nearest_first=False)
    for name, play in played.items():
        assert all(vector == play.sums for vector in play.vectors), f"{name} as played here is no all_reduce"
        assert theory[name] == pytest.approx(play.bytes_toward()), name
        assert name in diagnose_algorithm(placed, play.bytes_toward()).split(" or "), name


def shares(do: str, sites: Sequence[str] = TWO) -> dict[str, float]:
    """What each pattern sends toward west, in units of n."""
    placed = Placed(do, N, tuple(sites))  # type: ignore[arg-type]
    return {name: crossing(placed, messages)["west"] / N for name, messages in patterns(placed).items()}


LITERATURE = {
    "all_reduce": {
        "hierarchical": 1.0,
        "flat ring": 1.5,
        "recursive halving, nearest first": 1.0,
        "recursive halving, farthest first": 2.0,
        "recursive doubling": 2.0,
        "binomial tree": 1.0,
        "direct exchange": 4.0,
    },
    "all_gather": {"hierarchical": 0.5, "flat ring": 0.75, "direct exchange": 1.0, "recursive doubling": 1.0},
    "broadcast": {
        "hierarchical": 1.0,
        "binomial tree": 1.0,
        "chain": 1.0,
        "scatter, then a ring": 1.25,
        "root to each": 2.0,
    },
    "all_to_all": {"direct exchange": 1.0},
}


@pytest.mark.parametrize("do", LITERATURE)
def test_crossing_on_two_by_two_is_that_of_the_literature(do: str) -> None:
    """2 (P - 1) / P of n in a flat ring, n at least: what gloo, MPICH and Open MPI were seen to put on a fiber."""
    assert shares(do) == pytest.approx(LITERATURE[do])


def test_crossing_of_a_ring_of_ranks_by_turns_is_on_every_hop() -> None:
    assert shares("all_reduce", SPLIT)["flat ring"] == pytest.approx(3.0)


@pytest.mark.parametrize("do", OPERATIONS)
@pytest.mark.parametrize("sites", [TWO, SPLIT, UNEQUAL, THREE, ("a", "b"), ("a", "a", "b")])
def test_patterns_send_no_less_than_must_cross(do: str, sites: tuple[str, ...]) -> None:
    for root in range(len(sites)):
        placed = Placed(do, N, sites, root, (root + 1) % len(sites))  # type: ignore[arg-type]
        must = least(placed)
        for name, messages in patterns(placed).items():
            found = crossing(placed, messages)
            assert all(found[site] >= must[site] - 1e-6 for site in must), (name, found, must)


@pytest.mark.parametrize("do", OPERATIONS)
def test_least_is_counted_element_by_element(do: str) -> None:
    """Which elements of other sites' are needed at a site, each once; of sums those that it is to have."""
    for sites in (TWO, UNEQUAL, THREE):
        world = len(sites)
        placed = Placed(do, world * 10, sites, 0, world - 1)  # type: ignore[arg-type]
        for site, found in least(placed).items():
            needed: set[tuple[int, ...]] = set()
            for receiver in (it for it in range(world) if sites[it] == site):
                for sender in (it for it in range(world) if sites[it] != site):
                    block = range(receiver * 10, receiver * 10 + 10)
                    wanted: dict[str, set[tuple[int, ...]]] = {
                        "all_reduce": {(it,) for it in range(world * 10)},
                        "reduce_scatter": {(it,) for it in block},
                        "reduce": {(it,) for it in range(world * 10)} if receiver == 0 else set(),
                        "all_gather": {(sender, it) for it in range(10)},
                        "all_to_all": {(sender, it) for it in block},
                        "broadcast": {(it,) for it in range(world * 10)} if sender == 0 else set(),
                        "send": {(it,) for it in range(world * 10)} if (sender, receiver) == (0, world - 1) else set(),
                        "barrier": set(),
                    }
                    needed |= wanted[do]
            assert found == pytest.approx(len(needed)), (do, sites, site)


ALL_REDUCE, BROADCAST = Placed("all_reduce", N, TWO), Placed("broadcast", N, TWO, root=2)


@table(
    "placed, east, west, expected",
    {
        # Torch gloo 2.13, 1 MiB to rank 0: bytes of payload.
        "gloo's reduce as it was measured": (Placed("reduce", 1 << 20, TWO), 1_311_776, 787_392, "ring, then gather"),
        "a way around the fiber": (ALL_REDUCE, N, 0.0, BYPASS),
        "too few bytes": (ALL_REDUCE, 0.94 * N, 0.94 * N, BYPASS),
        "few bytes of a broadcast": (BROADCAST, 0.5 * N, N, BYPASS),
        "no pattern": (ALL_REDUCE, 1.75 * N, 1.75 * N, ""),
        "other bytes each way": (ALL_REDUCE, 1.5 * N, 2 * N, ""),
        "a ring within the tolerance": (ALL_REDUCE, 1.44 * N, 1.56 * N, "flat ring"),
        "too little crossed": (Placed("all_reduce", 1000, TWO), 1500.0, 1500.0, ""),
        "a barrier": (Placed("barrier", 0, TWO), 100.0, 100.0, ""),
    },
)
def test_diagnose_algorithm(placed: Placed, east: float, west: float, expected: str) -> None:
    assert diagnose_algorithm(placed, {"east": east, "west": west}) == expected


def test_diagnose_algorithm_without_bytes_and_among_several() -> None:
    assert diagnose_algorithm(ALL_REDUCE, {}) == BYPASS
    assert diagnose_algorithm(Placed("all_reduce", N, ("east", "east")), {"east": 0.0}) == ""
    within = diagnose_algorithm(ALL_REDUCE, {"east": 0.97 * N, "west": 0.97 * N})
    assert within.startswith("hierarchical")
    assert "chain" in diagnose_algorithm(BROADCAST, {"east": N, "west": 0.0})


def test_crossing_toward_a_site_on_the_way_is_what_it_hands_on() -> None:
    """Three sites in a line: what goes from one end to the other comes toward the middle too."""
    line = ("a", "b", "c")
    through = {("a", "c"): ("ab:b", "bc:c"), ("c", "a"): ("bc:b", "ab:a")}
    placed = Placed("send", N, line, 0, 2)
    assert crossing(placed, patterns(placed)["direct"], through) == {"a": 0.0, "b": N, "c": N}
    assert diagnose_algorithm(placed, {"a": 0.0, "b": N, "c": N}, through) == "direct"


def test_payload_bytes_of_segments() -> None:
    """A segment of 1448 bytes is a frame of 1514; an acknowledgement is 66 bytes of nothing."""
    full, acknowledgements = 1000, 500
    wire = full * 1514 + acknowledgements * 66
    assert payload_bytes(wire, full + acknowledgements) == full * 1448
    assert payload_bytes(full * 1514) == pytest.approx(full * 1448)
    assert payload_bytes(full * (9000 + 14), mtu=9000) == pytest.approx(full * 8948)
    assert payload_bytes(0, 0) == 0
