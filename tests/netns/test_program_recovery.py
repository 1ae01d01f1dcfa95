"""The report of a program that trains across a cut of both fibers, against times that the program itself writes.

Its ranks exchange bytes over TCP each step and print their steps as nanoGPT does. The oracles: a file of monotonic
times of each rank, and the bytes on the fibers.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from builders.conditions import LABS
from builders.json_files import read_json, read_lines
from builders.labs import Lab
from oracles import oracle

from testbed.host.files.store import RunDirectory, build_report

pytestmark = LABS

CUT_S = 4.0
WAYS = ("sent", "received")
STEPS = 90
PROGRAM = f"""
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
own = open(os.path.join(os.environ["TESTBED_FOLDER"], "own"), "w")
family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
peers = []
if rank == 0:
    listener = socket.create_server(address, family=family)
    peers = [listener.accept()[0] for _ in range(world - 1)]
else:
    while not peers:
        try:
            peers = [socket.create_connection(address, 5)]
        except OSError:
            time.sleep(0.05)
    peers[0].settimeout(None)
SIZE = 100_000
def receive(peer):
    left = SIZE
    while left:
        left -= len(peer.recv(left))
for step in range({STEPS}):
    time.sleep(0.04)
    for peer in peers if rank else ():
        peer.sendall(bytes(SIZE))
    for peer in peers:
        receive(peer)
    for peer in peers if not rank else ():
        peer.sendall(bytes(SIZE))
    own.write(f"{{step}} {{time.monotonic()}}\\n")
    own.flush()
    print(f"iter {{step}}: loss {{4 - step / 100:.4f}}, time 40.00ms, mfu -100.00%")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    place = tmp_path / "work"
    place.mkdir()
    place.chmod(0o755)
    (place / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(place)
    return [sys.executable, "train.py"]


def trained_over_a_cut(lab: Lab, argv: list[str], runs: Path) -> Path:
    """Launch, cut both fibers once every rank has written 40 steps, and return the run."""
    job = lab.launch(argv, directory=runs, progress="nanogpt")
    ranks = lab.run_directory.ranks
    own = [ranks / f"rank-{rank}" / "own" for rank in range(4)]
    began = "40 steps of every rank"
    oracle.until(lambda: all(it.exists() and len(it.read_text().splitlines()) >= 40 for it in own), 60.0, began)
    lab.cut("north", for_s=CUT_S)
    lab.inject("cut", "south", for_s=CUT_S, wait=True)
    assert job.exit_status(90) == 0
    return lab.run_directory.path


def own_gap(run: Path) -> float:
    """Return the longest time between two steps that every rank had ended, by the program's own clock."""
    times: dict[int, float] = {}
    for file in (run / "ranks").glob("rank-*/own"):
        for step, t in (line.split() for line in file.read_text().splitlines()):
            times[int(step)] = max(float(t), times.get(int(step), 0.0))
    ends = [times[step] for step in sorted(times)]
    assert len(ends) == STEPS
    return max(after - before for before, after in pairwise(ends))


def test_recovery_from_a_cut_is_what_the_program_and_the_fiber_say(
    lab: Lab, program: list[str], tmp_path: Path
) -> None:
    run = trained_over_a_cut(lab, program, tmp_path / "runs")
    report = build_report(RunDirectory(run))
    gap_s = own_gap(run)
    assert gap_s > 0.8 * CUT_S
    assert report.recovery_s == pytest.approx(gap_s, rel=0.2)
    assert report.training.steps_committed == STEPS
    assert {"progressed", "recovered"} <= {it.id for it in report.answers}
    (toward, *_) = [it for it in report.traffic if it.name == "toward west"]
    assert toward.longest is not None and toward.longest.most_s is not None
    assert toward.longest.least_s - 0.5 < gap_s < toward.longest.most_s + 0.5, "bytes on the fiber"
    names = {it.name for it in report.traffic if it.kind == "node"}
    assert names == {f"rank {r} on {n}, {way}" for r, n in enumerate(lab.topology.node_names) for way in WAYS}
    lines = read_lines(run / "metrics.jsonl")
    assert {line["kind"] for line in lines} - {"tcp_timeouts"} == {"fiber", "host", "node"}, "no rank is scraped"

    # The same run, had nobody said where its steps are.
    for records in (run / "ranks").glob("*.jsonl"):
        records.unlink()
    about = read_json(run / "run.json")
    del about["workload"]["progress"]
    (run / "run.json").write_text(json.dumps(about))
    report = build_report(RunDirectory(run))
    assert report.recovery_s is None
    assert report.program is not None and report.program.offer is not None
    assert report.program.offer.yaml == "progress: nanogpt"
    (told,) = [it for it in report.answers if it.id == "traffic"]
    assert told.answer == "yes" and "it was back at most" in " ".join((told.text, *told.lines))
