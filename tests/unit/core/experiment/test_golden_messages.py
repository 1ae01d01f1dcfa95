"""Messages about mistakes in files: each ``tests/golden/*/bad-*.yaml`` has its message in ``bad-*.txt`` beside it.

``UPDATE_GOLDEN=1 pytest tests/unit/core/experiment/test_golden_messages.py`` rewrites them; read the difference before
you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.core.experiment import experiment_schema as experiment
from testbed.core.experiment import fault_schedule
from testbed.core.topology import resolve
from testbed.errors import FileMistakes

GOLDEN = Path(__file__).parents[3] / "golden"
FILES = sorted(GOLDEN.glob("*/bad-*.yaml"))
JARGON = ("pydantic", "validation", "ValueError", "Traceback", "<block", "<stream", "extra_")
METRO = b"""
sites: {east: {nodes: 2}, west: {nodes: 2}}
links: {north: {between: [east, west], km: 40}, south: {between: [east, west], km: 47}}
"""


def test_there_are_files() -> None:
    assert len(FILES) > 40


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_message(file: Path) -> None:
    text = file.read_bytes()
    with pytest.raises(FileMistakes) as caught:
        if file.parent.name == "topology":
            resolve.load_text(text, file.name)
        else:
            fault_schedule.plan(experiment.load_text(text, file.name), resolve.load_text(METRO, "metro.yaml"))
    message = str(caught.value) + "\n"
    expected = file.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(message, encoding="utf-8")
    assert message == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_line_names_the_file_and_a_fix_in_plain_words(file: Path) -> None:
    lines = file.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    assert lines
    for line in lines:
        place, _, rest = line.partition(": ")
        assert place.partition(":")[0] == file.name
        assert "; " in rest or " (available: " in rest, "a finding without a fix"
        assert not [word for word in JARGON if word in rest]


def test_no_message_without_its_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*/*.txt")} == {path.stem for path in FILES}
