"""The fork server and its ranks in real network namespaces, against the protocol of docs/design.md."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import host_stalls
import pytest
from agents_lab import AGENTS, Message, Nodes, Parent, Ranks, fork_server, nodes_up
from builders.conditions import LABS, TORCH, thorough
from oracles.oracle import until
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [*LABS, TORCH]

RANKS = 4
PORT = 9100
SITES = ("east", "east", "west", "west")
FIELDS = {"steps": 20, "timeout_s": 10.0, "batch": 4, "context": 64, "data": None, "learning_rate": 3e-3}
MANY = 100_000


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with nodes_up("tbag", RANKS) as made:
        yield made


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    with fork_server(tmp_path_factory.mktemp("agents") / "parent.log") as running:
        yield running


@pytest.fixture
def ranks(parent: Parent, nodes: Nodes, tmp_path: Path) -> Ranks:
    return Ranks(parent, nodes, tmp_path, SITES, **FIELDS)


def pair_of(ranks: Ranks) -> Ranks:
    """Return two ranks, at two sites."""
    return Ranks(ranks.parent, ranks.nodes, ranks.folder, ("east", "west"), **FIELDS)


def in_folder(ranks: Ranks, name: str) -> Ranks:
    return Ranks(ranks.parent, ranks.nodes, ranks.folder / name, SITES, **FIELDS)


def trained(ranks: Ranks, **changed: object) -> Ranks:
    ranks.begin(**changed)
    ranks.finish()
    return ranks


def statuses(ends: list[Message]) -> set[str]:
    return {end["status"] for end in ends}


def metrics(ranks: Ranks, rank: int) -> dict[str, float]:
    url = f"http://{ranks.nodes.address(rank)}:{PORT}/metrics"
    text = ranks.nodes.inside(rank, "curl", "--silent", "--show-error", "--fail", "--max-time", "5", url)
    return {
        sample.name + "".join(sample.labels[key] for key in ("part", "state") if key in sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("interface", "fabric0") == "fabric0"
    }


def peer_wait(ranks: Ranks, rank: int) -> list[float]:
    """Of each step of ``rank``, from the records of all, by the definition of docs/design.md."""
    return [
        min(max(step["t_ready"] for step in at_once) - at_once[rank]["t_ready"], at_once[rank]["exposed_s"])
        for at_once in zip(*map(ranks.steps, range(RANKS)), strict=True)
    ]


@contextmanager
def unplugged(ranks: Ranks, node: int) -> Iterator[None]:
    ranks.nodes.inside(node, "ip", "link", "set", "fabric0", "down")
    try:
        yield
    finally:
        ranks.nodes.inside(node, "ip", "link", "set", "fabric0", "up")


def test_ranks_live_in_their_namespaces_and_are_ready_at_once(ranks: Ranks) -> None:
    began = time.monotonic()
    ready = ranks.deploy()
    assert host_stalls.elapsed_s(began) < 5
    for rank, event in enumerate(ready):
        assert event["rank"] == rank
        assert event["t"] >= began
        for kind, path in ranks.nodes.namespaces(rank).items():
            assert Path(f"/proc/{event['pid']}/ns/{kind}").stat().st_ino == Path(path).stat().st_ino, kind
        listening = ranks.nodes.inside(rank, "ss", "-Hltn").split()
        assert [it for it in listening if it.endswith(f":{PORT}")] == [f"{ranks.nodes.address(rank)}:{PORT}"]
        assert metrics(ranks, rank)["testbed_job_infowaiting"] == 1


def test_four_ranks_train_one_model(ranks: Ranks) -> None:
    before = len(ranks.parent.events)
    trained(ranks)

    logs = [ranks.records(rank) for rank in range(RANKS)]
    for rank, log in enumerate(logs):
        assert [it["kind"] for it in log] == ["job", *["step"] * 20, "end"]
        first, *middle, end = log
        assert (first["rank"], first["world_size"], first["node"]) == (rank, RANKS, f"node-{rank}")
        assert first["site"] == SITES[rank]
        assert first["gradient_bytes"] == 4 * first["parameters"] == logs[0][0]["gradient_bytes"]
        assert first["tokens_per_step"] == 4 * 64
        assert [it["step"] for it in middle] == list(range(1, 21))
        for it in middle:
            assert it["t_begin"] <= it["t_ready"] <= it["t_sync"] <= it["t_end"]
            assert it["compute_s"] + it["exposed_s"] == pytest.approx(it["t_end"] - it["t_begin"], rel=0.01)
        for one, other in pairwise(middle):
            assert one["t_end"] <= other["t_begin"]
            assert one["sent_bytes"] < other["sent_bytes"]
        assert (end["status"], end["reason"], end["step"]) == ("ok", "", 20)
        # All saw the same mean, and it fell.
        assert [it["train_loss"] for it in middle] == [it["train_loss"] for it in logs[0][1:-1]]
    losses = [it["train_loss"] for it in logs[0][1:-1]]
    assert losses[0] == pytest.approx(5.5, abs=0.4)
    assert statistics.median(losses[-5:]) < losses[0] - 0.3  # 0.4 to 0.5 after 20 steps
    assert len({log[-1]["parameters_sha256"] for log in logs}) == 1
    assert "step 1 of 20: train_loss 5." in (ranks.folder / "rank-0.log").read_text()

    for rank in range(RANKS):
        words = [it["event"] for it in ranks.parent.events[before:] if it.get("rank") == rank]
        assert words == ["ready", "began", "finished"]
        live = metrics(ranks, rank)  # its job over, it still answers
        assert live["testbed_job_infofinished"] == 1
        assert live["testbed_steps_total"] == live["testbed_step_seconds_count"] == 20
        assert live["testbed_train_loss"] == pytest.approx(losses[-1])
        assert live["testbed_collective_seconds_count"] >= 20


def test_gradients_are_the_mean_over_all_ranks(ranks: Ranks) -> None:
    """Against the same training in this process: every rank's windows, gradients averaged by hand, no DDP."""
    import torch
    from testbed_agents import data, model

    trained(ranks, steps=5)

    torch.manual_seed(0)
    gpt = model.GPT(model.Shape(layers=2, heads=2, width=64, context=64))
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-3)
    windows = [data.Windows(data.load(), batch=4, context=64, seed=0, rank=rank) for rank in range(RANKS)]
    expected = []
    for _ in range(5):
        optimizer.zero_grad()
        losses = [model.cross_entropy(gpt(inputs), targets) for inputs, targets in (each.draw() for each in windows)]
        mean = torch.stack(losses).mean()
        mean.backward()
        optimizer.step()
        expected.append(mean.item())
    assert [step["train_loss"] for step in ranks.steps(2)] == pytest.approx(expected, rel=1e-5)


def test_two_jobs_of_one_seed_end_in_the_same_parameters(ranks: Ranks) -> None:
    jobs = [trained(in_folder(ranks, name), steps=4) for name in ("one", "other")]
    assert len({job.records(0)[-1]["parameters_sha256"] for job in jobs}) == 1


def test_bytes_on_the_wire_are_the_gradients(ranks: Ranks) -> None:
    """A ring of two carries 2 (W - 1) / W = 1.0 of the gradients each way."""
    pair = trained(pair_of(ranks), steps=12)
    for rank in range(2):
        gradient_bytes = pair.records(rank)[0]["gradient_bytes"]
        for way in ("sent_bytes", "received_bytes"):
            counted = [step[way] for step in pair.steps(rank)]
            moved = [after - before for before, after in pairwise(counted[1:])]
            assert 1.0 < statistics.median(moved) / gradient_bytes < 1.2, way


@pytest.mark.alone
def test_a_slow_rank_is_what_the_others_wait_for(ranks: Ranks) -> None:
    ranks.deploy()
    ranks.parent.say({"do": "slow", "rank": 2, "by": 10.0})
    ranks.train(steps=10)
    ranks.finish()
    waits = [peer_wait(ranks, rank) for rank in range(RANKS)]
    assert min(map(min, waits)) >= 0
    # Its steps are eleven times as long as without the fault, at the speed that this machine gives it now.
    slow_s = statistics.median(step["compute_s"] for step in ranks.steps(2))
    for rank in (0, 1, 3):
        assert statistics.median(waits[rank]) > slow_s / 2
    assert statistics.median(waits[2]) == 0, "in most steps it is the last one to be ready"

    for rank in range(RANKS):  # what the ranks told each other while they ran is what the records say afterwards
        live, steps = metrics(ranks, rank), ranks.steps(rank)
        part = "testbed_exposed_communication_seconds_total"
        # ddp exchanges nothing after an update; what the host takes there is none of the records' wait.
        after_s = sum(step["t_end"] - step["t_stepped"] for step in steps)
        assert -1e-4 <= live[part + "peer_wait"] - sum(waits[rank]) <= after_s + 1e-4
        exposed = sum(step["exposed_s"] for step in steps)
        assert live[part + "peer_wait"] + live[part + "network"] == pytest.approx(exposed, rel=0.01)


def test_a_killed_rank_is_said_and_its_peers_fail(ranks: Ranks) -> None:
    ready = ranks.begin(steps=MANY)
    ranks.until_steps(4, rank=3)
    os.kill(ready[3]["pid"], signal.SIGKILL)
    began = time.monotonic()
    said = ranks.parent.wait_for(4, 20, lambda it: it["event"] in ("died", "finished"))
    (died,) = (it for it in said if it["event"] == "died")
    assert (died["rank"], died["pid"], died["signal"]) == (3, ready[3]["pid"], signal.SIGKILL)
    assert host_stalls.elapsed_s(began) < 5, "all peers must hear of it long before their timeout of 10 s"
    for event in (it for it in said if it["event"] == "finished"):
        assert event["status"] == "failed"
        assert event["reason"].startswith("step ")
        assert "onnection" in event["reason"]  # closed, or reset
        assert len(event["reason"]) < 100
        end = ranks.records(event["rank"])[-1]
        assert (end["kind"], end["status"], end["reason"]) == ("end", "failed", event["reason"])
        assert end["step"] == len(ranks.steps(event["rank"]))
        assert metrics(ranks, event["rank"])["testbed_job_infofailed"] == 1

    trained(in_folder(ranks, "again"), steps=2)  # fresh processes, same addresses and port


def test_a_job_is_stopped_after_one_and_the_same_step(ranks: Ranks) -> None:
    ranks.begin(steps=MANY)
    ranks.until_steps(3)
    ranks.parent.say({"do": "stop", "job": "another"})
    ranks.stop()
    assert statuses(ranks.parent.next("finished", RANKS, timeout_s=5)) == {"stopped"}
    last = [ranks.records(rank)[-1] for rank in range(RANKS)]
    assert len({(it["step"], it["parameters_sha256"]) for it in last}) == 1


def test_a_rank_stuck_in_a_collective_is_stopped_nevertheless(ranks: Ranks) -> None:
    ranks.begin(steps=MANY, timeout_s=60.0)
    ranks.until_steps(3)
    with unplugged(ranks, 3):
        done = -1
        while done != len(ranks.steps(0)):  # until half a second brings no step
            done = len(ranks.steps(0))
            time.sleep(0.5)
        ranks.stop()
        assert statuses(ranks.parent.next("finished", RANKS, timeout_s=8)) == {"stopped"}
        assert metrics(ranks, 0)["testbed_job_infostopped"] == 1
    assert ranks.records(0)[-1]["kind"] == "end"


@pytest.mark.thorough
def test_a_cut_longer_than_the_timeout_fails_the_job(ranks: Ranks) -> None:
    ranks.begin(steps=MANY, timeout_s=2.0)
    ranks.until_steps(3)
    with unplugged(ranks, 3):
        ends = ranks.parent.next("finished", RANKS, timeout_s=20)
    assert statuses(ends) == {"failed"}
    assert any("Timed out waiting 2000ms" in end["reason"] for end in ends), ends


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"data": "/nowhere/text"}, "cannot read /nowhere/text: No such file or directory"),
        ({"directory": "/dev/null/ranks"}, "cannot write /dev/null/ranks/rank-0.jsonl"),
        ({"model": {"layers": 1, "heads": 3, "width": 64}}, "got width 64 and 3 heads"),
        ({"interface": "fabric7"}, "unknown interface fabric7 (available: lo, fabric0)"),
        ({"master": None}, "invalid train message"),
        ({"learning_rate": 1e30}, "training diverged"),
    ],
)
def test_mistakes_are_sentences(ranks: Ranks, changed: Message, words: str) -> None:
    ranks.begin(**{"world_size": 1, "timeout_s": 2.0, **changed})
    (end,) = ranks.parent.next("finished")
    assert end["status"] == "failed"
    assert words in end["reason"]
    assert metrics(ranks, 0)["testbed_job_infofailed"] == 1


def test_a_rank_that_never_comes_is_waited_for_no_longer_than_the_timeout(ranks: Ranks) -> None:
    ready = ranks.deploy()
    os.kill(ready[3]["pid"], signal.SIGSTOP)
    ranks.train(timeout_s=1.0)
    for end in ranks.parent.next("finished", 3, timeout_s=10):
        assert end["status"] == "failed"
        assert end["reason"].startswith("cannot form the process group: ")
    trained(in_folder(ranks, "again"), steps=1)  # a stopped process is replaced like any other


def test_a_full_disk_ends_the_job_of_all_with_its_reason(ranks: Ranks) -> None:
    (ranks.folder / "rank-1.jsonl").symlink_to("/dev/full")
    ranks.begin()
    ends = {it["rank"]: it for it in ranks.parent.next("finished", RANKS, timeout_s=8)}  # 8 s < the timeout of 10 s
    assert statuses([*ends.values()]) == {"failed"}
    assert ends[1]["reason"] == f"cannot write {ranks.folder}/rank-1.jsonl: No space left on device"
    assert "onnection" in ends[0]["reason"]


@pytest.mark.thorough
def test_the_trainer_is_a_torchrun_program_too(ranks: Ranks) -> None:
    program = (sys.executable, "-m", "testbed_agents.train")
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", ranks.nodes.name(rank), *program, "--steps", "3", "--directory", ranks.folder],
            env=os.environ
            | {"PYTHONPATH": str(AGENTS), "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ranks.nodes.address(0)}
            | {"MASTER_PORT": "29502", "GLOO_SOCKET_IFNAME": "fabric0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert f"rank {rank}: 3 steps completed" in output
        assert [step["step"] for step in ranks.steps(rank)] == [1, 2, 3]


def test_a_job_is_for_all_its_ranks_or_none(ranks: Ranks) -> None:
    trained(ranks, steps=1)
    ranks.train()
    for end in ranks.parent.next("finished", RANKS, timeout_s=5):
        assert (end["status"], end["reason"]) == ("failed", "rank 0, 1, 2, 3 already had a job: deploy a fresh one")


def test_garbage_on_stdin_changes_nothing(ranks: Ranks) -> None:
    ranks.parent.process.stdin.write(b'\xff\xfe not json\n[]\n{"do": "dance"}\n{"do": "rank"}\n{}\n')
    trained(ranks, steps=1)


def test_a_rank_that_cannot_start_is_said(parent: Parent) -> None:
    place = {"node": "node-77", "site": "east", "namespaces": {"net": "/run/netns/there-is-none"}}
    parent.say({"do": "rank", "rank": 77, "metrics": ["127.0.0.1", PORT], **place})
    (died,) = parent.next("died")
    assert (died["rank"], died["code"]) == (77, 1)


@pytest.mark.parametrize("how", ["end of stdin", thorough("SIGKILL")])
def test_no_rank_outlives_the_parent(nodes: Nodes, tmp_path: Path, how: str) -> None:
    with fork_server(tmp_path / "parent.log") as own:
        ranks = Ranks(own, nodes, tmp_path, SITES, **FIELDS)
        pids = [event["pid"] for event in ranks.deploy(port=PORT + 1)]
        ranks.train(master=[nodes.address(0), 29501], steps=MANY)
        own.next("began", RANKS)
        for pid in (own.process.pid, *pids):
            os.kill(pid, signal.SIGINT)  # a Ctrl-C in the terminal is not for it
        ranks.until_steps(3)
        if how == "SIGKILL":
            own.process.kill()
            own.process.wait()
        else:
            assert own.close() == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5, "no rank left")
