"""A fiber that is wrong below the keeper is outside tolerance, on a quiet host and under a thief of CPU time.

The journal, the targets and the faults of `status` have the right values: it is the measurement that detects it.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command
from builders.conditions import ALONE
from builders.labs import Lab, shared_lab
from planted_fibers import WRONG, second_path, site_network, wrong_fiber

from benchmarks import thief

pytestmark = ALONE

LEVELS = [
    pytest.param(0.0, "together", id="no thief"),
    pytest.param(0.15, "together", id="15 % of all cores together"),
    pytest.param(0.15, "apart", id="15 % of each core apart"),
]
TOPOLOGY = """
scale: 1000
sites:
  east: {nodes: 2}
  west: {nodes: 2}
links:
  north: {between: [east, west], km: 40, optics: 800ZR}
  south: {between: [east, west], km: 47, optics: 800ZR, loss: 1%}
"""
UNMEASURABLE = 3
"""Exit status: too few packets to judge; the user tries again."""


lab = shared_lab(TOPOLOGY, emulator="fiberd")


@contextlib.contextmanager
def noise(share: float, mode: str) -> Iterator[None]:
    """Take CPU time, unless these tests run under a thief already."""
    if share and not thief.may_steal():
        pytest.skip("a thief needs CAP_SYS_NICE")
    if share and thief.RUNNING in os.environ:
        yield
        return
    try:
        with thief.thief(share, mode, seconds=60.0):
            yield
    except thief.Void as void:  # of other guests; what is asserted holds at any level
        warnings.warn(str(void), stacklevel=2)


def certify(command: Command, lab: Lab) -> tuple[int, dict[str, Any]]:
    for _ in range(3):
        done = command(f"certify -l {lab.name} --json")
        certificate = json.loads(done.stdout)
        assert certificate["verdict"].startswith("certified") is (done.returncode == 0)
        if done.returncode != UNMEASURABLE:
            break
    return done.returncode, certificate


@pytest.mark.parametrize(("share", "mode"), LEVELS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_fiber_is_outside_tolerance(
    lab: Lab, command: Command, state_folder: Path, wrong: str, share: float, mode: str
) -> None:
    quantity, change = WRONG[wrong]
    direction = "south:east" if quantity == "loss" else "north:west"
    with wrong_fiber(lab.name, state_folder, direction, change), noise(share, mode):
        status, certificate = certify(command, lab)
    assert (status, certificate["verdict"]) == (1, "outside tolerance"), certificate["notes"]
    checks = {
        measured["direction"]: {check["what"].partition(",")[0]: check["verdict"] for check in measured["checks"]}
        for link in certificate["links"]
        for measured in link["directions"]
    }
    assert checks[direction][quantity] == "bad"
    assert [name for name, verdicts in checks.items() if "bad" in verdicts.values()] == [direction]
    assert any(reason.startswith(f"{direction}: ") for reason in certificate["why"])


@pytest.mark.parametrize(("share", "mode"), LEVELS)
def test_a_path_around_a_fiber_is_named(lab: Lab, command: Command, share: float, mode: str) -> None:
    route = ("west-gw", site_network(lab.name, "east", "inet6"), "fd00:bad::2")
    with second_path(lab.name, "west-gw", "east-gw", route), noise(share, mode):
        status, certificate = certify(command, lab)
    assert (status, certificate["verdict"]) == (1, "outside tolerance"), certificate["notes"]
    assert certificate["around"]["ok"] is False
    assert "west-0 reaches east-0 over IPv6" in certificate["around"]["why"]
    assert "east-0 reaches west-0 over" not in certificate["around"]["why"]


def test_journal_and_status_do_not_have_a_wrong_fiber(lab: Lab, command: Command, state_folder: Path) -> None:
    journal = state_folder / "labs" / lab.name / "journal.jsonl"

    def shown() -> list[object]:
        status = json.loads(command(f"status -l {lab.name} --json").stdout)
        return [(link["faults"], link["in_force"]) for link in status["links"]]

    def differences() -> list[str]:
        (fiber,) = json.loads(command(f"status -l {lab.name} --fiber north:west --json").stdout)
        return list(fiber["differences"])

    before = shown(), journal.read_bytes()
    with wrong_fiber(lab.name, state_folder, "north:west", WRONG["delay + 60 us"][1]):
        assert (shown(), journal.read_bytes()) == before
        assert len(differences()) == 1  # which reads the emulator's values back
    assert differences() == []
