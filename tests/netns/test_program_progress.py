"""The steps of launched programs, read where the programs report them: output, files, endpoints, calls.

Every program writes the monotonic time of each of its steps into a file of its own, which the records are held against.
"""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command, check
from builders.conditions import ALONE
from builders.json_files import read_json, read_lines
from builders.labs import Lab

from testbed.errors import FileMistakes
from testbed.lab.jobs import progress_output

pytestmark = ALONE

STEPS = 8
PERIOD_S = 0.05

BEGIN = f"""
import os, sys, time
own = open(os.path.join(os.environ["TESTBED_FOLDER"], "own"), "w")
rank = int(os.environ["RANK"])
def steps():
    for step in range(1, {STEPS + 1}):
        time.sleep({PERIOD_S})
        own.write(f"{{step}} {{time.monotonic()}}\\n")
        own.flush()
        yield step
"""

LINES = """
for step in steps():
    print(f"iter {step}: loss {1 / step:.4f}, time 50.00ms, mfu 0.00%")  # not flushed
"""

BAR = """
sys.stdout.write("Epoch 0:   0%|          | 0/8 [00:00<?, ?it/s]")
for step in steps():
    sys.stdout.write(f"\\rEpoch 0:  50%|#####     | {step}/8 [00:00<00:00, 20.00it/s, train_loss={1 / step:.3f}]")
"""

CALLS = """
try:
    from testbed_agents import step as report
except ImportError:
    report = None
import testbed_agents
assert not hasattr(testbed_agents, "rank") and "torch" not in sys.modules and "testbed" not in sys.modules
for step in steps():
    report(step, train_loss=1 / step, tokens=4096, grad_norm=step, name=None)
report("no number")
"""

TABLE = """
if rank == 0:
    table = open("loss.csv", "a")
    table.write("iter,loss,tok\\n")
    for step in steps():
        table.write(f"{step},{1 / step},{512 * step}\\n")
        table.flush()
"""

ENDPOINT = """
import http.server, threading
at = [0]
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"# TYPE train_step gauge\\ntrain_step {at[0]}\\nseen_total {at[0] * 100}\\n".encode())
    def log_message(self, *args): pass
port = 9100 + int(os.environ["LOCAL_RANK"])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Metrics)
threading.Thread(target=server.serve_forever, daemon=True).start()
for at[0] in steps():
    time.sleep(0.15)
"""

EVENTS = r"""
import struct
def crc(data):  # bit by bit
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
os.makedirs(os.path.join("runs", str(rank)), exist_ok=True)
events = open(os.path.join("runs", str(rank), "events.out.tfevents.1"), "wb")
for step in steps():
    value = b"\x0a\x04loss\x15" + struct.pack("<f", 1 / step)
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + bytes([step])
    event += b"\x2a" + bytes([len(summary)]) + summary
    length = struct.pack("<Q", len(event))
    events.write(length + crc(length) + event + crc(event))
events.close()  # only now is anything on disk
"""

Launch = Callable[..., Path]


@pytest.fixture
def launch(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """``launch(argv, progress=…)`` runs a program in a working directory that everyone can write; returns the run."""
    place = tmp_path / "work"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.chdir(place)

    def run(argv: Sequence[str], **how: Any) -> Path:
        said: list[str] = []
        runs = tmp_path / "runs"
        before = set(runs.glob("*/run.json"))
        job = lab.launch(argv, directory=runs, echo=how.pop("echo", said.append), **how)
        status = job.exit_status(60.0)
        assert status == 0, said
        (found,) = set(runs.glob("*/run.json")) - before
        return found.parent

    return run


def python(program: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + program]


def records(run: Path, rank: int) -> list[dict[str, Any]]:
    path = run / "ranks" / f"rank-{rank}.jsonl"
    return read_lines(path) if path.exists() else []


def progress(run: Path, rank: int) -> list[dict[str, Any]]:
    first, *rest = records(run, rank)
    assert first["kind"] == "job" and first["rank"] == rank and first["world_size"] == 4 and first["attempt"] == 1
    assert {it["kind"] for it in rest} == {"progress"}
    assert first["t"] <= rest[0]["t"]
    return rest


def own_times(run: Path, rank: int) -> dict[int, float]:
    lines = (run / "ranks" / f"rank-{rank}" / "own").read_text().split()
    return {int(step): float(t) for step, t in zip(lines[::2], lines[1::2], strict=True)}


def late(run: Path, rank: int) -> float:
    """Return by how much the records lag the program's own times, at the median."""
    own = own_times(run, rank)
    first: Mapping[int, float] = {it["step"]: it["t"] for it in reversed(progress(run, rank))}
    assert sorted(first) == sorted(own)
    assert all(first[step] > own[step] - 0.01 for step in own), "a step cannot be read before it is done"
    return statistics.median(first[step] - own[step] for step in own)


def test_lines_that_are_not_flushed_are_stamped_when_they_are_printed(launch: Launch) -> None:
    run = launch(python(LINES), progress={"preset": "nanogpt", "tokens": 4096})
    for rank in range(4):
        assert late(run, rank) < PERIOD_S, "each line comes before the next step"
        found = progress(run, rank)
        assert [it["tokens"] for it in found] == [None] + [4096] * (STEPS - 1)
        assert [it["train_loss"] for it in found] == [round(1 / step, 4) for step in range(1, STEPS + 1)]
    about = read_json(run / "run.json")["workload"]
    assert about["progress"] == {"preset": "nanogpt", "tokens": 4096}
    assert "progress_unread" not in about


def test_a_progress_bar_is_read_at_each_of_its_states(launch: Launch) -> None:
    said: list[str] = []
    run = launch(python(BAR), progress="lightning", echo=said.append)
    assert late(run, 2) < PERIOD_S, "though each state is ended by the next one only"
    assert [it["train_loss"] for it in progress(run, 2)][-1] == pytest.approx(1 / STEPS, abs=1e-3)
    assert len(said) == 4 and all("8/8" in line and "7/8" not in line for line in said), "as a terminal shows it"


def test_a_program_of_c_writes_each_line_when_it_prints_it(launch: Launch) -> None:
    script = "for i in 1 2 3 4; do echo step $i; sleep 0.1; done | cut -c 1-"
    run = launch(["sh", "-c", script], progress={"line": r"^step (?P<step>\d+)$"})
    times = [it["t"] for it in progress(run, 0)]
    assert min(b - a for a, b in itertools.pairwise(times)) > 0.05, "cut(1) held them back until its end"


def test_calls_are_read_without_being_asked_for(launch: Launch) -> None:
    run = launch(python(CALLS))
    assert late(run, 3) < 0.01, "a call has the time at which it was made"
    found = progress(run, 3)
    assert [it["tokens"] for it in found] == [None] + [4096] * (STEPS - 1)
    assert found[4]["train_loss"] == pytest.approx(1 / 5) and found[4]["grad_norm"] == 5
    assert "progress" not in read_json(run / "run.json")["workload"]


def test_a_table_in_the_working_directory_counts_as_the_first_ranks(launch: Launch) -> None:
    Path("loss.csv").write_text("iter,loss,tok\n900,1.0,1\n")  # of an earlier run
    Path("loss.csv").chmod(0o666)
    spec = {"csv": "loss.csv", "step": "iter", "train_loss": "loss", "tokens_seen": "tok"}
    run = launch(python(TABLE), progress=spec)
    assert late(run, 0) < PERIOD_S
    assert [it["tokens"] for it in progress(run, 0)] == [None] + [512] * (STEPS - 1)
    assert [records(run, rank) for rank in (1, 2, 3)] == [[], [], []]


def test_event_files_have_times_of_their_own(launch: Launch) -> None:
    run = launch(python(EVENTS), progress={"tensorboard": "runs/{rank}", "train_loss": "loss", "tokens": 100})
    for rank in range(4):
        assert late(run, rank) < 0.02, "though the file was written at the end"
        assert [it["train_loss"] for it in progress(run, rank)] == pytest.approx([1 / s for s in range(1, STEPS + 1)])


def test_endpoints_are_asked_inside_their_nodes(launch: Launch) -> None:
    spec = {"prometheus": 9100, "step": "train_step", "tokens_seen": "seen_total"}
    run = launch(python(ENDPOINT), progress=spec, ranks_per_node=1)
    for rank in range(4):
        own, found = own_times(run, rank), [it for it in progress(run, rank) if it["step"]]
        assert len(found) > 2
        lags = [it["t"] - own[it["step"]] for it in found]
        assert min(lags) > 0 and statistics.median(lags) < 0.5
        assert sum(it["tokens"] or 0 for it in found) <= 100 * STEPS


@pytest.mark.parametrize("put", ["os.symlink(os.environ['SECRET'], 'loss.csv')", "os.mkfifo('loss.csv')"])
def test_nothing_that_a_program_puts_in_the_place_of_a_file_is_followed(
    launch: Launch, tmp_path: Path, put: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("step,train_loss\n1,2.0\n2,3.0\n")
    secret.chmod(0o600)
    run = launch(
        python(f"{put} if rank == 0 else None"),
        environment={"SECRET": str(secret)},
        progress={"csv": "loss.csv"},
    )
    assert records(run, 0) == []
    unread = read_json(run / "run.json")["workload"]["progress_unread"]
    assert "no step was read" in unread and "loss.csv" in unread


def test_a_pattern_that_matches_nothing_is_said(launch: Launch) -> None:
    said: list[str] = []
    launch(["echo", "iter 1: loss 2.0"], progress="torchtitan", echo=said.append)
    assert [line for line in said if line.startswith("progress: no step was read")]


def test_a_mistake_is_found_before_anything_is_started(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(FileMistakes, match=r"exponentially long") as error:
        lab.launch(["true"], directory=tmp_path / "runs", progress={"line": "(?P<step>(a+)+)b", "evry": 3})
    assert "evry" in str(error.value), "all at once"
    assert not (tmp_path / "runs").exists()


def test_200000_lines_take_no_memory(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = 50_000
    program = (
        f"import sys\nfor i in range({lines}):\n"
        r"    sys.stdout.write(f'iter {i}: loss 1.5\n' if i % 10 == 0 else f'noise {i}\n')"
    )
    count = [0]

    def echo(line: str) -> None:
        count[0] += 1

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = launch([sys.executable, "-c", program], progress="nanogpt", echo=echo)
    assert count[0] == 4 * lines, "no line is lost"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000, "kB"
    for rank in range(4):
        assert [it["step"] for it in progress(run, rank)] == list(range(0, lines, 10))
        assert (run / "ranks" / f"rank-{rank}.log").read_bytes().count(b"\n") == lines


def test_a_line_without_an_end_takes_no_memory(launch: Launch) -> None:
    longest = [0]

    def echo(line: str) -> None:
        longest[0] = max(longest[0], len(line))

    program = "import os\nfor i in range(300): os.write(1, b'x' * 65536)\nos.write(1, b'\\niter 7: loss 1.0\\n')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = launch([sys.executable, "-c", program], progress="nanogpt", echo=echo)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 15_000, "kB; each rank printed 19,200"
    assert longest[0] < 1 << 18
    assert [it["step"] for it in progress(run, 1)] == [7]


def test_a_pattern_that_takes_too_long_is_given_up(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_output, "LONGEST_S", 0.0)
    said: list[str] = []
    script = "echo iter 1: loss 2; sleep 0.1; echo iter 2: loss 1"
    run = launch(["sh", "-c", script], progress="nanogpt", echo=said.append)
    assert sum("no further lines are read" in line for line in said) == 1
    assert all(len(records(run, rank)) <= 2 for rank in range(4))


def test_the_command_line_takes_it_too(
    lab: Lab, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "train.py"
    program.write_text(BEGIN + LINES)
    program.chmod(0o644)
    words = ("--progress", r"iter (?P<step>\d+): loss (?P<train_loss>[\d.]+)", "--progress", "tokens=8")
    runs = tmp_path / "runs"
    launch = ("launch", "-l", lab.name, "--allow-uncertified")
    check(command(*launch, "--runs", str(runs), *words, "--", sys.executable, str(program)))
    (run,) = (it.parent for it in runs.glob("*/run.json"))
    assert [it["tokens"] for it in progress(run, 1)] == [None] + [8] * (STEPS - 1)
    assert os.stat(run / "ranks" / "rank-1.jsonl").st_uid == os.geteuid(), "no program can rewrite it"  # noqa: PTH116
    refused = command(*launch, "--progress", "nanogtp", "--", "true")
    assert refused.returncode != 0 and "did you mean nanogpt" in refused.stderr
