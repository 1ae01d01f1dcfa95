"""The commands that `up`, `cut` and others print, typed as they are printed: with one lab, and with two."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import Done, captured
from builders.conditions import LABS
from oracles import oracle

pytestmark = LABS

PLACEHOLDER = "your_training.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the commands are typed: it has the program that the hint of `launch` stands for."""
    (tmp_path / PLACEHOLDER).write_text("print('trained')\n")
    (tmp_path / PLACEHOLDER).chmod(0o644)
    return tmp_path


def typed(line: str, folder: Path) -> Done:
    done = captured(["sh", "-c", line], cwd=folder, timeout=100)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done


def up(name: str, folder: Path) -> list[str]:
    """Bring a lab up and return the commands that are said to be next."""
    line = shlex.join([sys.executable, "-m", "testbed", "up", "metro-40km", "--no-agents", "--name", name])
    said = typed(f"{line} --allow-uncertified", folder).stderr
    before, _, after = said.partition(f"Lab {name} is up. Next:\n")
    (biased,) = [it for it in before.splitlines() if "known bias" in it]
    shown = typed(biased.partition("(")[2].rpartition(")")[0], folder)
    assert "200 us" in shown.stdout, "the line on the model's validity names the command that shows all of it"
    return [each.strip() for each in after.splitlines()]


@pytest.fixture
def other(state_folder: Path) -> Iterator[str]:
    name = oracle.unused_name()
    yield name
    oracle.until(lambda: not oracle.left_behind(name, state_folder), 10.0, f"nothing is left of {name}")


def test_the_next_steps_of_up_can_be_typed(lab_name: str, other: str, folder: Path) -> None:
    alone = up(lab_name, folder)
    assert [line for line in alone if " -l " in line] == [], "the only lab need not be named"
    try:
        lines = up(other, folder)
        assert len(lines) == len(alone) == 5
        for line in lines[:-1]:
            assert f" -l {other} " in line, "two labs are up"
        for line in lines:
            if " status " in line:
                watched(line, folder)
                continue
            done = typed(line.replace(" launch ", " launch --allow-uncertified "), folder)
            if " launch " in line:
                assert done.stdout.count("trained") == 4
        assert lines[-1].endswith(f" down {other}")
        ended_as_told(lab_name, folder)
    finally:
        typed(alone[-1], folder)
        typed(shlex.join([sys.executable, "-m", "testbed", "down", other]), folder)


def watched(line: str, folder: Path) -> None:
    """Type a command that goes on, and end it at its first line."""
    shell = subprocess.Popen(["sh", "-c", f"exec {line}"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert shell.stdout.readline()
    finally:
        shell.terminate()
        shell.wait(20)
        shell.stdout.close()


def ended_as_told(name: str, folder: Path) -> None:
    """A fault without an end says how to end it."""
    cut = typed(shlex.join([sys.executable, "-m", "testbed", "cut", "north"]), folder)
    hint = cut.stderr.partition("end it with: ")[2].strip()
    assert f"{name}: " in typed(hint, folder).stdout
