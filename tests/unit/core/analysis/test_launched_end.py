"""The sentence on how a launched program ended, from run.json alone."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from testbed.core.analysis import launched_end

MEMBERS = [{"rank": rank, "node": node} for rank, node in enumerate(("east-0", "east-1", "west-0", "west-1"))]


def workload(*ends: dict[str, Any], statuses: list[int | None], all_ended_t: float = 146.0) -> dict[str, Any]:
    times = {it["rank"]: it["t"] for it in ends}
    return {
        "command": "python train.py",
        "members": MEMBERS,
        "statuses": statuses,
        "ends": list(ends),
        "began_t": [100.0, 100.1, 100.2, 100.3],
        "ended_t": [times.get(rank, all_ended_t) for rank in range(4)],
    }


def end(
    rank: int, t: float, *, code: int = 0, number: int = 0, oom: bool = False, ours: bool = False
) -> dict[str, Any]:
    how = {"signal": number} if number else {"code": code}
    return {"rank": rank, "t": t, **how, "by_testbed": ours, "out_of_memory": oom}


KILLED = end(2, 141.2, number=signal.SIGKILL, oom=True)


@pytest.mark.parametrize(
    ("ends", "statuses", "said"),
    [
        (
            [KILLED], [None, None, 137, None],
            "rank 2 on west-0 ended with status 137 (SIGKILL: out of memory) after 41 s; the others were ended 4.8 s"
            " later",
        ),
        ([end(0, 141.0, code=3)], [3, None, None, None],
         "rank 0 on east-0 ended with status 3 after 41 s; the others were ended 5 s later"),
        # Peers of a killed rank may be seen to fail before it.
        ([end(0, 141.1, code=1), KILLED, end(1, 141.3, number=signal.SIGABRT)], [1, 134, 137, None],
         "rank 2 on west-0 ended with status 137 (SIGKILL: out of memory) after 41 s; 2 others failed too; 1 was ended"
         " 4.8 s later"),
        # Later than that it is another story.
        ([end(0, 120.0, code=1), KILLED], [1, None, 137, None],
         "rank 0 on east-0 ended with status 1 after 20 s; 1 other failed too; 2 were ended 26 s later"),
        ([end(1, 101.1, code=127)], [0, 127, 0, 0],
         "rank 1 on east-1 ended with status 127 (command not found) after 1 s"),
        ([end(3, 100.35, number=signal.SIGTERM)], [0, 0, 0, 143],
         "rank 3 on west-1 ended with status 143 (SIGTERM: sender unknown) after 50 ms"),
        ([end(3, 1300.3, number=signal.SIGSEGV)], [0, 0, 0, 139],
         "rank 3 on west-1 ended with status 139 (SIGSEGV) after 20 min"),
        ([end(3, 110.3, number=signal.SIGKILL, ours=True)], [0, 0, 0, 137],
         "rank 3 on west-1 ended with status 137 (SIGKILL: by a fault of the testbed) after 10 s"),
        ([end(rank, 141.0) for rank in range(4)], [0, 0, 0, 0], ""),
        ([], [None, None, None, None], ""),
    ],
)  # fmt: skip
def test_sentence_of_the_first_rank_and_the_others(
    ends: list[dict[str, Any]], statuses: list[int | None], said: str
) -> None:
    assert launched_end.sentence(workload(*ends, statuses=statuses)) == said


def test_sentence_has_no_end_of_others_that_still_run() -> None:
    found = workload(KILLED, statuses=[None, None, 137, None]) | {"ended_t": [None, None, 141.2, None]}
    assert launched_end.sentence(found).endswith("after 41 s")


def test_sentence_of_a_run_of_an_older_version_has_no_nodes() -> None:
    found = workload(end(0, 141.0, code=3), statuses=[3, 0, 0, 0])
    del found["members"], found["began_t"], found["ended_t"]
    assert launched_end.sentence(found) == "rank 0 ended with status 3"
    assert launched_end.sentence({"command": "true", "statuses": [3]}) == ""
