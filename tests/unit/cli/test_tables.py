"""Tables as they are read: on a terminal of 80 columns, and with what a lab waits for."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from testbed.cli import tables
from testbed.core.faults.fault_registry import registry
from testbed.core.report.answers import Answer
from testbed.lab.status import LabStatus


def shown(what: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_faults_can_be_read_on_80_columns() -> None:
    said = shown(tables.faults(registry().values()))
    assert max(map(len, said.splitlines())) <= 80
    for kind in registry().values():
        (line,) = [it for it in said.splitlines() if it.strip().partition(" ")[0] == kind.name]
        # The words beside a name have more room than a word: no column of single letters.
        assert len(line.split(None, 1)[1]) > 20 or len(kind.summary) <= 20
    for key in ("carrier: ", "largest: ", "warning: "):
        assert key in said


def test_status_tells_what_a_job_waits_for() -> None:
    lab = LabStatus("x", "up", (), "x", 3.0, "netns", "fiberd", "", (), (), "", ("attempt 2 of job j1 waits: …",))
    assert tables.status_line(lab).plain.endswith("\n  attempt 2 of job j1 waits: …")


def test_what_an_answer_sums_up_is_numbered_below_it() -> None:
    class Report:
        answers = (Answer("recovered", "Did it come through?", "yes", "It did.", ("Cut north.", "Cut south.")),)

    lines = [line.strip() for line in shown(tables.answers(Report()), 120).splitlines()]  # type: ignore[arg-type]
    assert [line for line in lines if line][-2:] == ["1. Cut north.", "2. Cut south."]
