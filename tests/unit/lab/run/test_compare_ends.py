"""However a comparison ends, the lab is taken down and what was measured is kept and named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.core.analysis.heldout import HeldOut
from testbed.core.report.comparison.side import Side
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared
from testbed.errors import Interrupted, JobFailed
from testbed.lab import own_lab
from testbed.lab.run import compare as compare_module


class Lab:
    name = "metro"

    def __init__(self, trained: list[bool]) -> None:
        """``trained``: whether each run trains a step."""
        self.downs = 0
        self._trained = [*trained, True]

    def open_run(self, root: Path) -> object:
        ranks = (SimpleNamespace(steps=(1,) if self._trained.pop(0) else ()),)
        info = SimpleNamespace(unknown_because="", status="failed", reason="rank 3 has no such library")
        read = SimpleNamespace(ranks=ranks, info=info)
        return SimpleNamespace(name="run", path=root / "run", read=lambda: read)

    def down(self) -> None:
        self.downs += 1


def compare(
    monkeypatch: pytest.MonkeyPatch, folder: Path, lab: Lab, ends: list[BaseException | None], verdict: str = "fail"
) -> list[WaysCompared]:
    kept: list[WaysCompared] = []

    def run_in(*words: object) -> object:
        if error := ends.pop(0):
            raise error
        return SimpleNamespace(exit_code=1)

    def keep_ways(found: WaysCompared, runs: Path, name: str) -> Path:
        kept.append(found)
        return Path("/comparisons/index.html")

    def way_of_run(way: str, seed: int, *words: object) -> WayRun:
        side = Side("run", "/run", "training job", verdict, "It trained.", 0.0, (), (), {})
        return WayRun(way, seed, side, HeldOut(), None, {})

    monkeypatch.setattr(own_lab.deploy, "up", lambda *words, **more: lab)
    monkeypatch.setattr(compare_module.agent_host, "missing", lambda: "")
    monkeypatch.setattr(compare_module, "run_in", run_in)
    monkeypatch.setattr(compare_module.comparisons, "keep_ways", keep_ways)
    monkeypatch.setattr(compare_module, "way_of_run", way_of_run)
    outcome = compare_module.compare("metro-40km", "ddp,diloco", runs=folder)
    assert outcome.exit_code == {"pass": 0, "fail": 1, "unknown": 3}[verdict]
    return kept


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("interrupted; the measurements are in /run")])
def test_compare_that_is_interrupted_keeps_the_comparison_and_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    lab = Lab(trained=[True])
    with pytest.raises(Interrupted, match=r"/comparisons/index\.html"):
        compare(monkeypatch, tmp_path, lab, [None, error])
    assert lab.downs == 1


def test_compare_needs_a_run_that_trained_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lab = Lab(trained=[False, False])
    with pytest.raises(JobFailed, match="no run has trained a step"):
        compare(monkeypatch, tmp_path, lab, [None, None])
    assert lab.downs == 1


def test_compare_goes_on_after_a_strategy_that_cannot_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = compare(monkeypatch, tmp_path, Lab(trained=[False, True]), [None, None])
    assert [run.way for run in kept[-1].runs] == ["diloco"]
    assert kept[-1].failed == (("ddp", 0, "rank 3 has no such library"),)


@pytest.mark.parametrize("verdict", ["pass", "fail", "unknown"])
def test_compare_has_all_runs_and_the_status_of_their_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: str
) -> None:
    kept = compare(monkeypatch, tmp_path, Lab(trained=[True, True]), [None, None], verdict)
    assert [run.way for run in kept[-1].runs] == ["ddp", "diloco"]
    assert kept[-1].ended == ""
