"""Which run's logs a lab shows: its own latest, never those of a lab whose name begins alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.lab_folders import lab_folder

from testbed.lab.lab import Lab


def run_of(root: Path, name: str, words: str) -> None:
    ranks = root / name / "ranks"
    ranks.mkdir(parents=True)
    (root / name / "run.json").write_text(json.dumps({"version": 1, "name": name}))
    (ranks / "rank-0.log").write_text(f"{words}\n")


@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ([], []),
        (["metro-20261121-060000"], ["metro-20261121-060000"]),
        (["metro-20261121-060000", "metro-20261121-060000-2"], ["metro-20261121-060000-2"]),
    ],
)
def test_logs_are_of_the_labs_own_latest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[str], shown: list[str]
) -> None:
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "runs"))
    for name in (*own, "metro-40km-20261121-070000", "metropolis-20261121-080000"):
        run_of(tmp_path / "runs", name, name)
    assert list(Lab(lab_folder(tmp_path, topology="metro-40km")).logs("east-0")) == shown
