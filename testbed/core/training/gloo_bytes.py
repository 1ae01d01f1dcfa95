"""Payload bytes of each hop between ranks, of a twin's operations as torch's gloo carries them out. Pure.

How gloo moves the bytes is its choice, not the strategy's. Each rule was measured over loopback with torch 2.13, from
the counters of each connection (``tests/unit/core/training/test_gloo_bytes.py``), for groups of R ranks in the order of
rank numbers, in which torch sorts every group:

- all_reduce: a ring; each rank sends 2 (R - 1) / R n to the rank *before* it (gloo/allreduce.cc);
- reduce_scatter: costs an all_reduce of the whole input, which is how torch's gloo does it;
- all_gather: a ring the other way; each rank sends (R - 1) / R n to the rank *after* it (gloo/allgather.cc);
- all_to_all: each rank sends n / R to every other rank (gloo/alltoall.cc);
- broadcast: a binomial tree from the source; rank v after it receives from v less its highest bit (gloo/broadcast.cc);
- send: from the first rank to the second.

gloo's own bytes are 96 for each message and 48 back (:func:`header_bytes`): of small messages some per cent. Barriers
are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from testbed.core.training.strategy_operation import Operation

__all__ = ["Hop", "header_bytes", "hop_bytes", "least_into", "site_bytes"]

MESSAGE_BYTES, ANSWER_BYTES = 96, 48
"""What gloo adds to a message, and answers to it."""

Hop = tuple[int, int]
"""Source rank and destination rank."""


def hop_bytes(operation: Operation) -> dict[Hop, float]:
    """Return the payload that an operation moves over each hop, in bytes; a group of one moves nothing."""
    count, hops = len(operation.ranks), defaultdict[Hop, float](float)
    if count > 1 and operation.byte_count:
        for hop, share in _shares(operation.kind, operation.ranks):
            hops[hop] += share * operation.byte_count
    return dict(hops)


def header_bytes(operation: Operation) -> dict[Hop, float]:
    """Return gloo's own bytes on each hop: of its messages, and of the answers to them, which go the other way."""
    rounds, hops = len(operation.ranks) - 1, defaultdict[Hop, float](float)
    messages = {"all_reduce": 4 * rounds, "reduce_scatter": 4 * rounds, "all_gather": 2 * rounds}
    count = messages.get(operation.kind, 1)
    for source, destination in hop_bytes(operation):
        hops[source, destination] += count * MESSAGE_BYTES
        hops[destination, source] += count * ANSWER_BYTES
    return dict(hops)


def site_bytes(
    operations: Iterable[Operation], sites: Sequence[str], of: Callable[[Operation], Mapping[Hop, float]] = hop_bytes
) -> dict[tuple[str, str], float]:
    """Return the payload between sites, in bytes by source and destination; ``sites`` are those of the ranks.

    ``of``: what is asked of each operation, such as :func:`header_bytes`.
    """
    total = defaultdict[tuple[str, str], float](float)
    for operation in operations:
        for (source, destination), byte_count in of(operation).items():
            if sites[source] != sites[destination]:
                total[sites[source], sites[destination]] += byte_count
    return dict(total)


def least_into(operation: Operation, sites: Sequence[str]) -> Mapping[str, float]:
    """Return the least payload that must enter each site, in bytes, however the library does the operation.

    The contributions of other sites can be summed on their way where the operation sums; they cannot be fewer than the
    result. Sites into which nothing must come are missing.
    """
    ranks, n = operation.ranks, operation.byte_count
    inside = {site: [rank for rank in ranks if sites[rank] == site] for site in dict.fromkeys(sites[r] for r in ranks)}
    least: dict[str, float] = {}
    for site, members in inside.items():
        others = len(ranks) - len(members)
        if not others:
            continue
        match operation.kind:
            case "all_reduce":
                least[site] = n
            case "reduce_scatter":
                least[site] = n * len(members) / len(ranks)
            case "all_gather":
                least[site] = n * others / len(ranks)
            case "all_to_all":
                least[site] = n * others * len(members) / len(ranks)
            case "broadcast" | "send" if ranks[0] not in members:
                least[site] = n
            case _:
                pass
    return least


def _shares(kind: str, ranks: Sequence[int]) -> Iterator[tuple[Hop, float]]:
    """Yield each hop and its share of the operation's bytes."""
    group, count = sorted(ranks), len(ranks)
    match kind:
        case "all_reduce" | "reduce_scatter":
            for index, rank in enumerate(group):
                yield (rank, group[index - 1]), 2.0 * (count - 1) / count
        case "all_gather":
            for index, rank in enumerate(group):
                yield (group[index - 1], rank), (count - 1) / count
        case "all_to_all":
            for source in group:
                for destination in group:
                    if source != destination:
                        yield (source, destination), 1.0 / count
        case "broadcast":
            first = group.index(ranks[0])
            behind = [*group[first:], *group[:first]]
            for index in range(1, count):
                yield (behind[index - (1 << index.bit_length() - 1)], behind[index]), 1.0
        case "send":
            yield (ranks[0], ranks[1]), 1.0
        case _:
            raise ValueError(f"unknown kind of operation '{kind}'")
