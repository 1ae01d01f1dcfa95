"""Groups and operations that several strategies share: slices between replicas, sums over replicas, gathers in a site.

Names of groups are those of ``testbed_agents.groups``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from testbed.core.training.layout import Layout
from testbed.core.training.strategy_operation import Kind, Operation
from testbed.core.training.twin import Mistake
from testbed.core.user_text import unknown

__all__ = [
    "BUCKETS_IN_SITE",
    "gather_in_sites",
    "in_sites",
    "mean_in_sites",
    "site_groups",
    "slice_groups",
    "sum_over_replicas",
    "unequal_sites",
    "unknown_aggregator",
    "unknown_site",
]

BUCKETS_IN_SITE = 8
"""Parts of the mean gradient of a site (``testbed_agents.exchange.gradients.BUCKETS``)."""

Groups = list[tuple[str, tuple[int, ...]]]
"""Name and ranks of each group."""


def site_groups(layout: Layout) -> Groups:
    """Return the group of each site's ranks."""
    return [(f"site:{name}", ranks) for name, ranks in layout.members.items()]


def slice_groups(layout: Layout, replica: str = "site", suffix: str = "") -> Groups:
    """Return the groups that exchange one slice of the model each between replicas.

    ``replica``: ``site``, of which rank i holds slice i; or ``rank``, which holds everything.
    """
    if replica == "rank":
        return [(f"replicas{suffix}", layout.everyone)]
    members = layout.members.values()
    return [(f"slice:{index}{suffix}", tuple(ranks[index] for ranks in members)) for index in range(layout.slices)]


def sum_over_replicas(sums: Iterable[Operation], layout: Layout, aggregate_at: str = "") -> list[Operation]:
    """Return how replicas carry out all-reduces: two send to each other, more do them as they are.

    If a rank of a group is at the site ``aggregate_at``, the others send to it, then it sends back the sum.
    """
    operations: list[Operation] = []
    for operation in sums:
        ranks = operation.ranks
        aggregator = next((rank for rank in ranks if layout.sites[rank] == aggregate_at), None)
        if len(ranks) < 2:
            continue
        if aggregator is not None:
            others = [rank for rank in ranks if rank != aggregator]
            operations += [replace(operation, kind="send", ranks=(rank, aggregator)) for rank in others]
            operations += [replace(operation, kind="send", ranks=(aggregator, rank), turn=1) for rank in others]
        elif len(ranks) == 2:
            operations += [replace(operation, kind="send", ranks=pair) for pair in (ranks, ranks[::-1])]
        else:
            operations.append(operation)
    return operations


def in_sites(
    layout: Layout, kind: Kind, byte_count: float, what: str, suffix: str = "", parts: int = 0
) -> list[Operation]:
    """Return an operation of the ranks of each site that has several."""
    return [
        Operation(kind, ranks, byte_count, what, name + suffix, parts=parts)
        for name, ranks in site_groups(layout)
        if len(ranks) > 1
    ]


def mean_in_sites(layout: Layout) -> list[Operation]:
    """Return the operations of the mean gradient over the ranks of each site, beside the backward pass."""
    return in_sites(layout, "all_reduce", layout.payload_bytes, "gradients", parts=BUCKETS_IN_SITE)


def gather_in_sites(layout: Layout, byte_count: float, what: str = "parameters", suffix: str = "") -> list[Operation]:
    """Return the operations that bring all slices of ``byte_count`` to all ranks of each site."""
    # A rank without a slice takes part with an empty one of the same size.
    gathers = in_sites(layout, "all_gather", byte_count / layout.slices, what, suffix)
    return [replace(gather, byte_count=gather.byte_count * len(gather.ranks)) for gather in gathers]


def unknown_aggregator(layout: Layout, aggregate_at: str) -> list[Mistake]:
    """Return the mistake of an ``aggregate_at`` that names no site with ranks."""
    if not aggregate_at or aggregate_at in layout.members:
        return []
    message, fix = unknown("site", aggregate_at, layout.site_names)
    return [Mistake("aggregate_at", message, fix or "name a site of the topology")]


def unknown_site(layout: Layout, option: str, what: str, name: str) -> list[Mistake]:
    """Return the mistake of an option that names no site with ranks."""
    if name in layout.members:
        return []
    message, fix = unknown(what, name, layout.site_names)
    return [Mistake(option, message, fix or f"write one of {', '.join(layout.site_names)}")]


def unequal_sites(layout: Layout, option: str, why: str) -> list[Mistake]:
    """Return a mistake if sites have different numbers of ranks."""
    counts = {name: len(ranks) for name, ranks in layout.members.items()}
    if len(set(counts.values())) == 1:
        return []
    listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
    fix = f"place {min(counts.values())} at each site"
    return [Mistake(option, f"expected equally many ranks at each site, {why}; {listed}", fix)]
