"""What faults and restarts cost, in a report: its table and its JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.reports import check, document_of, markdown, report_of
from builders.run_kinds import restart


def test_the_costs_of_faults_are_the_classes_that_they_fill(run: Path) -> None:
    report = report_of(run)
    section = document_of(report)["rank_seconds"]
    (cost,) = section["fault_costs"]
    assert (cost["label"], cost["count"]) == ("cut north", 1)
    assert cost["slowed_by_faults_s"] == pytest.approx(section["total"]["slowed_by_faults_s"])
    assert cost["slowed_by_faults_s"] > 0
    check(report, shown=["Cost of faults: ", "cut north"])


def test_a_restart_without_a_fault_has_a_line_of_its_own(run: Path) -> None:
    restart(run, 350, 6.0)
    report = report_of(run)
    section = document_of(report)["rank_seconds"]
    costs = {cost["label"]: cost for cost in section["fault_costs"]}
    assert list(costs) == ["cut north", "restart"]
    for key in ("slowed_by_faults_s", "lost_work_s", "detection_and_restart_s"):
        assert sum(cost[key] for cost in costs.values()) == pytest.approx(section["total"][key])
    lines = [
        line
        for line in markdown(report).splitlines()
        if line.startswith(("| cut north | ", "| restart | ")) and line.count(" | ") == 5
    ]
    assert [line.split(" | ")[0] for line in lines] == ["| restart", "| cut north"], "the most expensive one first"
