"""The groups and operations that strategies share: slices between replicas, sums over replicas, gathers inside a site.

Names of groups are those of ``testbed_agents.groups``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.core.training.layout import Layout
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Mistake
from testbed.core.user_text import unknown

__all__ = [
    "BUCKETS_IN_SITE",
    "gather_in_sites",
    "mean_in_sites",
    "slice_groups",
    "sum_across",
    "sum_at",
    "sum_over",
    "unknown_aggregator",
]

BUCKETS_IN_SITE = 8
"""Parts of the mean gradient of a site (``testbed_agents.bucketed_gradients.BUCKETS``)."""


def slice_groups(layout: Layout, replica: str = "site", suffix: str = "") -> list[tuple[str, tuple[int, ...]]]:
    """Return name and ranks of each group that exchanges one slice of the model between replicas.

    ``replica``: ``site``, of which rank i holds slice i; or ``rank``, which holds everything.
    """
    if replica == "rank":
        return [(f"replicas{suffix}", tuple(range(layout.world_size)))]
    members = layout.members.values()
    return [(f"slice:{index}{suffix}", tuple(ranks[index] for ranks in members)) for index in range(layout.slices)]


def sum_over(
    ranks: Sequence[int], byte_count: float, what: str, group: str, fragment: int | None = None, lands: int = 0
) -> list[Operation]:
    """Return the operations of a sum over ``ranks``: two send to each other, more use an all-reduce."""
    if len(ranks) < 2:
        return []
    if len(ranks) == 2:
        here, there = ranks
        return [
            Operation("send", pair, byte_count, what, group, fragment, lands) for pair in ((here, there), (there, here))
        ]
    return [Operation("all_reduce", tuple(ranks), byte_count, what, group, fragment, lands)]


def sum_at(
    ranks: Sequence[int],
    at: int,
    byte_count: float,
    what: str,
    group: str,
    fragment: int | None = None,
    lands: int = 0,
) -> list[Operation]:
    """Return the operations of a sum over ``ranks`` at the rank ``at``: all send to it, then it sends back the sum."""
    others = [rank for rank in ranks if rank != at]
    up = [Operation("send", (rank, at), byte_count, what, group, fragment, lands) for rank in others]
    return [*up, *(replace(it, ranks=(at, it.ranks[0]), turn=1) for it in up)]


def sum_across(
    layout: Layout,
    aggregate_at: str,
    ranks: Sequence[int],
    byte_count: float,
    what: str,
    group: str,
    fragment: int | None = None,
    lands: int = 0,
) -> list[Operation]:
    """Return :func:`sum_at` of the first of ``ranks`` at the site ``aggregate_at``, or :func:`sum_over` without one."""
    there = [rank for rank in ranks if layout.sites[rank] == aggregate_at]
    if there:
        return sum_at(ranks, there[0], byte_count, what, group, fragment, lands)
    return sum_over(ranks, byte_count, what, group, fragment, lands)


def unknown_aggregator(layout: Layout, aggregate_at: str) -> list[Mistake]:
    """Return the mistake of an ``aggregate_at`` that names no site with ranks."""
    if not aggregate_at or aggregate_at in layout.members:
        return []
    message, fix = unknown("site", aggregate_at, layout.site_names)
    return [Mistake("aggregate_at", message, fix or "name a site of the topology")]


def mean_in_sites(layout: Layout, byte_count: float, what: str = "gradients") -> list[Operation]:
    """Return the operations of a mean over the ranks of each site, beside the backward pass."""
    return [
        Operation("all_reduce", ranks, byte_count, what, f"site:{name}", parts=BUCKETS_IN_SITE)
        for name, ranks in layout.members.items()
        if len(ranks) > 1
    ]


def gather_in_sites(layout: Layout, byte_count: float, what: str = "parameters", suffix: str = "") -> list[Operation]:
    """Return the operations that bring all slices of ``byte_count`` to all ranks of each site."""
    # A rank without a slice takes part with an empty one of the same size.
    return [
        Operation("all_gather", ranks, byte_count / layout.slices * len(ranks), what, f"site:{name}{suffix}")
        for name, ranks in layout.members.items()
        if len(ranks) > 1
    ]
