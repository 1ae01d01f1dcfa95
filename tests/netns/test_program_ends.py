"""How launched programs end: in the terminal, in run.json and in the report; their streams; Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builders.commands import Child, Command, argv_of, piped
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import Lab, processes_in, programs_in
from oracles import oracle

import testbed
from testbed.errors import CannotStart

pytestmark = LABS

HEEDLESS = r"""
import os, signal, subprocess, sys, time
def heard(number, frame):
    os.write(2, f"{os.environ['WHO']} {signal.Signals(number).name}\n".encode())  # one piece: two processes share it
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, heard)
if os.environ["WHO"] == "parent":
    subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "WHO": "child"})
os.write(1, f"ready {os.environ['WHO']}\n".encode())
while True:
    time.sleep(1)
"""


@contextmanager
def launched(lab: Lab, folder: Path, *words: str) -> Iterator[Child]:
    """Run `testbed launch` in ``folder``, with Ctrl-C as in a terminal."""
    argv = argv_of(f"launch -l {lab.name} --allow-uncertified --runs {folder}/runs --", *words)
    child = piped(argv, cwd=folder, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def record(folder: Path) -> dict[str, object]:
    (run,) = (folder / "runs").glob("*/run.json")
    return read_json(run)  # type: ignore[no-any-return]


def test_a_failure_is_told_in_the_terminal_in_run_json_and_in_the_report(
    lab: Lab, folder: Path, command: Command
) -> None:
    script = "echo out; echo err >&2; sleep 0.5; [ $RANK != 2 ] || exit 3; sleep 60"
    with launched(lab, folder, "sh", "-c", script) as child:
        out, err = child.communicate(timeout=60)
    assert child.returncode == 3
    assert sorted(out.splitlines()) == [f"[rank {rank}] out" for rank in range(4)]
    assert sorted(it for it in err.splitlines() if it.startswith("[rank")) == [f"[rank {it}] err" for it in range(4)]
    said = r"rank 2 on west-0 ended with status 3 after [\d.]+ m?s; the others were ended 5(\.\d)? s later"
    assert len(re.findall(f"^testbed: {said}$", err, re.M)) == 1, err
    found = record(folder)
    assert found["status"] == "failed" and re.fullmatch(said, str(found["reason"]))
    (run,) = (folder / "runs").iterdir()
    assert (run / "ranks" / "rank-2.log").read_text() == "out\nerr\n"
    told = re.findall(rf"^(run directory|output and measurements): {re.escape(str(run))}$", err, re.M)
    assert told == ["run directory", "output and measurements"], "at the beginning and at the end"
    report = command(f"report {run}").stdout
    assert re.match(rf"fail: The run failed: {said}\.", report), report
    assert "Rank 2 on west-0 ended with status 3" in (run / "report.md").read_text()


def test_ctrl_c_is_sigint_then_sigterm_then_sigkill_to_whole_process_groups(lab: Lab, folder: Path) -> None:
    (folder / "heedless.py").write_text(HEEDLESS)
    python = os.path.realpath(sys.executable)
    with launched(lab, folder, "env", "WHO=parent", python, "-S", "heedless.py") as child:
        ready = [child.stdout.readline() for _ in range(8)]
        both = [(rank, who) for rank in range(4) for who in ("parent", "child")]
        assert sorted(ready) == sorted(f"[rank {rank}] ready {who}\n" for rank, who in both)
        for number in ("SIGINT", "SIGTERM"):
            child.send_signal(signal.SIGINT)
            heard: set[str] = set()
            for line in child.stderr:
                heard |= {line} if line.startswith("[rank") else set()
                if len(heard) == 8:
                    break
            assert heard == {f"[rank {rank}] {who} {number}\n" for rank, who in both}
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert "SIGKILL to all ranks" in err and child.returncode == 130
    assert record(folder)["status"] == "interrupted"
    for node in lab.topology.node_names:
        assert processes_in(lab, node) == []


def test_a_program_that_heeds_ctrl_c_saves_what_it_has(lab: Lab, folder: Path) -> None:
    script = "trap 'sleep 0.3; echo saved > saved-$RANK; exit 0' INT; echo ready; while :; do sleep 0.05; done"
    with launched(lab, folder, "sh", "-c", script) as child:
        assert len([child.stdout.readline() for _ in range(4)]) == 4
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
    assert child.returncode == 130
    assert sorted(it.name for it in folder.glob("saved-*")) == [f"saved-{rank}" for rank in range(4)]


def test_a_command_that_cannot_start_is_told_once(lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text("print(1)")
    bad = folder / "bad"
    bad.write_text("#!/nowhere/python\n")
    bad.chmod(0o755)
    with launched(lab, folder, "pyhton", "train.py") as child:
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err.count("command not found: 'pyhton'")) == (127, 1), err
    assert "[rank" not in err and not (folder / "runs").exists(), "nothing was started"
    for words, status, says in (
        (["./train.py"], 126, "has no permission for it"),
        (["train.py"], 127, "a file of that name is in the current folder: python train.py"),
        (["./bad"], 127, "'/nowhere/python', the interpreter in the first line of ./bad"),
        (["."], 127, "command not found"),
        (["./"], 126, "is not a file"),
        (["python3", "tain.py"], 2, "no file 'tain.py'"),
    ):
        with pytest.raises(CannotStart, match=re.escape(says)) as raised:
            lab.launch(words, directory=folder / "runs")
        assert raised.value.status == status, words
    mine = folder / "mine"
    mine.write_text("#!/bin/sh\nexit 0\n")
    mine.chmod(0o755)
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    assert lab.launch(["mine"], environment=path, directory=folder / "runs").exit_status() == 0, "by its own PATH"


def test_what_ignores_sigterm_ends_with_the_job_though_its_rank_has_ended_before(lab: Lab, folder: Path) -> None:
    lab.allow_uncertified = True
    script = '(trap "" TERM; echo ready; exec sleep 4242) & wait'
    ready: list[str] = []
    job = lab.launch(["sh", "-c", script], directory=folder / "runs", echo=ready.append)
    oracle.until(lambda: len(ready) == 4, 30.0, "every rank has its child")
    job.stop()
    assert programs_in(lab, "4242") == []


def test_a_program_outlives_the_thread_that_launched_it(lab: Lab, folder: Path) -> None:
    lab.allow_uncertified = True
    jobs: list[testbed.ProgramJob] = []
    thread = threading.Thread(
        target=lambda: jobs.append(lab.launch(["sleep", "2"], directory=folder / "runs")), daemon=True
    )
    thread.start()
    thread.join(60.0)
    assert jobs[0].exit_status(60.0) == 0, jobs[0].failure()
