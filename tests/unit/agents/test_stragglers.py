"""Sites that train alone are waited for as long as they train; the timeout runs when they have come, or stand still."""

from __future__ import annotations

import itertools
import mmap
import struct
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from builders import loopback_ranks
from builders.trainer_over_loopback import train
from testbed_agents import watched
from testbed_agents.groups import Groups
from testbed_agents.stragglers import Stragglers


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        ("diloco", {"every": 10}),
        ("streaming-diloco", {"every": 10, "fragments": 2, "overlap": 1, "bits": 4}),
        ("multi-tier", {"every": 5, "every_regions": 10, "regions": (("a",), ("b",))}),
        ("sparse-loco", {"every": 10}),
    ],
)
def test_a_site_that_is_legally_late_by_more_than_the_timeout_is_waited_for(
    case: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Ten steps that are each 0.6 s later, with a timeout of 3 s: the first exchange already is 6 s late."""
    train(tmp_path, *case, steps=11, timeout_s=3.0, slow_s=0.6).check()


@pytest.mark.parametrize("kind", ["message", "all_gather"])
@pytest.mark.parametrize("coming", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_an_operation_waits_beyond_the_timeout_for_a_rank_that_trains_alone(kind: str, coming: bool) -> None:
    """Rank 1 is at step 0 of 4 when rank 0 begins, and comes 1.6 s later, or never. The timeout is 1 s."""
    shared = mmap.mmap(-1, 8)

    def entered(ranks: Sequence[int]) -> tuple[int, ...]:
        return 4, struct.unpack("<q", shared[:8])[0]

    def trains(rank: int) -> str:
        groups = Groups(rank, ("east", "west"), timeout_s=1.0)
        groups.hooks.stragglers = Stragglers(entered, lambda: 4, 1.0, range(2))
        group = groups.new((0, 1), "slice:0", apart=True)
        dist.barrier()
        values = torch.full((3,), float(rank))
        if rank == 1:
            for step in range(1, 5):
                time.sleep(0.4)
                shared[:8] = struct.pack("<q", step if coming else 0)
            if not coming:
                return ""
        if kind == "message":
            work: Any = dist.isend(values, 1, group) if rank == 0 else dist.irecv(values, 0, group)
        else:
            every = [torch.zeros(3), torch.zeros(3)]
            work = dist.all_gather(every, values, group=group, async_op=True)
        try:
            work.wait()
        except RuntimeError as error:
            return str(error)
        return "came"

    told = loopback_ranks.run(2, trains, backend=watched.BACKEND)
    assert told == (["came", "came"] if coming else ["Timed out waiting 1000ms for rank 1 to begin another step", ""])


def stragglers(timeout_s: float = 0.05, ends: bool = False) -> Stragglers:
    """Return what waits for rank 0 at step 8, and rank 1 at step 3."""
    return Stragglers(lambda ranks: (8, 3), lambda: 8, timeout_s, range(2), lambda: ends)


def test_a_rank_that_begins_no_other_step_is_waited_for_no_longer_than_the_timeout() -> None:
    with pytest.raises(RuntimeError, match="Timed out waiting 50ms for rank 1 to begin another step"):
        stragglers().await_ranks((0, 1), 8, lambda: False)


def test_what_has_arrived_needs_no_wait() -> None:
    looks = itertools.count()
    stragglers().await_ranks((0, 1), 8, lambda: next(looks) > 0)
    assert next(looks) == 2


def test_nobody_is_waited_for_once_the_job_is_to_end() -> None:
    stragglers(60.0, ends=True).await_ranks((0, 1), 8, lambda: False)


def test_groups_that_step_together_keep_their_timeout() -> None:
    def bounds(rank: int) -> tuple[bool, bool]:
        groups = Groups(rank, ("east", "west"), timeout_s=7.0)
        together, apart = groups.new((0, 1), "together"), groups.new((0, 1), "apart", apart=True)
        return together.bound is None, apart.bound == timedelta(seconds=7.0)

    assert loopback_ranks.run(2, bounds, backend=watched.BACKEND) == [(True, True)] * 2
