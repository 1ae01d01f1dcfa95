"""``keep_scratch`` of a workload: read, refused where it does not belong, and repeated in the file of the run."""

from __future__ import annotations

import pytest
from builders.experiments import load, replayed
from builders.inputs import by_input

from testbed.core.workload.workload import ProgramWorkload
from testbed.errors import UserError


def section(workload: str) -> str:
    return f"topology: metro-40km\nworkload: {{{workload}}}\n"


@by_input("written, kept", {", keep_scratch: true": True, ", keep_scratch: false": False, "": False})
def test_keep_scratch_where_the_file_says_so(written: str, kept: bool) -> None:
    experiment = load(section(f"command: [python3, train.py]{written}"))
    for workload in (experiment.workload, replayed(experiment).workload):
        assert isinstance(workload, ProgramWorkload) and workload.keep_scratch is kept


@by_input(
    "written, said",
    {
        "command: [a], keep_scratch: 1": "true or false",
        "steps: 5, keep_scratch: true": "keep_scratch belongs to a command",
    },
)
def test_keep_scratch_is_a_switch_of_commands_alone(written: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(section(written))
