"""The watched process group: it sees every operation of torch's own strategies, and what it records proves them."""

from __future__ import annotations

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from builders import json_files, loopback_ranks
from builders.trainer_over_loopback import check_logs
from testbed_agents import operation_log, watched
from testbed_agents.check_log import Checks
from testbed_agents.exchange.gradients import mean_over
from testbed_agents.exchange.sums import begin_sum
from testbed_agents.fork_server import planted_errors
from testbed_agents.groups import Groups
from testbed_agents.records import Records
from testbed_agents.strategies import Context, Strategy
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from testbed.core.checkers.checks import check
from testbed.core.records.check_record import CheckLog

SITES = ("east", "east", "west", "west")
STEPS = 2
"""After this many, what is missing is no longer excused by a rank that may have died."""


fully_shard: Any = getattr(fsdp, "fully_shard", None)
SHARDS = torch.__version__ >= "2.8"
"""Whether torch shards on CPUs and its gloo takes means."""
ALL_GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""By the names of torch 2.13 and newer, else by the former ones."""


class Nothing(Strategy):
    """A strategy of one parameter, for whatever a test does in its steps."""

    def __init__(self, context: Context) -> None:
        self.context, self.value = context, torch.zeros(4)
        self.module = torch.nn.Identity()

    def prepare(self, model: Any, context: Context) -> list[Any]:
        return []

    def fingerprints(self) -> dict[str, Any]:
        return {"parameters": [self.value]}


class Ranks:
    """Four ranks of two sites; in each step they do the same operations, observed."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self.groups = Groups(rank, SITES)
        self.context = Context(self.groups)
        self.strategy = Nothing(self.context)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        self.folder = folder

    def record(self, name: str, work: Any, fault: str = "") -> None:
        """Record STEPS times ``work``, broken in the first one, into a folder ``name``."""
        checks = Checks(
            Records(self.folder / name / f"rank-{self.rank}.checks.jsonl"),
            rank=self.rank,
            world_size=4,
            strategy=self.strategy,
            optimizer=self.optimizer,
            seed=0,
            first=1,
            last=STEPS,
            also_every=0,
            timeout_s=60.0,
        )
        hooks = self.groups.hooks
        hooks.observer, hooks.evidence = checks.operations, checks.evidence
        hooks.planted = planted_errors().plant(self.rank, fault) if fault else None
        if hooks.planted is not None:
            hooks.planted.install(self.strategy, self.optimizer)
        for step in range(1, STEPS + 1):
            self.context.step = step
            checks.begin(step)
            self.strategy.value += 1
            work(step)
            checks.end()
        hooks.detach()
        checks.close()
        operation_log.crc32 = PLAIN

    def tensor(self, elements: int = 4096) -> torch.Tensor:
        return torch.arange(elements, dtype=torch.float32) / 7 + self.rank

    def ddp(self, step: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.005)
        model(self.tensor(64)).sum().backward()

    def buckets(self, step: int) -> None:
        """What a hook of DDP begins for each of its buckets."""
        means = [mean_over(dist.group.WORLD, 4)(self.tensor()) for _ in range(3)]
        for mean in means:
            mean.wait()

    def fsdp(self, step: int) -> None:
        torch.manual_seed(0)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "rank"))
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model(self.tensor(16).view(1, 16)).sum().backward()

    def experts(self, step: int) -> None:
        """Uneven all_to_all, none at all between some ranks; and the functional one, with autograd around."""
        puts = [(self.rank + to + step) % 3 for to in range(4)]
        gets = [(self.rank + source + step) % 3 for source in range(4)]
        out = torch.empty(sum(gets), 8)
        dist.all_to_all_single(out, self.tensor(sum(puts) * 8).view(-1, 8), gets, puts)
        parts: Any = functional.all_to_all_single(self.tensor(), None, None, dist.group.WORLD)
        parts.wait()

    def messages(self, step: int) -> None:
        right, left = (self.rank + 1) % 4, (self.rank - 1) % 4
        got = torch.empty(4096)
        both = [dist.P2POp(dist.isend, self.tensor(), right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        if self.rank == 3:
            dist.recv(got)  # from whoever it is
        elif self.rank == 1:
            dist.send(self.tensor(), 3)
        ranks = self.groups.members[SITES[self.rank]]
        begin_sum(self.tensor(), self.groups.in_site(), ranks).wait()

    def moved(self, step: int) -> None:
        """The other operations, coalesced ones and former names too."""
        parts = [torch.empty(4096) for _ in range(4)]
        dist.all_gather(parts, self.tensor())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_gather_into_tensor(torch.empty(4 * 4096), self.tensor())
            dist.reduce_scatter_tensor(torch.empty(1024), self.tensor())
            dist.all_reduce_coalesced([self.tensor(10), self.tensor(3000)])
        for operation, out, into in ((ALL_GATHER, 4, 1), (REDUCE_SCATTER, 1, 4)):
            with dist._coalescing_manager():
                for elements in (8, 400):
                    operation(torch.empty(out * elements), self.tensor(into * elements))
        dist.broadcast(self.tensor(), src=2)
        dist.gather(self.tensor(), parts if self.rank == 1 else None, dst=1)
        dist.scatter(torch.empty(4096), parts if self.rank == 1 else None, src=1)
        dist.reduce(self.tensor(), dst=3)
        dist.all_reduce(self.tensor().bfloat16())
        dist.all_reduce(self.tensor().to(torch.int64))
        dist.all_reduce(self.tensor(), op=dist.ReduceOp.MAX)
        if SHARDS:
            dist.all_reduce(self.tensor(), op=dist.ReduceOp.AVG)
        dist.all_gather_object([None] * 4, {"rank": self.rank})
        dist.barrier()

    def threads(self, step: int) -> None:
        """Operations of several threads, each in a group of its own, many at once."""
        groups = [self.groups.new(range(4), f"fragment:{number}") for number in range(4)]

        def work(group: Any) -> None:
            for begun in [dist.all_reduce(self.tensor(), group=group, async_op=True) for _ in range(5)]:
                begun.wait()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, groups))

    def late(self, step: int) -> None:
        """Whoever waits for the future itself, as DDP's reducer does, is ahead of the evidence."""

        def slow(tensors: Any) -> str:
            time.sleep(0.05 * (threading.current_thread() is not threading.main_thread()))
            return PLAIN(tensors)

        operation_log.crc32 = slow
        dist.all_reduce(self.tensor(), async_op=True).get_future().wait()


PLAIN = operation_log.crc32
WORKS = ("ddp", "buckets", *(["fsdp"] if SHARDS else []), "experts", "messages", "moved", "threads", "late")

FAULTS = {
    "wrong-sum:rank=1,step=1": ("buckets", "moved", "fsdp", "experts"),
    "wrong-sum:rank=1,step=1,operation=all_reduce": ("ddp",),
    "wrong-sum:rank=1,step=1,operation=recv": ("messages",),
    "lost-input:rank=2,step=1": ("fsdp", "experts", "messages", "moved"),
    "lost-input:rank=2,step=1,operation=all_reduce": ("ddp", "buckets"),
    "lost-input:step=1,operation=all_reduce": ("buckets",),
    "lost-input:rank=2,step=1,operation=broadcast": ("moved",),
    "lost-input:step=1,operation=reduce_scatter": ("fsdp", "moved"),
    "lost-input:step=1": ("messages",),
}


FAULTS = {fault: tuple(name for name in names if name in WORKS) for fault, names in FAULTS.items()}


def ranks_of(rank: int, folder: Path) -> list[str]:
    """Return how sums of plain gloo and of the watched group compare, as text; records go to ``folder``."""
    it = Ranks(rank, folder)
    for name in WORKS:
        it.record(name, getattr(it, name))
    for fault, names in FAULTS.items():
        for name in names:
            it.record(f"{fault}/{name}", getattr(it, name), fault)
    plain = dist.new_group(range(4), backend="gloo")
    one, other = it.tensor() / 3, it.tensor() / 3
    dist.all_reduce(one)
    dist.all_reduce(other, group=plain)
    work = dist.all_reduce(it.tensor(), async_op=True)
    work.wait()
    seen = [str(torch.equal(one, other)), dist.get_backend(), str(work.is_completed())]
    seen.append(str(work.get_future().value()[0][0].item()))
    told = Told()
    it.groups.hooks.observer = told
    mean = mean_over(dist.group.WORLD, 4)(it.tensor()).wait()
    return [*seen, str(told.ended), str(torch.equal(mean, mean_over(plain, 4)(it.tensor()).wait()))]


class Told:
    """An observer that takes its time."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def entered(self, *_: Any, **__: Any) -> None:
        pass

    added = entered

    def left(self, operation: watched.Operation) -> None:
        time.sleep(0.05)
        self.ended.append(operation.kind)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    found = loopback_ranks.run(4, ranks_of, folder, backend=watched.BACKEND)
    assert found == [["True", watched.BACKEND, "True", "6.0", "['all_reduce']", "True"]] * 4
    return folder


def logs_of(folder: Path) -> list[CheckLog]:
    return check_logs(json_files.read_lines(folder / f"rank-{rank}.checks.jsonl") for rank in range(4))


@pytest.mark.parametrize("name", WORKS)
def test_what_went_well_is_proven(recorded: Path, name: str) -> None:
    checked = check(logs_of(recorded / name))
    sums, hangs = checked.checkers[:2]
    assert (sums.holds, sums.why, sums.findings) == (True, "", ())
    assert (hangs.holds, hangs.findings) == (True, ())


@pytest.mark.parametrize(("fault", "name"), [(fault, name) for fault, names in FAULTS.items() for name in names])
def test_what_went_wrong_is_found(recorded: Path, fault: str, name: str) -> None:
    sums = check(logs_of(recorded / fault / name)).checkers[0]
    assert sums.holds is False
    assert {it.step for it in sums.findings} == {1}
    ranks = {rank for it in sums.findings for rank in it.ranks}
    if fault.startswith("wrong-sum:rank=1"):
        assert ranks == {1}


def test_every_operation_of_torch_is_seen(recorded: Path) -> None:
    kinds = {name: set[str]() for name in WORKS}
    for name in WORKS:
        for log in logs_of(recorded / name):
            kinds[name] |= {done.kind for step in log.steps for _, done in step.operations}
    assert kinds["ddp"] >= {"all_reduce", "broadcast"}
    assert not SHARDS or kinds["fsdp"] >= {"all_gather", "reduce_scatter", "all_reduce"}
    assert kinds["experts"] == {"all_to_all"}
    assert kinds["messages"] == {"send", "recv", "sum"}
    assert kinds["moved"] >= {"gather", "scatter", "reduce", "broadcast", "barrier", "all_gather", "reduce_scatter"}


@pytest.mark.skipif(not SHARDS, reason="torch before 2.8 shards on GPUs only")
def test_groups_have_one_name_on_all_ranks_and_meshes_are_told_apart_by_ranks(recorded: Path) -> None:
    groups = {}
    for log in logs_of(recorded / "fsdp"):
        groups[log.rank] = {
            (tag.group.partition("#")[0], tag.ranks) for step in log.steps for tag, _ in step.operations
        }
    assert groups[0] == {("mesh_rank", (0, 1)), ("mesh_site", (0, 2))}
    assert groups[3] == {("mesh_rank", (2, 3)), ("mesh_site", (1, 3))}
    fragments = {tag.group for step in logs_of(recorded / "threads")[2].steps for tag, _ in step.operations}
    assert fragments == {f"fragment:{number}" for number in range(4)}


def test_operations_have_times_bytes_and_how_long_the_rank_waited(recorded: Path) -> None:
    (log, *_) = logs_of(recorded / "moved")
    done = [done for step in log.steps for _, done in step.operations]
    assert all(it.ended_t is not None and it.began_t <= it.ended_t <= time.monotonic() for it in done)
    assert all(it.waited_s is not None and it.waited_s >= 0 for it in done)
    gathered = [it.byte_count for it in done if it.kind == "all_gather"][:2]
    assert gathered == [4 * 4 * 4096, 4 * 4 * 4096]  # the whole
    assert next(it.byte_count for it in done if it.kind == "reduce_scatter") == 4 * 4096  # what one puts in
