"""Operations are timed alone: every kind, in a strategy's groups and in new ones, on the ranks that take part."""

from __future__ import annotations

import torch.distributed as dist
from testbed_agents import calibration
from testbed_agents.calibration import calibrate, time_compute
from testbed_agents.groups import Groups

from tests.loopback_ranks import run

PLANNED = [
    {"kind": "all_reduce", "bytes": 4000, "groups": [["world", [0, 1, 2]]], "gap_s": 0.0},
    {"kind": "reduce_scatter", "bytes": 4000, "groups": [["site:east", [0, 1]]], "gap_s": 0.0},
    {"kind": "all_gather", "bytes": 4001, "groups": [["site:east", [0, 1]], ["site:west", [2]]], "gap_s": 0.0},
    {"kind": "send", "bytes": 40, "groups": [["slice:0", [0, 2]], ["slice:0", [2, 0]]], "gap_s": 0.001},
    {"kind": "broadcast", "bytes": 40, "groups": [["world", [1, 0, 2]]], "gap_s": 0.0},
]


def test_each_kind_is_timed_on_the_ranks_that_take_part() -> None:
    def rank_of_job(rank: int) -> tuple[list[list[float]], list[str]]:
        groups = Groups(rank, ["east", "east", "west"])
        groups.in_site()
        before = set(groups._by_name)
        found = calibrate(PLANNED, groups)
        dist.barrier()
        return found, sorted(set(groups._by_name) - before)

    results = run(3, rank_of_job)
    counts = [[len(times) for times in found] for found, _ in results]
    of = calibration.REPETITIONS
    assert counts == [[of, of, of, of, of], [of, of, of, 0, of], [of, 0, of, of, of]]
    assert all(made == ["slice:0"] for _, made in results), "groups of the strategy are used again"
    assert all(time_s > 0 for found, _ in results for times in found for time_s in times)


def test_a_step_that_is_timed_counts_without_its_first_call() -> None:
    calls: list[int] = []
    assert time_compute(lambda: calls.append(1)) >= 0
    assert len(calls) == 4
