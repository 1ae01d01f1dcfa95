"""``testbed report A B``: what it writes and where, what it never touches, and its exit status."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from builders import run_factory
from builders.cli_fixtures import Cli, cli

__all__ = ["cli"]  # a fixture

STEPS = 40


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Path:
    """A passed and a failed run of somebody, and an empty folder of runs of one's own."""
    del cli  # it clears TESTBED_RUNS first
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "mine"))
    run_factory.make_run(tmp_path / "theirs" / "before", steps=STEPS)
    run_factory.make_run(tmp_path / "theirs" / "after", steps=STEPS, status="failed")
    return tmp_path / "theirs"


def content(folder: Path) -> dict[str, str]:
    return {
        str(it.relative_to(folder)): hashlib.sha256(it.read_bytes()).hexdigest()
        for it in sorted(folder.rglob("*"))
        if it.is_file()
    }


def test_two_runs_are_compared_and_neither_is_touched(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    was = content(runs)
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("report", str(runs / "before"), str(runs / "after"))
    assert said.status == 0, said.err  # one run failed: a comparison judges neither
    page = runs.parent / "mine" / "comparisons" / "before--after" / "index.html"
    assert said.out.splitlines()[-1] == f"report: {page}"
    lines = said.out.splitlines()
    assert "No input differs" in lines[0], "inputs come first"
    assert any(line.startswith("B after: fail") for line in lines)
    for word in ("Key figures", "Where the rank-seconds went", "Certificate", "Bytes on the wire", "Noise is what"):
        assert word in said.out
    assert max(map(len, lines)) <= max(80, len(lines[-1]))
    assert content(runs) == was
    assert sorted(it.name for it in page.parent.iterdir()) == ["comparison.json", "index.html"]
    assert page.stat().st_mode & 0o777 == 0o644
    assert cli("ls", "runs").out == "", "a comparison is no run"


def test_json_is_what_is_written(cli: Cli, runs: Path) -> None:
    said = cli("report", str(runs / "before"), str(runs / "after"), "--json", "--out", str(runs.parent / "here"))
    assert said.status == 0
    told = json.loads(said.out)
    assert told == json.loads((runs.parent / "here" / "comparison.json").read_text())
    assert set(told) == {"version", "a", "b", "inputs", "answers", "quantities", "changes", "notes"}
    assert set(told["inputs"]) == {"differ", "only_one", "same"}
    assert (told["a"]["verdict"], told["b"]["verdict"]) != ("pass", "pass")
    assert not (runs.parent / "mine").exists()


def test_another_pair_of_the_same_names_has_its_own_place(cli: Cli, runs: Path, tmp_path: Path) -> None:
    run_factory.make_run(tmp_path / "third" / "after", steps=STEPS)
    first = cli("report", str(runs / "before"), str(runs / "after")).out.splitlines()[-1]
    other = cli("report", str(runs / "before"), str(tmp_path / "third" / "after")).out.splitlines()[-1]
    again = cli("report", str(runs / "before"), str(runs / "after")).out.splitlines()[-1]
    assert first == again and other.endswith("before--after-2/index.html")


def test_a_run_directory_is_never_the_place(cli: Cli, runs: Path) -> None:
    was = content(runs)
    said = cli("report", str(runs / "before"), str(runs / "after"), "--out", str(runs / "after"))
    assert said.status == 2 and "its own report would be lost" in said.err
    assert content(runs) == was


def test_mistakes(cli: Cli, runs: Path, tmp_path: Path) -> None:
    before, after = str(runs / "before"), str(runs / "after")
    said = cli("report", before, after, before)
    assert said.status == 2 and "expected one run or two, got 3" in said.err
    said = cli("report", before, str(runs / "aftr"))
    assert said.status == 2 and "unknown run 'aftr'" in said.err and "after" in said.err
    said = cli("report", before, "--out", str(tmp_path / "here"))
    assert said.status == 2 and "--out" in said.err
    (tmp_path / "file").write_text("")
    said = cli("report", before, after, "--out", str(tmp_path / "file" / "here"))
    assert said.status == 3 and str(tmp_path / "file") in said.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: stands in for sudo")
@pytest.mark.parametrize("link", ["comparisons", "comparisons/before--after"])
def test_root_follows_no_link_below_the_callers_runs(
    cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "of root"
    for folder in (mine, other, (mine / link).parent):
        folder.mkdir(exist_ok=True)
        os.chown(folder, 4242 if folder != other else 0, -1)
    (mine / link).symlink_to(other)
    monkeypatch.setenv("SUDO_UID", "4242")
    monkeypatch.setenv("SUDO_GID", "4242")
    said = cli("report", str(runs / "before"), str(runs / "after"))
    assert said.status == 3 and "comparisons" in said.err, said.err
    assert list(other.iterdir()) == [] and other.stat().st_uid == 0
    (mine / link).unlink()
    assert cli("report", str(runs / "before"), str(runs / "after")).status == 0
    assert {it.stat().st_uid for it in (mine / "comparisons").rglob("*")} == {4242}


def test_a_run_in_whose_folder_one_stands_has_its_name(cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs / "before" / "ranks")
    said = cli("report", "..", "../../after")
    assert said.status == 0 and said.out.splitlines()[-1].endswith("/comparisons/before--after/index.html")
    monkeypatch.chdir(runs / "before")
    said = cli("report", ".", "../after")
    assert said.status == 0 and said.out.splitlines()[-1].endswith("/comparisons/before--after/index.html")
    monkeypatch.chdir(runs)
    said = cli("report", ".")
    assert said.status == 2 and "unknown run 'theirs'" in said.err
