"""The verb validate: what it asks for, what it shows, its exit status; the procedure itself is faked."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from builders.cli_fixtures import Cli, cli
from builders.validation_factory import validation

from testbed.cli import console
from testbed.cli.ci import junit_file
from testbed.core.validation.baseline import compare
from testbed.core.validation.result import Validation
from testbed.errors import FidelityError, Interrupted, UserError
from testbed.host import collective_libraries
from testbed.lab import api
from testbed.lab.validation import validation as procedure

__all__ = ["cli"]


class Procedure:
    """In place of ``testbed.lab.validation.validation.validate``."""

    def __init__(self, found: Validation) -> None:
        self.found = found
        self.asked: dict[str, Any] = {}
        self.error: Exception | None = None
        self.before: Validation | None = None

    def __call__(self, names: list[str], **options: Any) -> procedure.ValidationOutcome:
        self.asked = {"names": names, **options}
        if self.error is not None:
            raise self.error
        comparison = compare(self.before, self.found) if self.before else None
        code = {"holds": 0, "does not hold": 1}.get(self.found.verdict, 3)
        return procedure.ValidationOutcome(self.found, comparison, Path("/runs/validate-x"), code)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Procedure:
    made = Procedure(validation())
    monkeypatch.setattr(procedure, "validate", made)
    return made


def test_what_is_typed_is_what_is_asked_for(cli: Cli, faked: Procedure, tmp_path: Path) -> None:
    words = ["torch-gloo", "./mine.py", "--topology", "regional-ring", "--suite", "full", "--only", "faults"]
    words += ["--only", "speed", "--set", "scale=500", "--driver", "netns", "--emulator", "fiberd", "--keep"]
    words += ["--baseline", "old.json", "--allow-uncertified", "--runs", str(tmp_path), "--name", "mine"]
    assert cli("validate", *words).status == 1
    asked = faked.asked
    assert asked.pop("progress") is not None
    assert asked == {
        "names": ["torch-gloo", "./mine.py"], "topology": "regional-ring", "set": {"scale": "500"}, "suite": "full",
        "only": ("faults", "speed"), "baseline": Path("old.json"), "lab": None, "name": "mine", "runs": tmp_path,
        "driver": "netns", "emulator": "fiberd", "strict": False, "allow_uncertified": True, "keep": True,
        "wait": False,
    }  # fmt: skip


def test_without_options_it_is_quick_and_on_metro_40km(cli: Cli, faked: Procedure) -> None:
    cli("validate", "ring")
    wanted = {"topology": None, "suite": "quick", "only": (), "baseline": None, "keep": False}
    assert {key: faked.asked[key] for key in wanted} == wanted


def test_the_matrix_the_reasons_and_the_page_are_shown(cli: Cli, faked: Procedure) -> None:
    said = cli("validate", "ring")
    assert said.out.startswith("does not hold: ")
    for library in faked.found.libraries:
        assert library.name in said.out
        for why in library.why[:6]:
            assert f"{library.name}: {why}" in said.out
    for fault in {cell.fault for it in faked.found.libraries for cell in it.cells}:
        assert fault in said.out
    assert "WRONG RESULT" in said.out
    assert said.out.rstrip().endswith("result: /runs/validate-x/index.html")


def test_quiet_says_the_verdict_and_where_the_result_is(cli: Cli, faked: Procedure) -> None:
    verdict, _ = cli("validate", "ring", "-q").out.splitlines()
    assert verdict.endswith("; jax was skipped.")


@pytest.mark.parametrize(("verdict", "status"), [("holds", 0), ("does not hold", 1), ("unknown", 3)])
def test_the_status_is_the_procedures(cli: Cli, faked: Procedure, verdict: Any, status: int) -> None:
    faked.found = dataclasses.replace(faked.found, verdict=verdict)
    assert cli("validate", "ring").status == status


@pytest.mark.parametrize(
    ("verdict", "worse", "status"),
    [("holds", False, 0), ("holds", True, 1), ("does not hold", False, 1), ("unknown", False, 3)],
)
def test_the_report_of_a_validation_has_its_status(
    cli: Cli, faked: Procedure, monkeypatch: pytest.MonkeyPatch, verdict: Any, worse: bool, status: int
) -> None:
    validated = dataclasses.replace(faked.found, verdict=verdict)
    first, *others = validated.libraries
    good, bad = (
        dataclasses.replace(validated, libraries=(dataclasses.replace(first, verdict=it), *others))
        for it in ("holds", "does not hold")
    )
    found = validated, compare(good, bad) if worse else None, Path("/runs/validate-x/index.html")
    monkeypatch.setattr(api, "validation_report", lambda run: found)
    assert cli("report", "validate-x").status == status


def test_json_is_the_document(cli: Cli, faked: Procedure) -> None:
    found = json.loads(cli("validate", "ring", "--json").out)
    assert found["schema_version"] == 1
    assert [it["name"] for it in found["libraries"]] == [it.name for it in faked.found.libraries]


def test_what_became_worse_since_the_baseline_is_named(cli: Cli, faked: Procedure) -> None:
    first, *others = faked.found.libraries
    good = dataclasses.replace(first, verdict="holds")
    bad = dataclasses.replace(first, verdict="does not hold", why=("it is worse",))
    faked.before = dataclasses.replace(faked.found, libraries=(good, *others))
    faked.found = dataclasses.replace(faked.found, libraries=(bad, *others))
    said = cli("validate", "ring", "--baseline", "old.json")
    assert f"worse: {first.name}: verdict: holds → does not hold" in said.out


def test_junit_is_written_of_a_result_and_of_an_error(cli: Cli, faked: Procedure, tmp_path: Path) -> None:
    file = tmp_path / "out.xml"
    cli("validate", "ring", "--junit", str(file))
    assert "<testsuite" in file.read_text() and "<failure" in file.read_text()
    faked.error = FidelityError("the lab is outside tolerance")
    assert cli("validate", "ring", "--junit", str(file)).status == 1
    assert "the lab is outside tolerance" in file.read_text()
    faked.error = Interrupted("interrupted; the results so far are in /runs/x")
    assert cli("validate", "ring", "--junit", str(file)).status == 130


def test_a_place_that_junit_cannot_be_written_to_is_told_before_anything_is_built(
    cli: Cli, faked: Procedure, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "out.xml"):
        said = cli("validate", "ring", "--junit", str(place))
        assert said.status in (2, 3) and faked.asked == {}
        assert str(tmp_path) in said.err
        said = cli("run", "metro-40km", "--junit", str(place))
        assert said.status in (2, 3) and str(tmp_path) in said.err


@pytest.mark.parametrize("words", [["ring", "--suite", "huge"], ["ring", "--only", "speeed"], []])
def test_a_word_that_means_nothing_is_refused(cli: Cli, faked: Procedure, words: list[str]) -> None:
    assert cli("validate", *words).status == 2
    assert faked.asked == {}


def test_libraries_are_listed_with_what_they_lack(cli: Cli) -> None:
    listed = {it["name"]: it for it in json.loads(cli("ls", "libraries", "--json").out)}
    assert listed["ring"] == {"name": "ring", "title": "reference ring over TCP", "missing": ""}
    said = cli("ls", "libraries").out
    assert all(name in said for name in listed)


def test_a_command_that_mends_is_whole_on_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "pip install 'scale-across-testbed[validate-openmpi]'"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(
        collective_libraries, "why_not", lambda library: f"mpi4py is not installed; install it with: {command}"
    )
    console.reset()
    said = cli("ls", "libraries").out.splitlines()
    assert any(line.strip() == command for line in said)
    assert max(map(len, said)) <= 80


# ---- the procedure, up to where it would touch the host


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        ([], {}, "name at least one library"),
        (["ring", "ring"], {}, "named twice"),
        (["rinng"], {}, "did you mean ring"),
        (["./no-such-file.py"], {}, "no such file"),
        (["ring"], {"topology": "metro-41km"}, "metro-40km"),
        (["ring"], {"baseline": Path("/nowhere/old.json")}, "--baseline"),
        (["ring"], {"baseline": Path("/dev/zero")}, "--baseline: /dev/zero: not a regular file"),
        (["ring"], {"lab": "mine", "set": {"scale": 5}}, "omit --set, or --lab"),
        (
            ["ring"],
            {"lab": "mine", "topology": "ring-64", "name": "x", "keep": True},
            "--topology and --name and --keep",
        ),
        (["ring"], {"lab": "nowhere"}, "unknown lab"),
    ],
)
def test_every_mistake_is_found_before_anything_is_built(
    names: list[str], options: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procedure.deploy, "up", lambda *a, **b: pytest.fail("a lab was brought up"))
    with pytest.raises(procedure.TestbedError, match=says) as raised:
        procedure.validate(names, runs=tmp_path, **options)
    assert raised.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_baseline_that_would_hold_us_for_ever_or_fill_the_memory_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    for name, says in (("fifo", "not a regular file"), ("sparse", "larger than the limit for a validation")):
        with pytest.raises(UserError, match=says):
            procedure.validate(["ring"], baseline=tmp_path / name, runs=tmp_path / "runs")


def test_a_rank_program_whose_name_cannot_be_a_folders_is_refused(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / os.fsdecode(b"we ird\xff\n<b>.x")
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    said = cli("validate", str(own), "--junit", str(tmp_path / "out.xml"))
    assert said.status == 2 and "rename it" in said.err
    assert "rename it" in (tmp_path / "out.xml").read_text()


def test_what_went_wrong_by_a_bug_is_in_the_junit_file_too(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), junit_file(tmp_path / "out.xml", "ring", str):
        raise ZeroDivisionError("by zero")
    assert "a bug in the testbed: ZeroDivisionError: by zero" in (tmp_path / "out.xml").read_text()
