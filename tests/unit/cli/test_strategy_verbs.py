"""Strategies on the command line: mistakes before a lab is looked for, warnings that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.app import app

SMALL = "topology: metro-40km\nworkload:\n  strategy: ddp\n  buckets: 96\n  compute: 80ms\n  model: 1M\n"


def test_train_refuses_all_mistakes_at_once_without_a_lab() -> None:
    found = CliRunner().invoke(app, ["train", "--strategy", "ddp:every=5,bits=7", "--compute", "soon", "--model", "x"])
    text = " ".join(found.output.split())
    assert found.exit_code == 2
    for said in (
        "strategy ddp has no every",
        "bits of strategy ddp: expected one of 32, 16",
        "--compute: ",
        "--model: ",
    ):
        assert said in text, text


@pytest.mark.parametrize("verb", ["run", "train"])
def test_help_shows_how_to_write_them(verb: str) -> None:
    text = " ".join(CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output.split())
    assert "--strategy" in text and "diloco:every=50" in text
    assert "--compute" in text and "80ms" in text and "1.3B" in text


def test_lint_shows_a_warning_and_succeeds(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(SMALL)
    found = CliRunner().invoke(app, ["lint", str(file)])
    assert found.exit_code == 0
    assert f"{file}:3: warning: strategy: on north, the smallest message of strategy ddp, 10 bytes" in found.output
    (listed,) = json.loads(CliRunner().invoke(app, ["lint", "--json", str(file)]).stdout)
    assert listed["warning"] is True and listed["line"] == 3
    file.write_text(SMALL.replace("96", "0"))
    found = CliRunner().invoke(app, ["lint", str(file)])
    assert found.exit_code == 2 and "warning: " not in found.output
