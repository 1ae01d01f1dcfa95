"""Programs inside a lab: exec, launch, and an unmodified torch.distributed script across the fiber."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import host_stalls
import pytest
from builders.commands import Command
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import NODES, Lab, address_of, bring_up, counters, launched, ns, processes_in
from oracles import oracle

from testbed.errors import CannotStart, LabError, StorageError, UnknownName

pytestmark = LABS

ALL_REDUCE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(int(sys.argv[1]))
dist.all_reduce(ones)
assert ones.eq(dist.get_world_size()).all()
print("sum", int(ones[0]), "on rank", dist.get_rank(), flush=True)
dist.destroy_process_group()
"""


# ---- exec


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)])
def test_exec_has_the_programs_own_status(lab: Lab, command: Command, script: str, status: int) -> None:
    assert lab.exec("east-0", ["sh", "-c", script]) == status
    assert command(f"exec -l {lab.name} east-0 -- sh -c", script).returncode == status


def test_a_command_that_is_not_there_is_127(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    assert lab.exec("east-0", ["no-such-command"]) == 127
    assert "no-such-command" in capfd.readouterr().err
    assert lab.exec("east-0", ["/etc/passwd"]) == 126, "there, and no program"


def test_exec_is_where_it_says(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("east-gw", "plant", "mgmt", "west-1"):
        capfd.readouterr()
        assert lab.exec(place, ["sh", "-c", "readlink /proc/self/ns/net; pwd"]) == 0
        inode = Path("/run/netns", ns(lab, place)).stat().st_ino
        assert capfd.readouterr().out.split() == [f"net:[{inode}]", str(tmp_path)]


def test_an_unknown_node_offers_the_nearest(lab: Lab) -> None:
    with pytest.raises(UnknownName, match="did you mean east-"):
        lab.exec("eats-0", ["true"])


# ---- launch


def test_launch_gives_each_rank_its_place_and_keeps_its_words(lab: Lab, tmp_path: Path) -> None:
    torchrun = "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT"
    words = f"echo {torchrun} $GLOO_SOCKET_IFNAME $TESTBED_SITE $(hostname) $MINE"
    said = launched(lab, ["sh", "-c", words], environment={"MINE": "yes"}, directory=tmp_path)
    master = address_of(lab, "east-0")
    for rank, node in enumerate(NODES):
        (log,) = tmp_path.glob(f"*/ranks/rank-{rank}.log")
        assert f"[rank {rank}] {log.read_text().rstrip()}" in said
        found = log.read_text().split()
        assert found[:4] == [str(rank), "4", "0", master]
        assert found[5:] == ["fabric0", node[:4], node, "yes"]


TORCHRUN = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
]
"""What torch 2.x's elastic agent sets (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""


def test_several_ranks_of_a_node_have_torchruns_whole_environment(lab: Lab, tmp_path: Path) -> None:
    """Two launches get different ports, so that what is left of one never meets the ranks of the other."""
    seen = []
    for _ in range(2):
        assert lab.launch(["env"], ranks_per_node=2, directory=tmp_path).exit_status() == 0
        newest = max(tmp_path.glob("*/ranks/rank-0.log"), key=lambda it: it.stat().st_mtime).parent
        seen.append(
            [dict(it.split("=", 1) for it in (newest / f"rank-{n}.log").read_text().splitlines()) for n in range(8)]
        )
    assert set(TORCHRUN) <= set(seen[0][0])
    for rank, it in enumerate(seen[0]):
        ranks = [int(it[key]) for key in ("RANK", "ROLE_RANK", "LOCAL_RANK", "GROUP_RANK")]
        assert ranks == [rank, rank, rank % 2, rank // 2]
        assert (it["WORLD_SIZE"], it["LOCAL_WORLD_SIZE"], it["GROUP_WORLD_SIZE"]) == ("8", "2", "4")
        assert it["TESTBED_NODE"] == NODES[rank // 2]
    ports = [{it["MASTER_PORT"] for it in ranks} for ranks in seen]
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0].isdisjoint(ports[1])


@pytest.mark.thorough
def test_one_rank_that_fails_ends_the_others_and_gives_its_status(lab: Lab, tmp_path: Path) -> None:
    began = time.monotonic()

    script = 'if [ "$RANK" = 2 ]; then exit 7; fi; exec sleep 300'
    assert lab.launch(["sh", "-c", script], directory=tmp_path).exit_status() == 7
    assert host_stalls.elapsed_s(began) < 20
    for node in NODES:
        assert processes_in(lab, node) == []


def test_the_worst_of_the_statuses_that_ranks_chose_themselves(lab: Lab, tmp_path: Path) -> None:
    assert lab.launch(["sh", "-c", "exit $RANK"], directory=tmp_path).exit_status() == 3
    with pytest.raises(CannotStart) as refused:
        lab.launch(["no-such-command"], directory=tmp_path)
    assert refused.value.status == 127


def test_a_reader_that_has_gone_ends_the_program(lab: Lab, tmp_path: Path) -> None:
    said: list[str] = []

    def head(line: str) -> None:
        if said:
            raise StorageError("whoever read it has gone")
        said.append(line)

    with pytest.raises(StorageError, match="has gone"):
        lab.launch(["yes"], directory=tmp_path, echo=head).exit_status()
    for node in NODES:
        assert processes_in(lab, node) == []
    (run,) = tmp_path.glob("*/run.json")
    found = read_json(run)
    assert found["status"] == "interrupted"
    assert "could not be shown any more" in found["reason"]


def test_run_json_tells_the_command_and_how_each_rank_ended(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")  # a clone may lie in /tmp, which is a reason of its own
    lab.launch(["sh", "-c", "exit $RANK"], directory=tmp_path).exit_status()
    (run,) = tmp_path.glob("*/run.json")
    found = read_json(run)
    times = [found["workload"].pop(key) for key in ("began_t", "ended_t")]
    ends = found["workload"].pop("ends")
    assert {it["rank"]: it["code"] for it in ends} == {0: 0, 1: 1, 2: 2, 3: 3}
    members = [(it["rank"], it["node"], it["site"], it["local_rank"]) for it in found["workload"].pop("members")]
    assert members == [(rank, node, node[:4], 0) for rank, node in enumerate(NODES)]
    assert found["workload"].pop("same_files") == {}
    scratch = found["workload"].pop("scratch")
    assert sorted(scratch["folders"]) == [*NODES]
    assert (scratch["own_tmp"], scratch["kept"]) == (False, False)
    assert scratch["tmp_shared_because"] == f"the folder of runs lies in it ({run.parent})"
    assert found["workload"] == {"command": "sh -c 'exit $RANK'", "ranks_per_node": 1, "statuses": [0, 1, 2, 3]}
    for began_t, ended_t in zip(*times, strict=True):
        assert found["started_t"] <= began_t < ended_t <= found["ended_t"]


@pytest.mark.thorough
def test_an_unmodified_torch_program_runs_across_the_fiber(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, floats = tmp_path / "all_reduce.py", 1_000_000
    script.write_text(ALL_REDUCE)
    before = counters(lab)
    said = launched(lab, [sys.executable, str(script), str(floats)], directory=tmp_path)
    after = counters(lab)
    assert [line for line in said if "hostname" in line] == [], "torch looks up who connects"
    for rank in range(4):
        assert f"[rank {rank}] sum 4 on rank {rank}" in said
    for direction in ("north:west", "north:east"):
        # Whatever the algorithm: what one side has summed up must get to the other, 4 bytes a float.
        assert after[direction]["bytes"] - before[direction]["bytes"] > 4 * floats


def test_who_follows_a_lab_ends_with_it(state_folder: Path) -> None:
    name = oracle.unused_name()
    lab = bring_up(name)
    try:
        lines = lab.logs(follow=True)
        assert f"lab {name} is up" in next(line for line in lines if "is up" in line)
    finally:
        lab.down()
    with pytest.raises(LabError, match=f"lab {name} was taken down"):
        list(lines)
    assert oracle.left_behind(name, state_folder) == []
