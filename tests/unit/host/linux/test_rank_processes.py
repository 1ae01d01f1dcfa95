"""Which process belongs to which rank: by its environment, its session, or what started it."""

from __future__ import annotations

import os
from pathlib import Path

from builders.processes import Child, python
from builders.tables import table

from testbed.host.linux.rank_processes import Found, inside, ranks_of


@table(
    "processes, ranks",
    {
        "those that say so": ([(10, 1, 10, 0), (11, 1, 11, 1), (12, 10, 10, 0)], {0: [10, 12], 1: [11]}),
        "by its session as a child's parent, and as a descendant in a session of its own": (
            [(10, 1, 10, None), (11, 10, 10, 3), (12, 11, 12, None), (13, 12, 13, None)],
            {3: [10, 11, 12, 13]},
        ),
        "a session of several ranks tells nothing": (
            [(10, 1, 5, 0), (11, 1, 5, 1), (12, 1, 5, None)],
            {0: [10], 1: [11]},
        ),
        "other processes of a node": ([(10, 1, 10, None), (11, 10, 10, None)], {}),
        "none": ([], {}),
    },
)
def test_ranks_of_processes(processes: list[tuple[int, int, int, int | None]], ranks: dict[int, list[int]]) -> None:
    """Processes: (pid, parent, session, rank in its environment)."""
    listed = [Found(pid, 7, parent, session, rank) for pid, parent, session, rank in processes]
    assert {rank: sorted(process.pid for process in own) for rank, own in ranks_of(listed).items()} == ranks


def sleeper(rank: int) -> Child:
    environment = {**os.environ, "TESTBED_FOLDER": f"/x/ranks/rank-{rank}"}
    child = python("import time; print(flush=True); time.sleep(60)", env=environment, start_new_session=True)
    child.read_line()
    return child


def test_processes_of_this_machine() -> None:
    with sleeper(2) as second, sleeper(13) as last:
        ranks = ranks_of(inside({Path("/proc/self/ns/net").stat().st_ino}))
        for rank, child in ((2, second), (13, last)):
            pids = {process.pid for process in ranks[rank]}
            assert child.pid in pids and os.getpid() not in pids
    assert ranks_of(inside({0})) == {}
