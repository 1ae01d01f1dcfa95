"""Operations are timed alone: every kind, in a strategy's groups and in new ones, on the ranks that take part; and
exchanges by the strategy itself, which leave its parameters and state as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from builders.loopback_ranks import run
from testbed_agents import calibration, strategies
from testbed_agents.calibration import StartBarrier, calibrate, time_compute
from testbed_agents.evidence import Evidence
from testbed_agents.groups import Groups
from testbed_agents.model import GPT, Shape
from testbed_agents.records import Records
from testbed_agents.status_file import StatusFile
from testbed_agents.strategies import Context

from testbed.core.analysis.volleys import volleys
from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, gpt_tensors

LAYOUT = Layout(("east", "east", "west", "west"), gpt_tensors(2, 32, 16), steps=40, layers=2)


def volley(kind: str, size: int, *groups: tuple[str, list[int]], **fields: Any) -> dict[str, Any]:
    """Return the message of a volley of ``size`` bytes; ``groups`` by name, with their ranks."""
    return {"kind": kind, "bytes": size, "groups": [[*group] for group in groups], "gap_s": 0.0, **fields}


WORLD, EAST, WEST = ("world", [0, 1, 2]), ("site:east", [0, 1]), ("site:west", [2])
BOTH_WAYS = (("slice:0", [0, 2]), ("slice:0", [2, 0]))
PLANNED = [
    volley("all_reduce", 4000, WORLD),
    volley("reduce_scatter", 4000, EAST),
    volley("all_gather", 4001, EAST, WEST),
    volley("send", 40, *BOTH_WAYS, gap_s=0.001),
    volley("broadcast", 40, ("world", [1, 0, 2])),
    volley("all_reduce", 400, WORLD, burst=3),
    volley("send", 40, *BOTH_WAYS, burst=2, at_once=False),
]


@contextmanager
def start_barrier(folder: Path, rank: int, world_size: int) -> Iterator[StartBarrier]:
    with closing(StatusFile(folder / "board", rank, world_size)) as status:
        yield StartBarrier(status, 30.0)


def test_each_kind_is_timed_on_the_ranks_that_take_part(tmp_path: Path) -> None:
    def rank_of_job(rank: int) -> tuple[list[list[float]], list[str]]:
        groups = Groups(rank, ["east", "east", "west"])
        groups.in_site()
        before = set(groups._by_name)
        with start_barrier(tmp_path, rank, 3) as barrier:
            found = calibrate(PLANNED, groups, barrier)
        dist.barrier()
        return found, sorted(set(groups._by_name) - before)

    results = run(3, rank_of_job)
    counts = [[len(times) for times in found] for found, _ in results]
    for of_volley in zip(*counts, strict=True):
        assert len({it for it in of_volley if it}) == 1, "ranks decide alike whether to repeat"
    least, most = 1 + calibration.LEAST, 1 + calibration.MOST_SHORT
    assert [[least <= it <= most for it in of_rank] for of_rank in counts] == [
        [True] * 7, [True, True, True, False, True, True, False], [True, False, True, True, True, True, True]
    ]  # fmt: skip
    assert all(made == ["slice:0"] for _, made in results), "groups of the strategy are used again"
    assert all(time_s > 0 for found, _ in results for times in found for time_s in times)


def test_steps_are_timed_on_all_ranks_without_their_first_one(tmp_path: Path) -> None:
    def rank_of_job(rank: int) -> tuple[list[int], list[float]]:
        calls: list[int] = []
        with start_barrier(tmp_path, rank, 2) as barrier:
            return calls, time_compute(calls.append, barrier)

    for calls, times in run(2, rank_of_job):
        assert calls == [0, 1, 2, 3, 4]
        assert len(times) == 4 and all(it >= 0 for it in times)


SITES = ("east", "east", "west", "west")
OUTER: tuple[tuple[str, dict[str, object]], ...] = (
    ("diloco", {"every": 3}),
    ("local-sgd", {"every": 50}),  # which a job of 40 steps exchanges at its end only
    ("streaming-diloco", {"every": 4, "fragments": 2, "overlap": 2}),
    ("streaming-diloco", {"every": 4, "fragments": 2, "overlap": 0, "bits": 4, "rounding": "stochastic"}),
    ("sparse-loco", {"every": 2}),
    ("multi-tier", {"every": 2, "every_regions": 4}),
)


def test_exchanges_that_are_timed_change_no_bit(tmp_path: Path) -> None:
    planned = [
        [it.to_message() | {"gap_s": 0.0} for it in volleys(strategies_built.make(name, options, LAYOUT), 0.1)]
        for name, options in OUTER
    ]

    def rank_of_job(rank: int) -> list[tuple[bool, list[int]]]:
        context = Context(Groups(rank, SITES), steps=LAYOUT.steps)
        found = list[tuple[bool, list[int]]]()
        for (name, options), of in zip(OUTER, planned, strict=True):
            torch.manual_seed(1)
            model = GPT(Shape(layers=2, width=32, context=16))
            strategy = strategies.make(name, options)
            tensors = [*strategy.prepare(model, context), *strategy.state().values()]
            before = [it.clone() for it in tensors]
            with start_barrier(tmp_path / name / str(len(found)), rank, len(SITES)) as barrier:
                times = calibrate(of, context.groups, barrier, strategy, list(model.parameters()))
            assert not context.groups.hooks.evidence.recording
            same = all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
            exchanged = [times[index] for index, it in enumerate(of) if it["kind"] == "exchange"]
            found.append((same and strategy.outer_version == 0, [sum(t > 0 for t in each) for each in exchanged]))
        return found

    for of_rank in run(len(SITES), rank_of_job):
        assert all(same for same, _ in of_rank)
        least, most = 1 + calibration.LEAST, 1 + calibration.MOST
        assert all(counts and all(least <= count <= most for count in counts) for _, counts in of_rank)


def test_all_that_is_recorded_of_an_exchange_is_part_of_what_it_takes(tmp_path: Path) -> None:
    """A job takes checksums beside each exchange; the first exchange after is the first of its chain."""
    twin = strategies_built.make("sparse-loco", {"every": 2}, LAYOUT)
    planned = [it.to_message() | {"gap_s": 0.0} for it in volleys(twin, 0.1) if it.kind == "exchange"]

    def rank_of_job(rank: int) -> list[bool]:
        model = GPT(Shape(layers=2, width=32, context=16))
        strategy = strategies.make("sparse-loco", {"every": 2})
        strategy.prepare(model, Context(Groups(rank, SITES), steps=LAYOUT.steps))
        restarts: list[bool] = []
        plain = Evidence.outer_taken

        def outer_taken(self: Evidence, line: Mapping[str, object]) -> None:
            restarts.append(bool(line["restarted"]))
            plain(self, line)

        Evidence.outer_taken = outer_taken  # type: ignore[method-assign]
        with start_barrier(tmp_path, rank, len(SITES)) as barrier:
            calibrate(planned, strategy.context.groups, barrier, strategy, list(model.parameters()))
        strategy.context.groups.hooks.evidence = Evidence(Records(tmp_path / f"{rank}.jsonl"))
        strategy.after_step(2)
        return restarts

    for restarts in run(len(SITES), rank_of_job):
        assert len(restarts) > calibration.LEAST + 1
        assert restarts == [True, *[False] * (len(restarts) - 2), True], "a chain of its own, and then the job's"


class AloneBarrier:
    """A barrier of one rank."""

    def greatest(self, value: float) -> float:
        return value


@pytest.mark.parametrize(("gap_s", "least"), [(0.0, 2), (0.03, 6), (0.08, 3), (0.13, 2), (1.0, 2)])
def test_short_volleys_are_repeated_more_often_before_they_may_agree(gap_s: float, least: int) -> None:
    repeating = calibration._Repeating(AloneBarrier(), gap_s, calibration.MOST)  # type: ignore[arg-type]
    rows = 0
    while repeating.goes_on:
        repeating.took([0.5 if rows == 0 else 0.02])
        rows += 1
    assert rows == 1 + least, "the first one does not count"
