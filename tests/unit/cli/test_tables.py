"""Tables as they are read: on a terminal of 80 columns, and with what a lab waits for."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from testbed.cli import inspect_verbs, lab_tables, reports
from testbed.core.analysis.host_noise import NoiseSummary, StallLog
from testbed.core.faults.fault_registry import registry
from testbed.core.records.stalls import Stall
from testbed.core.report.answers import Answer
from testbed.host.doctor import Check
from testbed.keeper.protocol import DirectionInForce, ValueInForce
from testbed.lab.status import LabStatus, LinkStatus


def shown(what: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_faults_can_be_read_on_80_columns() -> None:
    text = shown(inspect_verbs.fault_kinds(registry().values()))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    for kind in registry().values():
        (line,) = [line for line in lines if line.strip().partition(" ")[0] == kind.name]
        # The words beside a name have more room than a word: no column of single letters.
        assert len(line.split(None, 1)[1]) > 20 or len(kind.summary) <= 20
    for key in ("carrier: ", "largest: ", "warning: "):
        assert key in text


def lab_status(**fields: Any) -> LabStatus:
    plain = LabStatus("x", "up", (), "x", 90.0, "netns", "fiberd", "", (), ())
    return dataclasses.replace(plain, **fields)


def status_line(**fields: Any) -> str:
    return lab_tables.status_line(lab_status(**fields)).plain


def test_status_line_ends_with_what_a_job_waits_for() -> None:
    assert status_line(waits=("attempt 2 of job j1 waits: …",)).endswith("\n  attempt 2 of job j1 waits: …")


@pytest.mark.parametrize("noisy", [False, True])
def test_status_line_shows_noisy_in_one_word(noisy: bool) -> None:
    assert ("noisy" in status_line(noisy=noisy).replace(",", "").split()) == noisy


def test_status_tells_what_is_in_force_and_who_made_it() -> None:
    values: list[ValueInForce] = [
        {"key": "delay", "text": "1.2 ms", "by": ["link", "f2"]},
        {"key": "rate", "text": "800 Mb/s", "by": ["link"]},
        {"key": "loss", "text": "5%", "by": ["f1"]},
    ]
    directions: tuple[DirectionInForce, ...] = (
        {"direction": "n:west", "dark_by": ["f3"], "values": values, "masked": [{"fault": "f1", "key": "jitter"}]},
        {"direction": "n:east", "dark_by": [], "values": values[1:2], "masked": []},
    )
    link = LinkStatus("n", 40.0, {"west": True}, "ok", ("f1",), {}, 0, ("f1 impaired",), directions)
    text = shown(lab_tables.of_status(lab_status(links=(link,)))[1], 100)
    rows = [line.split("  ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["n:west", "dark", "f3", "jitter of f1"] in cells
    assert ["delay 1.2 ms", "link + f2"] in cells
    assert ["loss 5%", "f1"] in cells
    assert "n:east" not in text and "800 Mb/s" not in text, "as the topology has it"


def test_what_an_answer_sums_up_is_numbered_below_it() -> None:
    class Report:
        answers = (Answer("recovered", "Did it come through?", "yes", "It did.", ("Cut north.", "Cut south.")),)

    lines = [line.strip() for line in shown(reports.answers(Report()), 120).splitlines()]  # type: ignore[arg-type]
    assert [line for line in lines if line][-2:] == ["1. Cut north.", "2. Cut south."]


def test_fixes_are_not_folded() -> None:
    torch = Check("torch", "missing", "not installed", "pip " + "x " * 60)
    assert inspect_verbs.fixes([Check("veth", "ok", "x"), torch, Check("b", "ok", "")]) == [
        "  torch   pip " + "x " * 60
    ]
    assert inspect_verbs.fixes([]) == []


def test_status_and_results_report_a_noisy_host_but_not_a_quiet_one() -> None:
    def summary(*stalls: Stall) -> NoiseSummary | None:
        return StallLog(stalls, (), True).summary(0.0, 60.0)

    quiet, noisy = summary(Stall(0, 5.0, 0.003)), summary(Stall(0, 5.0, 0.03), Stall(1, 9.0, 0.9))
    assert reports.noise(None) == reports.noise(quiet) == []
    (line,) = reports.noise(noisy)
    assert "at least one core was stalled 1.6 % of the time (2 stalls, the longest 900 ms)" in line.plain
    assert "stalled" not in status_line(noise=quiet)
    text = status_line(noise=noisy)
    assert "in the last minute the host's cores stalled 1.6" in text and "900 ms at most" in text
    assert "since it came up the host's cores stalled 1.6" in status_line(noise=noisy, uptime_s=20.0)
