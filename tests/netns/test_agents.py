"""The fork server and its ranks in real network namespaces, against the protocol of docs/design.md."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import host_stalls
import pytest
from agents_lab import AGENTS, Message, Nodes, Parent, records, steps
from builders.conditions import LABS, TORCH
from oracles.oracle import until
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [*LABS, TORCH]

RANKS = 4
PORT = 9100


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    it = Nodes(f"tbag{os.getpid()}", RANKS)
    try:
        it.build()
        yield it
    finally:
        it.remove()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    it = Parent(tmp_path_factory.mktemp("agents") / "parent.log")
    try:
        (warm,) = it.next("warm", timeout_s=60)
        assert warm["torch"]
        yield it
    finally:
        it.process.kill()
        it.process.wait()


def deploy(parent: Parent, nodes: Nodes, count: int = RANKS, port: int = PORT) -> list[Message]:
    """A fresh process for each of the first ``count`` ranks, ready; in the order of ranks."""
    for rank in range(count):
        parent.say(
            {
                "do": "rank",
                "rank": rank,
                "node": f"node-{rank}",
                "site": "east" if rank < count // 2 else "west",
                "namespaces": nodes.namespaces(rank),
                "metrics": [nodes.address(rank), port],
            }
        )
    return sorted(parent.next("ready", count), key=lambda it: int(it["rank"]))


def job(nodes: Nodes, directory: Path, **changed: object) -> Message:
    return {
        "do": "train",
        "job": directory.name,
        "world_size": RANKS,
        "master": [nodes.address(0), 29500],
        "interface": "fabric0",
        "directory": str(directory),
        "steps": 20,
        "seed": 0,
        "timeout_s": 10.0,
        "batch": 4,
        "context": 64,
        "model": {"layers": 2, "heads": 2, "width": 64},
        "data": None,
        "learning_rate": 3e-3,
        **changed,
    }


def trained(
    parent: Parent, nodes: Nodes, directory: Path, slower_by: Mapping[int, float] | None = None, **changed: object
) -> None:
    count = int(str(changed.get("world_size", RANKS)))
    deploy(parent, nodes, count)
    for rank, share in (slower_by or {}).items():
        parent.say({"do": "slow", "rank": rank, "by": share})
    parent.say(job(nodes, directory, **changed))
    ends = parent.next("finished", count)
    assert [it["status"] for it in ends] == ["ok"] * count, ends


def metrics(nodes: Nodes, rank: int) -> dict[str, float]:
    url = f"http://{nodes.address(rank)}:{PORT}/metrics"
    text = nodes.inside(rank, "curl", "--silent", "--show-error", "--fail", "--max-time", "5", url)
    return {
        sample.name + "".join(sample.labels[key] for key in ("part", "state") if key in sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("interface", "fabric0") == "fabric0"
    }


def peer_wait(directory: Path, rank: int) -> list[float]:
    """Of each step of ``rank``, from the records of all, by the definition of docs/design.md."""
    ranks = [steps(directory, it) for it in range(RANKS)]
    return [
        min(max(it["t_ready"] for it in at_once) - at_once[rank]["t_ready"], at_once[rank]["exposed_s"])
        for at_once in zip(*ranks, strict=True)
    ]


def test_ranks_live_in_their_namespaces_and_are_ready_at_once(parent: Parent, nodes: Nodes) -> None:
    began = time.monotonic()
    ready = deploy(parent, nodes)
    assert host_stalls.elapsed_s(began) < 5
    for rank, event in enumerate(ready):
        assert event["rank"] == rank
        assert event["t"] >= began
        for kind, path in nodes.namespaces(rank).items():
            assert Path(f"/proc/{event['pid']}/ns/{kind}").stat().st_ino == Path(path).stat().st_ino, kind
        listening = nodes.inside(rank, "ss", "-Hltn").split()
        assert [it for it in listening if it.endswith(f":{PORT}")] == [f"{nodes.address(rank)}:{PORT}"]
        assert metrics(nodes, rank)["testbed_job_infowaiting"] == 1


def test_four_ranks_train_one_model(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    before = len(parent.events)
    trained(parent, nodes, tmp_path)

    logs = [records(tmp_path, rank) for rank in range(RANKS)]
    for rank, log in enumerate(logs):
        assert [it["kind"] for it in log] == ["job", *["step"] * 20, "end"]
        first, *middle, end = log
        assert (first["rank"], first["world_size"], first["node"]) == (rank, RANKS, f"node-{rank}")
        assert first["site"] == ("east" if rank < 2 else "west")
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
    assert "step 1 of 20: train_loss 5." in (tmp_path / "rank-0.log").read_text()

    for rank in range(RANKS):
        words = [it["event"] for it in parent.events[before:] if it.get("rank") == rank]
        assert words == ["ready", "began", "finished"]
        live = metrics(nodes, rank)  # its job over, it still answers
        assert live["testbed_job_infofinished"] == 1
        assert live["testbed_steps_total"] == live["testbed_step_seconds_count"] == 20
        assert live["testbed_train_loss"] == pytest.approx(losses[-1])
        assert live["testbed_collective_seconds_count"] >= 20


def test_gradients_are_the_mean_over_all_ranks(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    """Against the same training in this process: every rank's windows, gradients averaged by hand, no DDP."""
    import torch
    from testbed_agents import data, model

    trained(parent, nodes, tmp_path, steps=5)

    torch.manual_seed(0)
    it = model.GPT(model.Shape(layers=2, heads=2, width=64, context=64))
    optimizer = torch.optim.AdamW(it.parameters(), lr=3e-3)
    windows = [data.Windows(data.load(), batch=4, context=64, seed=0, rank=rank) for rank in range(RANKS)]
    expected = []
    for _ in range(5):
        optimizer.zero_grad()
        losses = [model.cross_entropy(it(inputs), targets) for inputs, targets in (each.draw() for each in windows)]
        mean = torch.stack(losses).mean()
        mean.backward()
        optimizer.step()
        expected.append(mean.item())
    assert [it["train_loss"] for it in steps(tmp_path, 2)] == pytest.approx(expected, rel=1e-5)


def test_two_jobs_of_one_seed_end_in_the_same_parameters(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    for name in ("one", "other"):
        trained(parent, nodes, tmp_path / name, steps=4)
    one, other = (records(tmp_path / name, 0)[-1]["parameters_sha256"] for name in ("one", "other"))
    assert one == other


def test_bytes_on_the_wire_are_the_gradients(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    """A ring of two carries 2 (W - 1) / W = 1.0 of the gradients each way."""
    trained(parent, nodes, tmp_path, world_size=2, steps=12)
    for rank in range(2):
        gradient_bytes = records(tmp_path, rank)[0]["gradient_bytes"]
        for way in ("sent_bytes", "received_bytes"):
            counted = [it[way] for it in steps(tmp_path, rank)]
            each = [after - before for before, after in pairwise(counted[1:])]
            assert 1.0 < statistics.median(each) / gradient_bytes < 1.2, way


@pytest.mark.alone
def test_a_slow_rank_is_what_the_others_wait_for(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    trained(parent, nodes, tmp_path, slower_by={2: 10.0}, steps=10)
    waits = [peer_wait(tmp_path, rank) for rank in range(RANKS)]
    assert min(min(it) for it in waits) >= 0
    # Its steps are eleven times as long as without the fault, at the speed that this machine gives it now.
    slow_s = statistics.median(it["compute_s"] for it in steps(tmp_path, 2))
    for rank in (0, 1, 3):
        assert statistics.median(waits[rank]) > slow_s / 2
    assert statistics.median(waits[2]) == 0, "in most steps it is the last one to be ready"

    for rank in range(RANKS):  # what the ranks told each other while they ran is what the records say afterwards
        live = metrics(nodes, rank)
        part = "testbed_exposed_communication_seconds_total"
        # ddp exchanges nothing after an update; what the host takes there is none of the records' wait.
        after_s = sum(it["t_end"] - it["t_stepped"] for it in steps(tmp_path, rank))
        assert -1e-4 <= live[part + "peer_wait"] - sum(waits[rank]) <= after_s + 1e-4
        exposed = sum(it["exposed_s"] for it in steps(tmp_path, rank))
        assert live[part + "peer_wait"] + live[part + "network"] == pytest.approx(exposed, rel=0.01)


def test_a_killed_rank_is_said_and_its_peers_fail(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    ready = deploy(parent, nodes)
    parent.say(job(nodes, tmp_path, steps=100_000))
    until(lambda: (tmp_path / "rank-3.jsonl").exists() and len(steps(tmp_path, 3)) > 3, 20, "some steps")
    os.kill(ready[3]["pid"], signal.SIGKILL)
    began = time.monotonic()
    said = parent.wait_for(4, 20, lambda it: it["event"] in ("died", "finished"))
    (died,) = (it for it in said if it["event"] == "died")
    assert (died["rank"], died["pid"], died["signal"]) == (3, ready[3]["pid"], signal.SIGKILL)
    assert host_stalls.elapsed_s(began) < 5, "all peers must hear of it long before their timeout of 10 s"
    for event in (it for it in said if it["event"] == "finished"):
        assert event["status"] == "failed"
        assert event["reason"].startswith("step ")
        assert "onnection" in event["reason"]  # closed, or reset
        assert len(event["reason"]) < 100
        end = records(tmp_path, event["rank"])[-1]
        assert (end["kind"], end["status"], end["reason"]) == ("end", "failed", event["reason"])
        assert end["step"] == len(steps(tmp_path, event["rank"]))
        assert metrics(nodes, event["rank"])["testbed_job_infofailed"] == 1

    trained(parent, nodes, tmp_path / "again", steps=2)  # fresh processes, same addresses and port


def test_a_job_is_stopped_after_one_and_the_same_step(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    deploy(parent, nodes)
    parent.say(job(nodes, tmp_path, steps=100_000))
    until(lambda: (tmp_path / "rank-0.jsonl").exists() and len(steps(tmp_path, 0)) > 2, 20, "some steps")
    parent.say({"do": "stop", "job": "another"})
    parent.say({"do": "stop", "job": tmp_path.name})
    ends = parent.next("finished", RANKS, timeout_s=5)
    assert {it["status"] for it in ends} == {"stopped"}
    last = [records(tmp_path, rank)[-1] for rank in range(RANKS)]
    assert len({(it["step"], it["parameters_sha256"]) for it in last}) == 1


def test_a_rank_stuck_in_a_collective_is_stopped_nevertheless(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    deploy(parent, nodes)
    parent.say(job(nodes, tmp_path, steps=100_000, timeout_s=60.0))
    until(lambda: (tmp_path / "rank-0.jsonl").exists() and len(steps(tmp_path, 0)) > 2, 20, "some steps")
    nodes.inside(3, "ip", "link", "set", "fabric0", "down")
    try:
        done = -1
        while done != len(steps(tmp_path, 0)):  # until half a second brings no step
            done = len(steps(tmp_path, 0))
            time.sleep(0.5)
        parent.say({"do": "stop", "job": tmp_path.name})
        ends = parent.next("finished", RANKS, timeout_s=8)
        assert {it["status"] for it in ends} == {"stopped"}
        assert metrics(nodes, 0)["testbed_job_infostopped"] == 1
    finally:
        nodes.inside(3, "ip", "link", "set", "fabric0", "up")
    assert records(tmp_path, 0)[-1]["kind"] == "end"


@pytest.mark.thorough
def test_a_cut_longer_than_the_timeout_fails_the_job(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    deploy(parent, nodes)
    parent.say(job(nodes, tmp_path, steps=100_000, timeout_s=2.0))
    until(lambda: (tmp_path / "rank-0.jsonl").exists() and len(steps(tmp_path, 0)) > 2, 20, "some steps")
    nodes.inside(3, "ip", "link", "set", "fabric0", "down")
    try:
        ends = parent.next("finished", RANKS, timeout_s=20)
    finally:
        nodes.inside(3, "ip", "link", "set", "fabric0", "up")
    assert {it["status"] for it in ends} == {"failed"}
    assert any("Timed out waiting 2000ms" in it["reason"] for it in ends), ends


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
def test_mistakes_are_sentences(parent: Parent, nodes: Nodes, tmp_path: Path, changed: Message, words: str) -> None:
    deploy(parent, nodes, 1)
    parent.say(job(nodes, tmp_path, world_size=1, timeout_s=2.0) | changed)
    (end,) = parent.next("finished")
    assert end["status"] == "failed"
    assert words in end["reason"]
    assert metrics(nodes, 0)["testbed_job_infofailed"] == 1


def test_a_rank_that_never_comes_is_waited_for_no_longer_than_the_timeout(
    parent: Parent, nodes: Nodes, tmp_path: Path
) -> None:
    ready = deploy(parent, nodes)
    os.kill(ready[3]["pid"], signal.SIGSTOP)
    parent.say(job(nodes, tmp_path, timeout_s=1.0))
    for end in parent.next("finished", 3, timeout_s=10):
        assert end["status"] == "failed"
        assert end["reason"].startswith("cannot form the process group: ")
    trained(parent, nodes, tmp_path / "again", steps=1)  # a stopped process is replaced like any other


def test_a_full_disk_ends_the_job_of_all_with_its_reason(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "rank-1.jsonl").symlink_to("/dev/full")
    deploy(parent, nodes)
    parent.say(job(nodes, tmp_path))
    ends = {it["rank"]: it for it in parent.next("finished", RANKS, timeout_s=8)}  # 8 s < the timeout of 10 s
    assert {it["status"] for it in ends.values()} == {"failed"}
    assert ends[1]["reason"] == f"cannot write {tmp_path}/rank-1.jsonl: No space left on device"
    assert "onnection" in ends[0]["reason"]


@pytest.mark.thorough
def test_the_trainer_is_a_torchrun_program_too(nodes: Nodes, tmp_path: Path) -> None:
    program = (sys.executable, "-m", "testbed_agents.train")
    processes = [
        subprocess.Popen(
            ["ip", "netns", "exec", nodes.name(rank), *program, "--steps", "3", "--directory", str(tmp_path)],
            env=os.environ
            | {"PYTHONPATH": str(AGENTS), "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": nodes.address(0)}
            | {"MASTER_PORT": "29502", "GLOO_SOCKET_IFNAME": "fabric0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert f"rank {rank}: 3 steps done" in output
        assert [it["step"] for it in steps(tmp_path, rank)] == [1, 2, 3]


def test_a_job_is_for_all_its_ranks_or_none(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    trained(parent, nodes, tmp_path, steps=1)
    parent.say(job(nodes, tmp_path))
    for end in parent.next("finished", RANKS, timeout_s=5):
        assert (end["status"], end["reason"]) == ("failed", "rank 0, 1, 2, 3 already had a job: deploy a fresh one")


def test_garbage_on_stdin_changes_nothing(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    parent.process.stdin.write(b'\xff\xfe not json\n[]\n{"do": "dance"}\n{"do": "rank"}\n{}\n')
    trained(parent, nodes, tmp_path, steps=1)


def test_a_rank_that_cannot_start_is_said(parent: Parent, nodes: Nodes) -> None:
    parent.say(
        {
            "do": "rank",
            "rank": 77,
            "node": "node-77",
            "site": "east",
            "namespaces": {"net": "/run/netns/there-is-none"},
            "metrics": ["127.0.0.1", PORT],
        }
    )
    (died,) = parent.next("died")
    assert (died["rank"], died["code"]) == (77, 1)


@pytest.mark.parametrize("how", ["end of stdin", pytest.param("SIGKILL", marks=pytest.mark.thorough)])
def test_no_rank_outlives_the_parent(nodes: Nodes, tmp_path: Path, how: str) -> None:
    own = Parent(tmp_path / "parent.log")
    own.next("warm", timeout_s=60)
    pids = [it["pid"] for it in deploy(own, nodes, port=PORT + 1)]
    own.say(job(nodes, tmp_path, master=[nodes.address(0), 29501], steps=100_000))
    own.next("began", RANKS)
    os.kill(own.process.pid, signal.SIGINT)  # a Ctrl-C in the terminal is not for it
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    until(lambda: len(steps(tmp_path, 0)) > 2, 20, "some steps after a SIGINT")
    if how == "SIGKILL":
        own.process.kill()
        own.process.wait()
    else:
        assert own.close() == 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5, "no rank left")
