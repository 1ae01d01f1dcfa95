"""`testbed render --kubernetes`: the words of the run, and which files of this machine go along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.cli_fixtures import Call, Cli, cli
from builders.tables import table

__all__ = ["cli"]  # a fixture

ROOT = Path(__file__).resolve().parents[3]


def rendered(cli: Cli, line: str) -> list[dict[str, Any]]:
    result = cli(f"render {line}")
    assert result.status == 0, result.err
    return list(yaml.safe_load_all(result.out))


def test_render_of_a_shipped_name_needs_no_files(cli: Cli) -> None:
    (job,) = rendered(cli, "metro-40km --kubernetes --name mine -- --steps 30")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["testbed", "run", "--steps", "30", "--", "metro-40km"]
    assert job["metadata"]["name"] == "mine"


def test_an_experiment_brings_what_it_names(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "mein lab.yaml").write_text((ROOT / "topologies" / "metro-single.yaml").read_text())
    (tmp_path / "jobs" / "train.py").write_text("print(1)\n")
    (tmp_path / "jobs" / "x.yaml").write_text(
        "topology: mein lab.yaml\nworkload: {command: [python, train.py], steps: 5, ranks_per_node: 2}\n"
    )
    config, job = rendered(cli, "jobs/x.yaml --kubernetes --set links.north.km=50")
    assert config["data"]["train.py"] == "print(1)\n"
    pod = job["spec"]["template"]["spec"]
    volume = next(volume for volume in pod["volumes"] if "configMap" in volume)
    assert {item["path"] for item in volume["configMap"]["items"]} == {"jobs/x.yaml", "mein lab.yaml", "jobs/train.py"}
    assert pod["containers"][0]["args"] == ["testbed", "run", "--set", "links.north.km=50", "--", "jobs/x.yaml"]
    assert pod["containers"][0]["workingDir"] == "/experiment"
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "4", "8 ranks"


@table(
    "words, message",
    {
        "an unknown option of a run": ("metro-40km --kubernetes -- --nonsense", "--nonsense"),
        "--runs of a run": ("metro-40km --kubernetes -- --runs x", "--runs names a place outside of the pod"),
        "a name that is no DNS label": ("metro-40km --kubernetes --name A", "DNS-1123 label"),
        "a name that is no image": ("metro-40km --kubernetes --image 'A B'", "expected an image name"),
        "an unknown file": ("no-such --kubernetes", "no-such"),
        "a file outside": ("../lab.yaml --kubernetes", "expected files below the current folder"),
        "options of a run without --kubernetes": ("metro-40km x", "options of a run need --kubernetes"),
    },
)
def test_render_reports_a_mistake_in_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "lab.yaml").write_text((ROOT / "topologies" / "metro-single.yaml").read_text())
    monkeypatch.chdir(tmp_path / "here")
    result = Call(f"render {words}", 2, err=message).check(cli)
    assert result.err.strip().count("\n") == 0
