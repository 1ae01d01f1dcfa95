"""Bytes on the fibers: what crossed, what had to cross, and what that says about the algorithm.

A *pattern* is a way of making a collective of messages between ranks. Each is written as the messages that it sends
(from rank, to rank, bytes), in the order of the ranks; only those between sites cross a fiber. Two patterns may put the
same bytes on the fibers; then both are named. Sources: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms
(2009), for the ring; Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH
(2005), for the others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from testbed.core.topology.direction import head_of
from testbed.core.training.strategies.hierarchical import Hierarchical
from testbed.core.validation.bound import Placed
from testbed.core.validation.operation import OperationName

__all__ = [
    "BYPASS",
    "HEADERS_BYTES",
    "TOLERANCE",
    "Message",
    "crossing",
    "diagnose_algorithm",
    "least",
    "patterns",
    "payload_bytes",
]

HEADERS_BYTES: Final = 14 + 20 + 32
"""Around the payload of each segment: Ethernet, IPv4, TCP with timestamps. A bare acknowledgement is headers only."""

TOLERANCE: Final = 0.05
"""Relative difference allowed between measured bytes and a pattern's: a library's own headers, retransmissions."""

SMALLEST_BYTES: Final = 64 << 10
"""With fewer bytes toward the site that receives most, the library's own headers are too large a part to diagnose."""

BYPASS: Final = "bypass"

Message = tuple[int, int, float]
"""(from, to, bytes); ranks by their number in the group."""


def payload_bytes(wire_bytes: int, segments: int | None = None, mtu: int = 1500) -> float:
    """Return the TCP payload in ``wire_bytes`` at layer 2 of this number of ``segments``, acknowledgements included.

    Without ``segments`` every segment counts as full, and acknowledgements count as payload.
    """
    if segments is not None:
        return float(max(0, wire_bytes - HEADERS_BYTES * segments))
    frame = mtu + 14
    return wire_bytes * (frame - HEADERS_BYTES) / frame


def least(placed: Placed) -> dict[str, float]:
    """Return the least bytes that must cross toward each site with ranks; all 0 where the ranks are at one site."""
    sites = list(placed.ranks_at)
    return {head: placed.must_cross([site for site in sites if site != head], [head]) for head in sites}


def crossing(
    placed: Placed, messages: Iterable[Message], through: Mapping[tuple[str, str], Sequence[str]] | None = None
) -> dict[str, float]:
    """Return the bytes of these ``messages`` that arrive at each site.

    ``through`` gives, for a pair of sites, the directions (``link:site``) that its traffic takes; without it they are
    neighbours. A transit site counts what it forwards, too.
    """
    bytes_by_site: dict[str, float] = dict.fromkeys(placed.ranks_at, 0.0)
    for sender, receiver, size in messages:
        tail, head = placed.sites[sender], placed.sites[receiver]
        if tail == head:
            continue
        path = (through or {}).get((tail, head)) or (f":{head}",)
        for direction in path:
            site = head_of(direction)
            bytes_by_site[site] = bytes_by_site.get(site, 0.0) + size
    return bytes_by_site


def toward_sites(crossing: Mapping[str, int]) -> Counter[str]:
    """Return the bytes toward each site, over all links, from those of each direction."""
    toward: Counter[str] = Counter()
    for direction, byte_count in crossing.items():
        toward[head_of(direction)] += byte_count
    return toward


def patterns(placed: Placed) -> dict[str, tuple[Message, ...]]:
    """Return the messages of every known pattern of this operation, by name, the likelier first."""
    messages_by_name = {name: tuple(made(placed)) for name, made in _PATTERNS.get(placed.do, {}).items()}
    return {name: messages for name, messages in messages_by_name.items() if messages}


def diagnose_algorithm(
    placed: Placed,
    measured: Mapping[str, float],
    through: Mapping[tuple[str, str], Sequence[str]] | None = None,
    tolerance: float = TOLERANCE,
) -> str:
    """Diagnose the algorithm from the payload bytes of one operation that arrived at each site.

    ``bypass``: fewer bytes than must cross. Otherwise the names of all patterns whose bytes differ by at most
    ``tolerance`` toward every site; empty: no pattern matches, or too little crossed to tell.
    """
    for site, must in least(placed).items():
        if must >= SMALLEST_BYTES and measured.get(site, 0.0) < (1 - tolerance) * must:
            return BYPASS
    if max(least(placed).values(), default=0.0) < SMALLEST_BYTES:
        return ""
    names = []
    for name, messages in patterns(placed).items():
        theory = crossing(placed, messages, through)
        largest = max(theory.values())
        if all(
            abs(measured.get(site, 0.0) - due) <= tolerance * max(due, 0.1 * largest) for site, due in theory.items()
        ):
            names.append(name)
    return " or ".join(names)


# ---- patterns; P ranks, n bytes: of the vector, or of all blocks


def _ring(share: float) -> Callable[[Placed], Iterator[Message]]:
    """Every rank sends n/P ``share`` * (P - 1) times to the next rank in order."""

    def made(placed: Placed) -> Iterator[Message]:
        world = len(placed.sites)
        for rank in range(world):
            yield rank, (rank + 1) % world, share * (world - 1) / world * placed.size

    return made


def _ring_of_sites(placed: Placed) -> Iterator[Message]:
    """An all_reduce in a ring of sites with one rank of each; the others are reached within their site."""
    leaders = _leaders(placed)
    count = len(leaders)
    for place, leader in enumerate(leaders):
        yield leader, leaders[(place + 1) % count], 2 * (count - 1) / count * placed.size


def _blocks_of_sites(of_receiver: bool) -> Callable[[Placed], Iterator[Message]]:
    """Every site's blocks go to every other site once (``of_receiver``: of the sums, the receiver's blocks)."""

    def made(placed: Placed) -> Iterator[Message]:
        leaders = _leaders(placed)
        for leader, other in itertools.permutations(leaders, 2):
            ranks = placed.ranks_at[placed.sites[other if of_receiver else leader]]
            yield leader, other, ranks * _block(placed)

    return made


def _doubling(placed: Placed) -> Iterator[Message]:
    """Recursive doubling: all n with the rank at distance 1, 2, 4, …; a surplus rank sends its input to a partner
    first, and gets the result from it."""
    whole = 1 << (len(placed.sites).bit_length() - 1)
    surplus = len(placed.sites) - whole
    # As in MPICH: of the first 2 x surplus ranks the even ones do not take part.
    active = [2 * pair + 1 for pair in range(surplus)] + list(range(2 * surplus, len(placed.sites)))
    for pair in range(surplus):
        yield 2 * pair, 2 * pair + 1, float(placed.size)
        yield 2 * pair + 1, 2 * pair, float(placed.size)
    distance = 1
    while distance < whole:
        for place, rank in enumerate(active):
            yield rank, active[place ^ distance], float(placed.size)
        distance *= 2


def _halving(nearest_first: bool, there: bool = True, back: bool = True) -> Callable[[Placed], Iterator[Message]]:
    """Recursive halving ``there``: a half of n with the first partner, a quarter with the second, …, at distance 1, 2,
    4, … or in reverse; and recursive doubling ``back``, in the opposite order. For 2**k ranks."""

    def made(placed: Placed) -> Iterator[Message]:
        world = len(placed.sites)
        if world & (world - 1):
            return
        distances = [1 << bit for bit in range(world.bit_length() - 1)]
        for turn, distance in enumerate(distances if nearest_first else reversed(distances), 1):
            for rank in range(world):
                yield rank, rank ^ distance, (there + back) * placed.size / 2**turn

    return made


def _scattered(placed: Placed) -> Iterator[Message]:
    """A broadcast after van de Geijn: blocks are scattered in a binomial tree, then gathered in a ring."""
    world = len(placed.sites)
    for number in range(1, world):
        below = min(number & -number, world - number)  # ranks of the subtree, whose blocks it receives
        child, above = ((virtual_rank + placed.root) % world for virtual_rank in (number, number & (number - 1)))
        yield above, child, below / world * placed.size
    yield from _ring(1)(placed)


def _ring_and_gather(placed: Placed) -> Iterator[Message]:
    """A reduce as in gloo: a reduce_scatter in a ring, then every rank's block to the root."""
    yield from _ring(1)(placed)
    for rank in range(len(placed.sites)):
        if rank != placed.root:
            yield rank, placed.root, _block(placed)


def _binomial(from_root: bool, to_root: bool) -> Callable[[Placed], Iterator[Message]]:
    """A binomial tree from the operation's root, with the whole vector on each edge."""

    def made(placed: Placed) -> Iterator[Message]:
        world = len(placed.sites)
        for number in range(1, world):
            parent = number & (number - 1)
            child, above = ((virtual_rank + placed.root) % world for virtual_rank in (number, parent))
            if to_root:
                yield child, above, float(placed.size)
            if from_root:
                yield above, child, float(placed.size)

    return made


def _flat(from_root: bool) -> Callable[[Placed], Iterator[Message]]:
    """One message between the root and every other rank."""

    def made(placed: Placed) -> Iterator[Message]:
        for rank in range(len(placed.sites)):
            if rank != placed.root:
                ends = (placed.root, rank) if from_root else (rank, placed.root)
                yield (*ends, float(placed.size))

    return made


def _direct(share: Callable[[Placed], float]) -> Callable[[Placed], Iterator[Message]]:
    """Every rank sends ``share`` to every other."""

    def made(placed: Placed) -> Iterator[Message]:
        for rank in range(len(placed.sites)):
            for other in range(len(placed.sites)):
                if other != rank:
                    yield rank, other, share(placed)

    return made


def _chain(from_root: bool) -> Callable[[Placed], Iterator[Message]]:
    """From rank to rank in order, beginning or ending at the root, pipelined in pieces."""

    def made(placed: Placed) -> Iterator[Message]:
        world = len(placed.sites)
        for number in range(world - 1):
            near, far = ((virtual_rank + placed.root) % world for virtual_rank in (number, number + 1))
            yield (near, far, float(placed.size)) if from_root else (far, near, float(placed.size))

    return made


def _tree_of_sites(from_root: bool) -> Callable[[Placed], Iterator[Message]]:
    """The vector once between the root's site and each other site."""

    def made(placed: Placed) -> Iterator[Message]:
        for leader in _leaders(placed):
            if placed.sites[leader] != placed.sites[placed.root]:
                ends = (placed.root, leader) if from_root else (leader, placed.root)
                yield (*ends, float(placed.size))

    return made


def _one(placed: Placed) -> Iterator[Message]:
    yield placed.root, placed.to, float(placed.size)


def _leaders(placed: Placed) -> list[int]:
    return [placed.sites.index(site) for site in placed.ranks_at]


def _block(placed: Placed) -> float:
    return placed.size / len(placed.sites)


def _whole(placed: Placed) -> float:
    return float(placed.size)


_TWO_LEVEL: Final = Hierarchical.name
"""Collectives in two levels have the name of the strategy that averages gradients so."""

_PATTERNS: Final[Mapping[OperationName, Mapping[str, Callable[[Placed], Iterator[Message]]]]] = {
    "all_reduce": {
        _TWO_LEVEL: _ring_of_sites,
        "flat ring": _ring(2),
        "recursive halving, nearest first": _halving(nearest_first=True),
        "recursive halving, farthest first": _halving(nearest_first=False),
        "recursive doubling": _doubling,
        "binomial tree": _binomial(True, True),
        "direct exchange": _direct(_whole),
    },
    "reduce_scatter": {
        _TWO_LEVEL: _blocks_of_sites(True),
        "flat ring": _ring(1),
        "direct exchange": _direct(_block),
        "recursive halving, nearest first": _halving(nearest_first=True, back=False),
        "recursive halving, farthest first": _halving(nearest_first=False, back=False),
        "all_reduce in a flat ring": _ring(2),
    },
    "all_gather": {
        _TWO_LEVEL: _blocks_of_sites(False),
        "flat ring": _ring(1),
        "direct exchange": _direct(_block),
        "recursive doubling": _halving(nearest_first=False, there=False),
    },
    "broadcast": {
        _TWO_LEVEL: _tree_of_sites(True),
        "binomial tree": _binomial(True, False),
        "chain": _chain(True),
        "scatter, then a ring": _scattered,
        "root to each": _flat(True),
    },
    "reduce": {
        _TWO_LEVEL: _tree_of_sites(False),
        "binomial tree": _binomial(False, True),
        "chain": _chain(False),
        "ring, then gather": _ring_and_gather,
        "each to root": _flat(False),
        "all_reduce in a flat ring": _ring(2),
    },
    "all_to_all": {"direct exchange": _direct(_block)},
    "send": {"direct": _one},
}
