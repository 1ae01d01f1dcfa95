"""Experiment files end to end: each exit status, and a run repeated from its run directory."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from builders.commands import argv_of, captured
from builders.conditions import ALONE
from builders.json_files import read_json, recorded_events
from oracles import oracle

pytestmark = [*ALONE, pytest.mark.e2e]


class Ran:
    """A finished run: its exit status, output and run directory."""

    def __init__(self, folder: Path, text: str, state_folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        file = folder / "x.yaml"
        file.write_text(text)
        self.name, self.junit = oracle.unused_name(), folder / "verdict.xml"
        argv = argv_of(f"run {file} --name", self.name, "--allow-uncertified")
        argv += ["--runs", str(folder / "runs"), "--junit", str(self.junit)]
        done = captured(argv, timeout=240.0)
        self.status, self.said = done.returncode, done.stderr + done.stdout
        assert oracle.left_behind(self.name, state_folder) == []
        (self.directory,) = (folder / "runs").glob("*/") if (folder / "runs").is_dir() else [Path()]

    def json(self, name: str) -> dict:
        found = read_json(self.directory / name)
        assert isinstance(found, dict)
        return found

    def events(self, kind: str) -> list[dict]:
        return recorded_events(self.directory, kind)

    def cases(self) -> dict[str, str]:
        found = {}
        for case in ET.parse(self.junit).iter("testcase"):
            found[case.attrib["name"]] = next((child.tag for child in case), "passed")
        return found


HEAD = "topology: metro-40km\nworkload: {steps: 60, seed: 3}\n"


@pytest.mark.thorough
def test_nothing_is_injected_where_there_is_no_steady_state(tmp_path: Path, state_folder: Path) -> None:
    ran = Ran(
        tmp_path,
        # Warm after 4 s, then violated for longer than the grace of 2 s: 9 s are enough at any step rate.
        "topology: metro-40km\nworkload: {steps: 400, seed: 3}\n"
        "hypothesis: {before: [links_up == 2, ranks_up == 5]}\n"
        "schedule: [{at: 9s, inject: cut, target: north, for: 1s}]\n",
        state_folder,
    )
    assert ran.status == 1, ran.said
    assert ran.events("fault-began") == []
    assert [(it["text"], it["holds"]) for it in ran.json("run.json")["hypothesis"]] == [
        ("links_up == 2", True),
        ("ranks_up == 5", False),
    ]
    assert ran.json("report.json")["verdict"] == "fail"
    assert ran.cases()["before: links_up == 2"] == "passed"
    assert ran.cases()["before: ranks_up == 5"] == "failure"


@pytest.mark.thorough
def test_what_never_came_is_no_pass(tmp_path: Path, state_folder: Path) -> None:
    """The job ends long before the second cut is due, and no measurement is bad."""
    ran = Ran(
        tmp_path,
        HEAD + "schedule:\n  - {at: 2s, inject: cut, target: north, for: 500ms}\n"
        "  - {at: 500s, inject: cut, target: south, for: 1s}\nexpect: [steps_lost == 0]\n",
        state_folder,
    )
    assert ran.cases()["Did all faults happen?"] == "error", ran.said
    assert [it["began"] for it in ran.json("run.json")["schedule"]] == [1, 0]
    assert ran.cases()["steps_lost == 0"] == "passed"
    assert ran.status in (1, 3), "3, or 1 if the machine was too busy for its fibers"
    assert ran.json("report.json")["verdict"] != "pass"


@pytest.mark.thorough
def test_a_drawn_run_is_done_again_from_its_directory(tmp_path: Path, state_folder: Path) -> None:
    first = Ran(
        tmp_path / "first",
        HEAD + "set: {links.south.km: 60}\ncompress: {time: 10 years = 1s, repair: 12 h = 200ms}\n"
        "random: {from: 1s, to: 5s}\n"
        "schedule: [{when: train_loss < 100, inject: flap, target: south, with: {times: 2, down: 50ms, up: 50ms}}]\n",
        state_folder,
    )
    again = Ran(tmp_path / "again", (first.directory / "experiment.yaml").read_text(), state_folder)
    planned = [
        [(it["inject"], it["target"], it["at_s"], it["when"]) for it in ran.json("run.json")["schedule"]]
        for ran in (first, again)
    ]
    assert planned[0] == planned[1]
    assert len(planned[0]) > 3
    began = [[(it["type"], it["target"]) for it in ran.events("fault-began")] for ran in (first, again)]
    assert sorted(began[0]) == sorted(began[1])
    assert [link["length_m"] for link in again.json("topology.json")["links"]] == [40_000, 60_000]


def test_a_bad_file_is_2_and_says_so_to_ci(tmp_path: Path, state_folder: Path) -> None:
    ran = Ran(tmp_path, HEAD + "schedule: [{at: 5s, inject: cot, target: north}]\nexpect: [speed > 3]\n", state_folder)
    assert ran.status == 2, ran.said
    assert "x.yaml:3: unknown fault 'cot'" in ran.said
    assert "x.yaml:4: unknown metric 'speed'" in ran.said
    assert set(ran.cases().values()) == {"error"}
