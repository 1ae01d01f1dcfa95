"""A strategy whose twin is wrong about bytes by 20 %: the wire check says so, of a package's and of the house's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders.commands import TESTBED, captured
from builders.conditions import THOROUGH, TORCH
from builders.json_files import read_json
from builders.labs import OwnLab, bring_up

from testbed.core.training.strategies.hierarchical import Hierarchical
from testbed.core.training.strategy_operation import Operation

pytestmark = [*THOROUGH, TORCH]

PACKAGE = """
import dataclasses
from testbed.core.training.strategies.hierarchical import Hierarchical
from testbed_agents.strategies.hierarchical import Hierarchical as Agent

class Twin(Hierarchical):
    name, summary = "byte-liar", "hierarchical, declared to move {factor} of its bytes"
    def operations(self, step):
        return [dataclasses.replace(it, byte_count={factor} * it.byte_count) for it in super().operations(step)]
"""


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_a_package_that_lies_about_bytes_fails_the_run(own: OwnLab, tmp_path: Path, factor: float) -> None:
    package = tmp_path / "package"
    about = package / "byte_liar-1.dist-info"
    about.mkdir(parents=True)
    for folder in (tmp_path, package, about):
        folder.chmod(0o755)  # ranks are no root
    (package / "byte_liar.py").write_text(PACKAGE.format(factor=factor))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: byte-liar\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[testbed.strategies]\nbyte-liar = byte_liar\n")
    file = tmp_path / "lie.yaml"
    file.write_text("topology: metro-40km\nworkload: {strategy: byte-liar, steps: 40, compute: 100ms}\n")
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{package}"}
    words = ["run", str(file), "--name", own, "--runs", str(tmp_path / "runs"), "--allow-uncertified"]
    argv = [*TESTBED, *words]
    done = captured(argv, env=environment, timeout=120)
    assert done.returncode == 1, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    report = read_json(run / "report.json")
    assert (report["verdict"], report["wire"]["ok"]) == ("fail", False)
    assert "Traceback" not in done.stderr


def test_so_does_a_strategy_of_the_house(state_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Hierarchical.operations

    def wrong(self: Hierarchical, step: int) -> Sequence[Operation]:
        return [dataclasses.replace(it, byte_count=1.2 * it.byte_count) for it in right(self, step)]

    tmp_path.chmod(0o755)
    with bring_up(agents=True) as lab:
        lab.open_run(tmp_path / "runs")
        lab.train(40, strategy="hierarchical", compute="100ms").wait(90)
        assert lab.report().wire.ok is True
        monkeypatch.setattr(Hierarchical, "operations", wrong)
        found = lab.report()
    assert (found.verdict, found.wire.ok) == ("fail", False), found.wire.sentence
