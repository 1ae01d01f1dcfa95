"""``testbed report A B``: what it writes and where, what it never touches, and its exit status."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from builders import run_factory
from builders.cli_fixtures import Call, Cli, cli
from builders.tables import table

__all__ = ["cli"]  # a fixture

STEPS = 40


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Path:
    """A passed and a failed run of another user below the current folder, and an empty folder of one's own runs."""
    del cli  # it clears TESTBED_RUNS first
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "mine"))
    monkeypatch.chdir(tmp_path)
    run_factory.make_run(tmp_path / "theirs" / "before", steps=STEPS)
    run_factory.make_run(tmp_path / "theirs" / "after", steps=STEPS, status="failed")
    return tmp_path / "theirs"


BOTH = "report theirs/before theirs/after"


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_report_compares_two_runs_and_changes_neither(cli: Cli, runs: Path) -> None:
    before = content(runs)
    result = cli(BOTH, COLUMNS=80)
    assert result.status == 0, result.err  # one run failed: a comparison judges neither
    page = runs.parent / "mine" / "comparisons" / "before--after" / "index.html"
    lines = result.out.splitlines()
    assert lines[-1] == f"report: {page}"
    assert "No input differs" in lines[0], "inputs come first"
    assert any(line.startswith("B after: fail") for line in lines)
    for title in ("Key figures", "Where the rank-seconds went", "Certificate", "Bytes on the wire", "Noise is what"):
        assert title in result.out
    assert max(map(len, lines)) <= max(80, len(lines[-1]))
    assert content(runs) == before
    assert sorted(path.name for path in page.parent.iterdir()) == ["comparison.json", "index.html"]
    assert page.stat().st_mode & 0o777 == 0o644
    assert cli("ls runs").out == "", "a comparison is no run"


def test_report_json_of_two_runs_is_what_is_written(cli: Cli, runs: Path) -> None:
    result = cli(f"{BOTH} --json --out here")
    assert result.status == 0
    document = json.loads(result.out)
    assert document == json.loads(Path("here/comparison.json").read_text())
    assert set(document) == {"version", "a", "b", "inputs", "answers", "quantities", "changes", "notes"}
    assert set(document["inputs"]) == {"differ", "only_one", "same"}
    assert (document["a"]["verdict"], document["b"]["verdict"]) != ("pass", "pass")
    assert not Path("mine").exists()


def test_report_of_another_pair_with_the_same_names_has_its_own_place(cli: Cli, runs: Path, tmp_path: Path) -> None:
    run_factory.make_run(tmp_path / "third" / "after", steps=STEPS)
    first, other, again = (cli(line).out.splitlines()[-1] for line in (BOTH, BOTH.replace("theirs/a", "third/a"), BOTH))
    assert first == again and other.endswith("before--after-2/index.html")


@table(
    "call",
    {
        "a run directory is never the place": Call(f"{BOTH} --out theirs/after", 2, err="its own report would be lost"),
        "three runs": Call(f"{BOTH} theirs/before", 2, err="expected one run or two, got 3"),
        "an unknown run": Call("report theirs/before theirs/aftr", 2, err=("unknown run 'aftr'", "after")),
        "--out of one run": Call("report theirs/before --out here", 2, err="--out"),
        "a place below a file": Call(f"{BOTH} --out theirs/before/run.json/here", 3, err="theirs/before/run.json"),
    },
)
def test_report_refuses(cli: Cli, runs: Path, call: Call) -> None:
    before = content(runs)
    call.check(cli)
    assert content(runs) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: stands in for sudo")
@pytest.mark.parametrize("link", ["comparisons", "comparisons/before--after"])
def test_report_as_root_follows_no_link_below_the_callers_runs(
    cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    mine, other = tmp_path / "mine", tmp_path / "of root"
    for folder in (mine, other, (mine / link).parent):
        folder.mkdir(exist_ok=True)
        os.chown(folder, 4242 if folder != other else 0, -1)
    (mine / link).symlink_to(other)
    monkeypatch.setenv("SUDO_UID", "4242")
    monkeypatch.setenv("SUDO_GID", "4242")
    Call(BOTH, 3, err="comparisons").check(cli)
    assert list(other.iterdir()) == [] and other.stat().st_uid == 0
    (mine / link).unlink()
    assert cli(BOTH).status == 0
    assert {path.stat().st_uid for path in (mine / "comparisons").rglob("*")} == {4242}


@table(
    "folder, call",
    {
        "below the run": ("before/ranks", Call("report .. ../../after")),
        "in the run": ("before", Call("report . ../after")),
        "beside the run": (".", Call("report .", 2, err="unknown run 'theirs'")),
    },
)
def test_report_of_the_run_around_the_current_folder(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch, folder: str, call: Call
) -> None:
    monkeypatch.chdir(runs / folder)
    out = call.check(cli).out
    assert call.status or out.splitlines()[-1].endswith("/comparisons/before--after/index.html")
