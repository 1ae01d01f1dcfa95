"""Records of jobs and of the fibers of metro-40km, for comparisons of the bytes on the wire with what a job moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from testbed.core.records.rank_log import EndRecord, JobRecord, RankLog, StepRecord
from testbed.core.records.samples import FiberSample
from testbed.host.files import catalog

METRO = catalog.load_topology("metro-40km")
SITES = ("east", "east", "west", "west")
STEPS = 100
SEGMENT = 1448

Burst = tuple[float, float, float]
"""Begin and end of a transfer, and its bytes."""


def sample(t: float, byte_count: int, direction: str = "north:west", segments: int = 0, **fields: Any) -> FiberSample:
    """Return a sample of a fiber whose packets were not timed, unless ``fields`` have it."""
    packets = {"packets": segments, "segments": segments, "drops": {}, "queue_bytes": None}
    times: dict[str, Any] = {"lateness_bounds_s": (), "lateness_counts": ()}
    return FiberSample(t, direction, byte_count=byte_count, **{**packets, **times, **fields})


def track(
    direction: str, bursts: Sequence[Burst], *, acks: int = 0, drops: Sequence[int] = (), until_t: float = STEPS + 3.0
) -> list[FiberSample]:
    """A sample each half second from 0.05 on; a burst crosses evenly, in full segments and ``acks`` after it.

    ``drops``: the packets that the queue dropped, by bursts that have crossed.
    """
    samples = []
    for index in range(math.ceil(2 * until_t)):
        t = 0.05 + index / 2
        shares = [min(1.0, max(0.0, (t - begin) / (end - begin))) for begin, end, _ in bursts]
        segments = round(sum(share * count for share, (_, _, count) in zip(shares, bursts, strict=True)) / SEGMENT)
        done = int(sum(shares))
        byte_count = segments * (SEGMENT + 66) + 66 * acks * done
        lost = drops[min(done, len(drops) - 1)] if drops else 0
        counts: dict[str, Any] = {"packets": segments, "segments": segments + acks * done, "drops": {"queue": lost}}
        samples.append(sample(t, byte_count, direction, **counts))
    return samples


def job_logs(
    rows: Sequence[StepRecord], byte_count: int, sites: Sequence[str] = SITES, end: EndRecord | None = None, **job: Any
) -> list[RankLog]:
    """Return logs of ranks that took the same steps of a job of DDP, unless ``job`` has another scheme."""
    fields = {"scheme": "ddp", "parameters": byte_count // 4, "gradient_bytes": byte_count, "steps": STEPS, **job}
    return [
        RankLog(
            rank,
            (JobRecord(0.5, rank, len(sites), f"n{rank}", site, **fields),),
            tuple(rows),
            () if end is None else (end,),
        )
        for rank, site in enumerate(sites)
    ]
