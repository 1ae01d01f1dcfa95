"""``keep_scratch`` of a workload: read, refused where it does not belong, and repeated in the file of the run."""

from __future__ import annotations

import pytest
from builders.inputs import by_input

from testbed.core.experiment import replay
from testbed.core.experiment.experiment_schema import load_text
from testbed.core.workload.workload import ProgramWorkload
from testbed.errors import UserError


def read(more: str) -> bool:
    text = f"topology: metro-40km\nworkload: {{command: [python3, train.py]{more}}}\n"
    experiment = load_text(text.encode(), "x.yaml")
    assert isinstance(experiment.workload, ProgramWorkload)
    again = replay.to_yaml(experiment, [], topology="metro-40km", overrides={}, workload=experiment.workload)
    repeated = load_text(again.encode(), "again.yaml").workload
    assert isinstance(repeated, ProgramWorkload) and repeated.keep_scratch == experiment.workload.keep_scratch
    return experiment.workload.keep_scratch


def test_scratch_is_kept_where_the_file_says_so() -> None:
    assert read(", keep_scratch: true") is True
    assert read(", keep_scratch: false") is False
    assert read("") is False


@by_input(
    "section, said",
    {
        "{command: [a], keep_scratch: 1}": "true or false",
        "{steps: 5, keep_scratch: true}": "keep_scratch belongs to a command",
    },
)
def test_it_is_a_switch_of_commands_alone(section: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_text(f"topology: metro-40km\nworkload: {section}\n".encode(), "x.yaml")
