"""The real ``chaos run`` drives a lab: verdict, journal, and rollbacks whatever failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from builders.commands import captured
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import Lab, ns, shared_lab
from oracles import oracle

import testbed

chaoslib = pytest.importorskip("chaoslib", reason="chaostoolkit is not installed: pip install '.[chaostoolkit]'")
pytestmark = LABS

EXAMPLE = ROOT / "examples" / "chaostoolkit" / "cut-one-of-two.json"


lab = shared_lab(agents=True)


def chaos(lab: str, experiment: Path, folder: Path) -> tuple[int, dict[str, Any]]:
    """(status of ``chaos run``, its journal)."""
    done = captured([
            *(sys.executable, "-m", "chaostoolkit", "--no-version-check", "--settings", folder / "none.yaml", "run"),
            *("--rollback-strategy=always", "--var", f"testbed_lab={lab}", "--journal-path", "journal.json"),
            experiment,
        ], cwd=folder, timeout=240)  # fmt: skip
    assert (folder / "journal.json").exists(), done.stdout + done.stderr
    return done.returncode, read_json(folder / "journal.json")


def lit(lab: Lab) -> list[str]:
    gateway = ns(lab, "east-gw")
    return [link for link in ("north", "south") if not oracle.no_carrier(gateway, link)]


def python(module: str, func: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "python", "module": f"testbed.chaos.{module}", "func": func, "arguments": arguments}


@pytest.mark.thorough
@pytest.mark.alone
def test_the_example_passes_and_its_journal_has_the_evidence(lab: Lab, tmp_path: Path) -> None:
    status, journal = chaos(lab.name, EXAMPLE, tmp_path)
    assert (status, journal["status"], journal["deviated"]) == (0, "completed", False), journal
    said = {it["activity"]["name"]: it["output"] for it in journal["run"]}
    assert said["the-other-link-carries-the-job"] == 1
    assert said["cut-north-for-five-seconds"]["links"] == ["north"]
    assert 0 < said["wait-for-the-job"]["goodput"] <= 1.1
    assert Path(said["wait-for-the-job"]["report"]).read_text().startswith("<!")
    assert lit(lab) == ["north", "south"]


def test_a_deviation_is_a_deviation_and_rollbacks_heal(lab: Lab, tmp_path: Path) -> None:
    experiment = read_json(EXAMPLE)
    experiment["method"] = [
        {"type": "action", "name": "cut", "provider": python("actions", "cut", target="north")},
        {
            "type": "probe", "name": "carriers", "provider": {
                "type": "process", "path": "ip",
                "arguments": ["-j", "-n", ns(lab, "east-gw"), "link", "show", "north"],
            },
        },
    ]  # fmt: skip
    (tmp_path / "cut.json").write_text(json.dumps(experiment))
    status, journal = chaos(lab.name, tmp_path / "cut.json", tmp_path)
    assert (status, journal["deviated"]) == (1, True)
    assert "NO-CARRIER" in journal["run"][1]["output"]["stdout"]
    assert [it["status"] for it in journal["rollbacks"]] == ["succeeded", "succeeded"]
    oracle.until(lambda: lit(lab) == ["north", "south"], 5.0, "the rollback has healed it")
    assert not any(it.ended is None for it in lab.faults())


def test_a_failed_action_says_our_sentence_and_rollbacks_happen(lab: Lab, tmp_path: Path) -> None:
    experiment = read_json(EXAMPLE)
    experiment["method"] = [
        {"type": "action", "name": "pause", "provider": python("actions", "inject", fault="rank-pause", target="0")},
        {"type": "action", "name": "typo", "provider": python("actions", "cut", target="nort")},
    ]
    (tmp_path / "typo.json").write_text(json.dumps(experiment))
    status, journal = chaos(lab.name, tmp_path / "typo.json", tmp_path)
    assert status == 1, journal
    failed = journal["run"][1]
    assert failed["status"] == "failed"
    assert "north" in "".join(failed["exception"]), "it offers the nearest"
    assert [it["status"] for it in journal["rollbacks"]] == ["succeeded", "succeeded"]
    assert not any(it.ended is None for it in lab.faults())


def test_every_activity_is_discovered_and_valid(tmp_path: Path) -> None:
    done = captured(
        [sys.executable, "-m", "chaostoolkit", "--no-version-check", "validate", str(EXAMPLE)], cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    from chaoslib.discovery.package import get_discover_function

    # As `chaos discover` finds it: in the distribution's own package.
    names = {it["name"] for it in get_discover_function(testbed)()["activities"]}
    assert {"up", "down", "train", "cut", "inject", "heal", "links_lit", "certified"} <= names
    assert not {"translated", "lab_of", "job_of"} & names
