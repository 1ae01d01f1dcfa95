"""Run directories on disk: whole files at once, lines that survive a crash, and plain words when there is no room."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders import run_factory
from builders.processes import call_by_sudo, needs_root
from builders.tables import table

from testbed.errors import StorageError, UnknownName
from testbed.host.files import checkpoints, store
from testbed.host.files.store import RunDirectory, check_writable, list_runs, read_summary, save_report, write_report
from testbed.lab import api


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "r")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def owners(*paths):
    """Return the uids of files, not of what links lead to."""
    return {path.lstat().st_uid for path in paths}


def test_a_taken_name_gets_a_number(tmp_path):
    runs = [RunDirectory.create(tmp_path / "runs", "metro") for _ in range(3)]
    assert [run.name for run in runs] == ["metro", "metro-2", "metro-3"]
    assert all(run.ranks.is_dir() for run in runs)


def test_what_is_written_is_read_back(run):
    run.write_json("run.json", {"name": "r", "status": "running"})
    run.write_json("run.json", {"name": "r", "status": "finished"})
    run.append("events.jsonl", {"t": 1.0, "event": "note", "text": "ä"})
    run.append("events.jsonl", {"t": 2.0, "event": "note"})
    data = run.read()
    assert data.info.status == "finished"
    assert [event.t for event in data.events] == [1.0, 2.0]
    assert data.missing == ("topology.json", "certificate.json", "metrics.jsonl", "ranks/rank-*.jsonl")
    assert names(run.path) == ["events.jsonl", "process.json", "ranks", "run.json"]


def test_a_torn_last_line_is_left_out_and_a_broken_one_counted(run):
    (run.path / "events.jsonl").write_bytes(b'{"t": 1, "event": "a"}\n\xff{{\n{"t": 2, "event": "b"}\n{"t": 3, "eve')
    data = run.read()
    assert [event.event for event in data.events] == ["a", "b"]
    assert data.malformed == {"events.jsonl": 1}


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(run, monkeypatch):
    run.write_json("run.json", {"name": "old"})
    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(StorageError, match=r"run\.json: No space left on device"):
        run.write_json("run.json", {"name": "new"})
    monkeypatch.undo()
    assert run.read_json("run.json") == {"name": "old"}
    assert names(run.path) == ["process.json", "ranks", "run.json"]


@table("write", {"nothing is written": full, "a part of the line is written": lambda handle, line: len(line) - 1})
def test_a_full_disk_while_appending(run, monkeypatch, write):
    monkeypatch.setattr(store.os, "write", write)
    with pytest.raises(StorageError, match="No space left on device"):
        run.append("metrics.jsonl", {"t": 1})


def test_writers_side_by_side_do_not_mix_their_lines(run):

    def write(writer: int) -> None:
        for index in range(200):
            run.append("events.jsonl", {"t": index, "event": "note", "text": str(writer) * 300})

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, range(4)))
    data = run.read()
    assert (len(data.events), data.malformed) == (800, {})


def test_check_writable_before_a_lab_is_built(tmp_path):
    check_writable(tmp_path / "new" / "runs", 1000)
    assert list((tmp_path / "new" / "runs").iterdir()) == []
    with pytest.raises(StorageError, match="MB free, a run needs"):
        check_writable(tmp_path, 10**18)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        check_writable(tmp_path / "file" / "runs")


def test_runs_are_listed_latest_first(tmp_path):
    assert list_runs(tmp_path / "nowhere") == []
    for index, name in enumerate(("a", "b", "c")):
        run = RunDirectory.create(tmp_path, name)
        run.write_json("run.json", {})
        os.utime(run.path / "run.json", (index, index))
    (tmp_path / "no-run").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == ["c", "b", "a"]


def test_a_summary_reads_small_files_only_and_whatever_is_in_them(tmp_path):
    run = RunDirectory(run_factory.make_run(tmp_path / "metro"))
    assert read_summary(run) == ((1_795_000_000.0, "metro-40km"), "no report")
    write_report(run)
    assert read_summary(run)[1] == "pass"
    (run.path / "run.json").write_text('{"started_unix_s": "soon"}')
    (run.path / "topology.json").write_text("[]")
    assert read_summary(run)[0] == (0.0, "?")


def test_opening_what_is_no_run(tmp_path):
    run_factory.make_run(tmp_path / "metro")
    assert RunDirectory.open(tmp_path / "metro").name == "metro"
    with pytest.raises(UnknownName, match="did you mean metro"):
        RunDirectory.open(tmp_path / "metr")


def test_the_report_is_rebuilt_from_the_directory_alone(tmp_path):
    path = run_factory.make_run(tmp_path / "metro")
    first = write_report(RunDirectory.open(path))
    files = ("report.json", "index.html", "report.md")

    def written(folder):
        return [(folder / name).read_bytes() for name in files]

    before = written(path)
    assert all(before)
    for name in files:
        (path / name).unlink()
    assert write_report(RunDirectory.open(path)) == first
    assert written(path) == before
    save_report(first, tmp_path / "out" / "deep")
    assert written(tmp_path / "out" / "deep") == before


@needs_root
def test_under_sudo_files_belong_to_the_caller(tmp_path, monkeypatch):
    call_by_sudo(monkeypatch)
    run = RunDirectory.create(tmp_path / "runs", "r")
    run.write_json("run.json", {})
    run.append("events.jsonl", {"t": 1, "event": "note"})
    (run.ranks / "rank-0.log").write_text("by a rank, as root")
    write_report(run)
    made = [tmp_path / "runs", run.path, *run.path.rglob("*")]
    assert len(made) > 7
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(4242, 4343)}
    assert owners(tmp_path) == {os.geteuid()}


def test_runs_that_cannot_be_listed_are_not_none(tmp_path):
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(StorageError, match="Not a directory"):
            list_runs(root)
    assert list_runs(tmp_path / "nowhere") == []
    (tmp_path / "stray-file").touch()
    (tmp_path / "loop").symlink_to("loop")
    RunDirectory.create(tmp_path, "r").write_json("run.json", {})
    assert [run.name for run in list_runs(tmp_path)] == ["r"]


WHOLE = run_factory.topology()


def test_what_a_later_version_adds_to_a_topology_is_no_harm(run):
    run.write_json("topology.json", {**WHOLE, "novel": 1, "sites": [{**site, "novel": 1} for site in WHOLE["sites"]]})
    assert [link.name for link in run.read().topology.links] == ["north", "south"]


@table(
    "change",
    {
        "a value of another type": {"name": None, "sites": 3},
        "a missing key": {"links": [{"name": "north"}]},
        "a word for a number": {"sites": [{"name": "east", "nodes": "two", "power": "east"}]},
        "links that lead nowhere": {"sites": [{"name": "elsewhere", "nodes": 1, "power": "p"}]},
    },
)
def test_a_topology_that_cannot_be_is_left_out_and_said(run, change):
    run.write_json("topology.json", WHOLE | change)
    data = run.read()
    assert (data.topology, data.malformed) == (None, {"topology.json": 1})
    assert write_report(run).malformed == {"topology.json": 1}


@needs_root
def test_a_caller_whom_there_cannot_be_is_none(tmp_path, monkeypatch):
    """chown(2) would take it for another number, or Python refuse it, after all that the run has measured."""
    call_by_sudo(monkeypatch, uid=2**32, gid=1)
    run = RunDirectory.create(tmp_path / "runs", "r")
    assert owners(run.path) == {os.geteuid()}


def test_no_link_that_a_rank_has_made_is_followed(run, tmp_path):
    """Ranks in containers own the folder of their records; what root writes there must stay there."""
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    for name in ("run.json", "metrics.jsonl", "ranks/rank-0.log", "ranks/rank-0.jsonl", "ranks/attempt"):
        (run.path / name).symlink_to(victim)
    with pytest.raises(StorageError, match="symbolic links"):
        run.append("metrics.jsonl", {"t": 1})
    with pytest.raises(StorageError, match="symbolic links"):
        run.open_log(0)
    run.write_json("run.json", {"name": "r"})
    checkpoints.set_fence(run.ranks, 2)
    assert (run.ranks / "attempt").read_text() == "2\n"
    assert not (run.path / "run.json").is_symlink()
    assert [log.jobs for log in run.read().ranks] == [()]
    assert victim.read_text() == "mine\n"


def test_no_folder_on_the_way_may_be_a_link(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run.ranks.rename(tmp_path / "away")
    run.ranks.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        run.open_log(0)
    with pytest.raises(OSError):
        checkpoints.set_fence(run.ranks, 2)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_pipe_in_place_of_a_record_holds_nobody(tmp_path):
    run = RunDirectory(run_factory.make_run(tmp_path / "r"))
    for name in ("metrics.jsonl", "ranks/rank-0.jsonl"):
        (run.path / name).unlink()
        os.mkfifo(run.path / name)
    data = run.read()
    assert data.fibers == ()
    assert "metrics.jsonl" in data.missing
    with pytest.raises(StorageError):
        run.append("metrics.jsonl", {"t": 1})


@needs_root
def test_what_is_handed_over_leads_nowhere_else(tmp_path, monkeypatch):
    call_by_sudo(monkeypatch)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("")
    run = RunDirectory.create(tmp_path, "r")
    (run.ranks / "way").symlink_to(tmp_path / "others")
    (run.ranks / "link").symlink_to(tmp_path / "others" / "file")
    run.give_to_caller()
    assert owners(run.ranks / "link") == {4242}
    assert owners(tmp_path / "others", tmp_path / "others" / "file") == {os.geteuid()}


@table("asked", {"by name": "nope", "by path": "runs/nope"})
def test_a_run_that_is_not_there_is_answered_with_those_that_are(tmp_path, monkeypatch, asked):
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    run_factory.make_run(tmp_path / "runs" / "metro-1")
    with pytest.raises(UnknownName, match=r"unknown run 'nope' \(available: metro-1"):
        api.report(Path(asked))


def test_a_run_is_opened_and_written_through_a_link_that_its_owner_made(tmp_path):
    run_factory.make_run(tmp_path / "metro", steps=5)
    (tmp_path / "latest").symlink_to("metro")
    write_report(RunDirectory.open(tmp_path / "latest"))
    assert (tmp_path / "metro" / "report.json").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "shown").symlink_to("out")
    store.save_text(tmp_path / "shown" / "verdict.xml", "x")
    assert (tmp_path / "out" / "verdict.xml").read_text() == "x"


def test_a_run_goes_on_in_its_folder_whatever_takes_its_name(run, tmp_path):
    """The folder above belongs to the user, whose programs can rename what is in it."""
    run.write_json("run.json", {"a": 1})
    run.path.rename(moved := tmp_path / "moved")
    (precious := tmp_path / "precious").mkdir()
    (precious / "run.json").write_text("precious")
    run.path.symlink_to(precious)
    run.write_json("run.json", {"a": 2})
    run.append("events.jsonl", {"t": 1})
    assert (precious / "run.json").read_text() == "precious"
    assert names(precious) == ["run.json"]
    assert json.loads((moved / "run.json").read_text()) == run.read_json("run.json") == {"a": 2}


@needs_root
def test_a_second_name_of_a_file_of_the_hosts_is_not_given_away(run, tmp_path, monkeypatch):
    run.admit((60700, 60700), 1)
    theirs = run.ranks / "checkpoints" / "rank-0"
    assert owners(theirs, run.ranks / "rank-0.jsonl") == {60700} and owners(run.ranks) == {0}
    (host := tmp_path / "shadow").write_text("secret")
    os.link(host, theirs / "model.bin")
    (theirs / "link").symlink_to(host)
    (theirs / "own").write_text("x")
    call_by_sudo(monkeypatch)
    run.give_to_caller()
    assert owners(host) == {0}
    assert owners(theirs / "own", theirs / "link", run.path, run.ranks) == {4242}


@needs_root
def test_under_sudo_a_run_is_roots_until_it_has_ended(tmp_path, monkeypatch):
    call_by_sudo(monkeypatch)
    run = RunDirectory.create(tmp_path / "runs", "r")
    run.write_json("run.json", {})
    run.append("events.jsonl", {"t": 1})
    run.open_log(0).close()
    assert owners(run.path, *run.path.rglob("*")) == {0}
    run.give_to_caller()
    assert owners(run.path, *run.path.rglob("*")) == {4242}


@table(
    "status, steps, given",
    {
        "it goes on": ("running", 5, 0),
        "it finished": ("finished", 5, 1),
        "it failed after all steps": ("failed", run_factory.STEPS, 1),
    },
)
def test_a_run_is_given_away_only_when_it_has_ended(tmp_path, monkeypatch, status, steps, given):
    """While it goes on, ranks write into it: a report beside it changes no owner."""
    calls = []
    monkeypatch.setattr(RunDirectory, "give_to_caller", lambda run: calls.append(run.path))
    run = RunDirectory.open(run_factory.make_run(tmp_path / "r", steps=steps))
    run.write_json("run.json", {**run.read_json("run.json"), "status": status})
    store.write_report(run)
    assert len(calls) == given
