"""Faults of a lab as a Python object: what is refused before anything is asked, and what a dead keeper means."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.lab_folders import journal_of, lab_folder

from testbed.errors import UserError
from testbed.host import lab_owner
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.lab.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab of metro-40km whose keeper is dead, with nothing in its journal."""
    folder = lab_folder(tmp_path, topology="metro-40km")
    journal_of(folder).close()
    return Lab(folder)


@pytest.mark.parametrize("for_s", [0.0, -1.0, float("nan"), float("inf"), 1e300, 7 * 86400.5])
def test_a_fault_lasts_no_longer_than_the_command_line_would_let_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, for_s: float
) -> None:
    monkeypatch.setattr(client, "keeper", lambda lab: pytest.fail("the keeper was asked"))
    with pytest.raises(UserError, match=r"greater than 0 s and at most 604800 s \(7 days\), got "):
        lab.cut("north", for_s=for_s)


def test_a_heal_of_a_lab_whose_keeper_is_dead_says_what_that_means(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NetnsDriver, "assign", lambda self, settings: None)
    assert lab.heal() == ()
    unknown = "the keeper is gone, so all fibers are dark; it was brought up by an unknown user"
    assert lab.without_keeper() == unknown, "no hint to remove what may be another user's"
    lab_owner.record(LabFolder(tmp_path / "metro"))
    assert lab.without_keeper() == "the keeper is gone, so all fibers are dark; take it down with: testbed down metro"


def test_of_a_lab_with_a_keeper_there_is_nothing_to_say(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "answers", lambda folder: True)
    assert lab.without_keeper() == ""
