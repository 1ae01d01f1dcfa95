"""However a comparison ends, the lab is taken down and what was measured is kept and named."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.analysis.heldout import HeldOut
from testbed.core.report.comparison.side import Side
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared
from testbed.errors import Interrupted, JobFailed
from testbed.lab.run import compare as compare_module


class _Lab:
    name = "metro"

    def __init__(self, trained: bool) -> None:
        self.down = 0
        self._trained = trained

    def open_run(self, root: Path) -> object:
        ranks = (SimpleNamespace(steps=(1,) if self._trained else ()),)
        info = SimpleNamespace(unknown_because="", status="failed", reason="rank 3 has no such library")
        read = SimpleNamespace(ranks=ranks, info=info)
        return SimpleNamespace(name="run", path=root / "run", read=lambda: read)

    def claimed(self, kind: str, what: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(SimpleNamespace(release=lambda *how: None))


def compare(
    monkeypatch: pytest.MonkeyPatch, folder: Path, lab: _Lab, ends: list[BaseException | None], verdict: str = "fail"
) -> list[WaysCompared]:
    kept: list[WaysCompared] = []

    def train_in(*words: object) -> object:
        if error := ends.pop(0):
            raise error
        return SimpleNamespace(exit_code=1)

    def keep_ways(found: WaysCompared, runs: Path, name: str) -> Path:
        kept.append(found)
        return Path("/comparisons/index.html")

    def way_of_run(way: str, seed: int, *words: object) -> WayRun:
        side = Side("run", "/run", "training job", verdict, "It trained.", 0.0, (), (), {})
        return WayRun(way, seed, side, HeldOut(), None, {})

    monkeypatch.setattr(compare_module.deploy, "up", lambda *words, **more: lab)
    monkeypatch.setattr(compare_module.agent_host, "missing", lambda: "")
    monkeypatch.setattr(compare_module, "take_down", lambda it: setattr(it, "down", it.down + 1))
    monkeypatch.setattr(compare_module, "train_in", train_in)
    monkeypatch.setattr(compare_module.comparisons, "keep_ways", keep_ways)
    monkeypatch.setattr(compare_module, "way_of_run", way_of_run)
    outcome = compare_module.compare("metro-40km", "ddp,diloco", runs=folder)
    assert outcome.exit_code == {"pass": 0, "fail": 1, "unknown": 3}[verdict]
    return kept


@pytest.mark.parametrize("how", [KeyboardInterrupt(), Interrupted("interrupted; the measurements are in /run")])
def test_an_interruption_keeps_the_comparison_and_says_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: BaseException
) -> None:
    lab = _Lab(trained=True)
    with pytest.raises(Interrupted, match=r"/comparisons/index\.html"):
        compare(monkeypatch, tmp_path, lab, [None, how])
    assert lab.down == 1


def test_where_no_run_trained_a_step_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lab = _Lab(trained=False)
    with pytest.raises(JobFailed, match="no run has trained a step"):
        compare(monkeypatch, tmp_path, lab, [None, None])
    assert lab.down == 1


def test_a_way_that_cannot_begin_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Lab(_Lab):
        def open_run(self, root: Path) -> object:
            found = super().open_run(root)
            self._trained = True  # the next one does
            return found

    kept = compare(monkeypatch, tmp_path, Lab(trained=False), [None, None])
    assert [it.way for it in kept[-1].runs] == ["diloco"]
    assert kept[-1].failed == (("ddp", 0, "rank 3 has no such library"),)


@pytest.mark.parametrize("verdict", ["pass", "fail", "unknown"])
def test_all_runs_are_in_the_comparison_whose_status_is_that_of_their_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: str
) -> None:
    kept = compare(monkeypatch, tmp_path, _Lab(trained=True), [None, None], verdict)
    assert [it.way for it in kept[-1].runs] == ["ddp", "diloco"]
    assert kept[-1].ended == ""
