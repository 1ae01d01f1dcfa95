"""The sentence on how a launched program ended, from run.json alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builders.tables import table

from testbed.core.analysis import launched_end

MEMBERS = [{"rank": rank, "node": node} for rank, node in enumerate(("east-0", "east-1", "west-0", "west-1"))]


def end(rank: int, t: float, status: int = 0, *, oom: bool = False, ours: bool = False) -> dict[str, Any]:
    """How a rank ended, with the status of a shell: 128 and the signal."""
    how = {"signal": status - 128} if status > 128 else {"code": status}
    return {"rank": rank, "t": t, **how, "by_testbed": ours, "out_of_memory": oom}


def workload(ends: Sequence[dict[str, Any]], others: int | None = 0, ended_t: float | None = 146.0) -> dict[str, Any]:
    """``others``, ``ended_t``: status and end of the ranks of which no end was recorded."""
    by_rank = {it["rank"]: it for it in ends}
    statuses = {rank: 128 + it["signal"] if "signal" in it else it["code"] for rank, it in by_rank.items()}
    return {
        "command": "python train.py",
        "members": MEMBERS,
        "statuses": [statuses.get(rank, others) for rank in range(4)],
        "ends": list(ends),
        "began_t": [100.0, 100.1, 100.2, 100.3],
        "ended_t": [by_rank[rank]["t"] if rank in by_rank else ended_t for rank in range(4)],
    }


KILLED = end(2, 141.2, 137, oom=True)


@table(
    "ends, others, sentence",
    {
        "a killed rank": (
            [KILLED], None,
            "rank 2 on west-0 ended with status 137 (SIGKILL: out of memory) after 41 s; the others were ended 4.8 s"
            " later",
        ),
        "a rank that failed": (
            [end(0, 141.0, 3)], None,
            "rank 0 on east-0 ended with status 3 after 41 s; the others were ended 5 s later",
        ),
        "peers of a killed rank may be seen to fail before it": (
            [end(0, 141.1, 1), KILLED, end(1, 141.3, 134)], None,
            "rank 2 on west-0 ended with status 137 (SIGKILL: out of memory) after 41 s; 2 others failed too; 1 was"
            " ended 4.8 s later",
        ),
        "later than that it is another story": (
            [end(0, 120.0, 1), KILLED], None,
            "rank 0 on east-0 ended with status 1 after 20 s; 1 other failed too; 2 were ended 26 s later",
        ),
        "command not found": (
            [end(1, 101.1, 127)], 0, "rank 1 on east-1 ended with status 127 (command not found) after 1 s",
        ),
        "a signal of an unknown sender": (
            [end(3, 100.35, 143)], 0, "rank 3 on west-1 ended with status 143 (SIGTERM: sender unknown) after 50 ms",
        ),
        "its own signal": ([end(3, 1300.3, 139)], 0, "rank 3 on west-1 ended with status 139 (SIGSEGV) after 20 min"),
        "a fault of the testbed": (
            [end(3, 110.3, 137, ours=True)], 0,
            "rank 3 on west-1 ended with status 137 (SIGKILL: by a fault of the testbed) after 10 s",
        ),
        "all ended well": ([end(rank, 141.0) for rank in range(4)], 0, ""),
        "none has ended": ([], None, ""),
    },
)  # fmt: skip
def test_sentence_of_the_first_rank_and_the_others(ends, others, sentence) -> None:
    assert launched_end.sentence(workload(ends, others)) == sentence


def test_sentence_has_no_end_of_others_that_still_run() -> None:
    assert launched_end.sentence(workload([KILLED], None, ended_t=None)).endswith("after 41 s")


def test_sentence_of_a_run_of_an_older_version_has_no_nodes() -> None:
    older = workload([end(0, 141.0, 3)])
    del older["members"], older["began_t"], older["ended_t"]
    assert launched_end.sentence(older) == "rank 0 ended with status 3"
    assert launched_end.sentence({"command": "true", "statuses": [3]}) == ""
