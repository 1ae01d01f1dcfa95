"""Process groups of a job: the world, the ranks of a site, and the ranks of one local rank at every site.

:func:`join` forms them: the store at rank 0, the default process group, the groups of the job.

Every rank must make all groups in the same order (torch.distributed.new_group), so ``Groups`` makes the usual ones at
once, and ``new`` is called by all ranks alike. Names are the same on all ranks: records are matched by them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from testbed_agents.hooks import Hooks
from testbed_agents.interfaces import interface_bytes
from testbed_agents.status_file import StatusFile
from testbed_agents.training_job import Job, Seat, TrainingFailed, reason_of
from testbed_agents.watched import BACKEND, WatchedGroup

__all__ = ["Groups", "Replicas", "equal_sites", "join"]

_APART = timedelta(days=1)
"""gloo's timeout of groups whose ranks wait for each other as long as they train."""

ProcessGroup = Any
"""torch.distributed.ProcessGroup; untyped in torch before 2.15."""


@dataclass(frozen=True)
class Replicas:
    """The ranks of a replica of the model, and those that exchange a slice of it.

    Attributes:
        inside: group of this rank's replica, whose ranks average gradients in each step.
        inside_ranks: its ranks.
        across: group that exchanges this rank's slice: one rank of each replica, in the order of replicas. None if this
            rank has no slice, because its replica has more ranks than another one.
        across_ranks: its ranks, empty for none.
        count: number of replicas.
        slices: number of slices: the ranks of the smallest replica.
        slice: index of this rank's slice; None for none.
        hooks: of the job.
    """

    inside: ProcessGroup
    inside_ranks: tuple[int, ...]
    across: ProcessGroup | None
    across_ranks: tuple[int, ...]
    count: int
    slices: int
    slice: int | None
    hooks: Hooks


class Groups:
    """The process groups of a job, and its hooks. ``sites``: the site of each rank. A collective call of all ranks."""

    def __init__(self, rank: int, sites: Sequence[str], timeout_s: float = 30.0) -> None:
        self.rank, self.sites = rank, tuple(sites)
        self.world_size = len(self.sites)
        self._timeout = timedelta(seconds=timeout_s)
        self.site_names = tuple(dict.fromkeys(self.sites))
        self.world = dist.group.WORLD
        self.hooks = self.world.hooks if isinstance(self.world, WatchedGroup) else Hooks()
        self._by_name: dict[str, ProcessGroup] = {}
        self.members = {name: tuple(r for r, site in enumerate(self.sites) if site == name) for name in self.site_names}
        """Ranks of each site, in the order in which sites first have a rank."""

    @classmethod
    def of_default_group(cls, site: str, timeout_s: float = 30.0) -> Groups:
        """Gather the sites of all ranks over the default group. A collective call."""
        sites: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(sites, site)
        return cls(dist.get_rank(), sites, timeout_s)

    @property
    def site(self) -> str:
        return self.sites[self.rank]

    @property
    def local_rank(self) -> int:
        """Index of this rank in its site."""
        return self.members[self.site].index(self.rank)

    def new(self, ranks: Sequence[int], name: str, apart: bool = False) -> ProcessGroup | None:
        """Make a group of ``ranks``, which torch sorts; None if this rank is not in it. A collective call.

        ``apart``: its ranks may be many steps apart, and wait for each other by :mod:`testbed_agents.stragglers`.

        The same name returns the same group; operations that overlap each other need
        groups of different names.
        """
        if name not in self._by_name:
            apart = apart and len(ranks) > 1 and isinstance(self.world, WatchedGroup)
            group = dist.new_group(list(ranks), timeout=_APART if apart else self._timeout, group_desc=name)
            if apart and isinstance(group, WatchedGroup):
                group.bound = self._timeout
            self._by_name[name] = group if self.rank in ranks else None
        return self._by_name[name]

    def in_site(self) -> ProcessGroup:
        """Return the group of the ranks of this rank's site. A collective call."""
        own = None
        for name, ranks in self.members.items():
            group = self.new(ranks, f"site:{name}")
            own = group if name == self.site else own
        return own

    def replicas(self, kind: str = "site", suffix: str = "", apart: bool = False) -> Replicas:
        """Return the replicas: a ``site`` each, or a ``rank`` each. A collective call. ``apart``: as of :meth:`new`.

        ``suffix`` distinguishes groups whose operations overlap those of another.
        """
        if kind == "rank":
            everyone = tuple(range(self.world_size))
            alone = None
            for rank in everyone:
                group = self.new((rank,), f"rank:{rank}{suffix}")
                alone = group if rank == self.rank else alone
            across = self.new(everyone, f"replicas{suffix}", apart)
            return Replicas(alone, (self.rank,), across, everyone, len(everyone), 1, 0, self.hooks)
        inside = self.in_site()
        slices = min(len(ranks) for ranks in self.members.values())
        own: tuple[ProcessGroup | None, tuple[int, ...]] = (None, ())
        for index in range(slices):
            ranks = tuple(self.members[name][index] for name in self.site_names)
            group = self.new(ranks, f"slice:{index}{suffix}", apart)
            own = (group, ranks) if index == self.local_rank else own
        own_slice = self.local_rank if self.local_rank < slices else None
        return Replicas(inside, self.members[self.site], *own, len(self.site_names), slices, own_slice, self.hooks)


def equal_sites(groups: Groups) -> list[list[int]]:
    """Return the ranks of each site. Raises ValueError if sites have different numbers of ranks."""
    members = [list(groups.members[name]) for name in groups.site_names]
    if len({len(ranks) for ranks in members}) > 1:
        counts = ", ".join(f"{name} has {len(groups.members[name])}" for name in groups.site_names)
        raise ValueError(f"expected equally many ranks at each site, got: {counts}")
    return members


def join(job: Job, seat: Seat, status: StatusFile) -> Groups:
    """Join the default process group; return the groups of the job. Raises TrainingFailed.

    Every rank has opened its ``status`` file before.
    """
    if job.interface not in (interfaces := interface_bytes()):
        raise TrainingFailed(f"unknown interface {job.interface} (available: {', '.join(interfaces)})")
    os.environ["GLOO_SOCKET_IFNAME"] = job.interface  # else gloo resolves the host name
    limit = timedelta(seconds=job.timeout_s)
    rank = seat.rank
    if rank != 0:
        _wait_for_listener(job.master, job.timeout_s)
    try:
        server = TCPStore(*job.master, job.world_size, is_master=rank == 0, timeout=limit)
        # Prefixed by job and attempt, so that a store left over from an earlier attempt cannot answer with its keys.
        store = PrefixStore(f"{job.job}/{job.attempt}", server)
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=job.world_size, timeout=limit)
    except RuntimeError as error:
        raise TrainingFailed(f"cannot form the process group: {reason_of(error)}") from error
    if rank == 0:
        status.unlink()
    return Groups(rank, job.sites or (seat.site,) * job.world_size, job.timeout_s)


def _wait_for_listener(address: tuple[str, int], timeout_s: float) -> None:
    """Return once the address accepts connections, or after ``timeout_s``.

    The store's own client sleeps about a second if rank 0 is not listening yet; this costs milliseconds.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            socket.create_connection(address, timeout=max(0.01, until - time.monotonic())).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.02)
        except OSError:
            return  # unreachable: the store will report it
