"""Declared compute in a report: means, overruns, the verdict, and that every page says that times are declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.reports import check, document_of, report_of
from builders.run_factory import edit, make_run

from testbed.core.analysis.declared_steps import declared_steps
from testbed.core.analysis.job_twin import twin_of
from testbed.core.records.rank_log import RankLog, read_rank
from testbed.core.report.sections import declared_section

COMPUTE = {"kind": "declared", "seconds": 0.1, "noise": 0.0, "layers": 24}


def log(rank: int, measured: list[float], world_size: int = 2, **compute: Any) -> RankLog:
    """A rank whose steps took ``measured`` seconds of compute where 0.1 were declared."""
    job = {
        "kind": "job", "t": 0.0, "rank": rank, "world_size": world_size, "node": f"n{rank}", "site": "ab"[rank % 2],
        "scheme": "ddp", "parameters": 1_300_000, "gradient_bytes": 5_200_000, "steps": 9, "compute": COMPUTE | compute,
    }  # fmt: skip
    lines: list[dict[str, Any]] = [job]
    for step, took in enumerate(measured, 1):
        begin = 10.0 * step
        line = {
            "kind": "step", "step": step, "tokens": 1, "t_begin": begin, "t_ready": begin + took - 0.01,
            "t_sync": begin + took, "t_stepped": begin + took + 0.01, "t_end": begin + took + 0.02,
            "declared_s": 0.1, "cpu_s": 0.02,
        }  # fmt: skip
        lines.append(line | ({"overrun_s": took - 0.1} if took > 0.102 else {}))
    found, malformed = read_rank(rank, lines)
    assert malformed == 0
    return found


def test_means_overruns_and_cpu() -> None:
    found = declared_steps([log(0, [0.1, 0.1, 0.103]), log(1, [0.1, 0.1, 0.097])], cores=2)
    assert (found.steps, found.overruns, found.verdict) == (6, 1, "held")
    assert found.measured_s == pytest.approx(0.1) and found.declared_s == pytest.approx(0.1)
    assert found.overrun_s == found.worst_s == pytest.approx(0.003)
    assert found.cpu_s == pytest.approx(0.02)
    assert found.expected_share == pytest.approx(2 * 0.022 / (0.1 * 2))


def test_a_machine_that_could_not_carry_it_has_a_verdict_of_its_own() -> None:
    found = declared_steps([log(0, [0.1, 0.11]), log(1, [0.1, 0.11])], cores=2)
    assert found.verdict == "CPU-bound here"
    assert "waited for a core" in declared_section.lead(found)
    assert "CPU-bound here" in declared_section.sentence(found)


def test_real_compute_has_none_of_it() -> None:
    found, _ = read_rank(0, [{"kind": "job", "t": 0.0, "rank": 0, "world_size": 1}])
    assert declared_steps([found]) is None
    assert declared_section.note(None, None) == declared_section.lead(None) == declared_section.sentence(None) == ""
    assert declared_section.table(None) is None
    assert declared_section.beside("compute", None) == "compute"


def test_the_twin_of_a_declared_job_knows_its_layers() -> None:
    twin = twin_of([log(0, [0.1]), log(1, [0.1])])
    assert (twin.layout.layers, twin.layout.elements, twin.layout.step_s) == (24, 1_300_000, 0.1)
    assert {it.layer for it in twin.layout.tensors} == set(range(24))


def test_every_page_says_that_compute_is_declared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20)
    edit(run, "ranks/rank-?.jsonl", where={"kind": "job"}, compute=COMPUTE)
    edit(run, "ranks/rank-?.jsonl", where={"kind": "step"}, declared_s=0.1, cpu_s=0.02)
    report = report_of(run)
    assert "train_loss says nothing" in report.answers[0].text
    assert document_of(report)["declared"]["verdict"] in ("held", "CPU-bound here")
    check(
        report,
        shown=[
            *("Compute is declared: 100 ms a step; at full scale", "compute utilization (declared compute)"),
            "steps that took longer (overruns)",
            "By the similarity law a step of 1 s would stand for 400 km",
        ],
        hidden=["train_loss went from", "nats per byte"],
    )
