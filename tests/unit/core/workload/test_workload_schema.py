"""The section ``workload:`` of a file: the agents' job or a command, every mistake at its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders.inputs import by_input
from builders.workloads import read, right
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.workload.progress_source import Calls, LinePattern
from testbed.core.workload.reported_figures import reported
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload
from testbed.core.workload.workload_schema import AGENT_KEYS, COMMAND_KEYS, OWN_KEYS
from testbed.errors import FileMistakes, UserError


def test_nothing_written_is_the_agents_job_as_ever() -> None:
    assert right({}) == AgentWorkload() == AgentWorkload(steps=500, seed=0, checkpoint_every=50, restarts=3)


def test_the_flat_form_of_today() -> None:
    assert right(
        "{strategy: ddp, steps: 60, seed: 3, data: a b.txt, checkpoint: 0, restarts: 1, timeout: 5s, batch: 2,"
        " context: 32, layers: 2, heads: 2, width: 48, learning_rate: 3e-4}"
    ) == AgentWorkload(60, 3, "a b.txt", 5.0, 2, 32, 2, 2, 48, 3e-4, 0, 1)


def test_a_command() -> None:
    assert right(
        "command: [python, train.py, --batch, 8, --rate, 0.1, --name, '']\nenv: {OMP_NUM_THREADS: 1, A: b c}\n"
        "ranks_per_node: 2\nprogress: {line: 'step (?P<step>\\d+)'}\nsteps: 90\nfolder: ..\ntimeout: 2 min\nstall: 9s\n"
    ) == ProgramWorkload(
        ("python", "train.py", "--batch", "8", "--rate", "0.1", "--name", ""),
        {"OMP_NUM_THREADS": "1", "A": "b c"},
        2,
        LinePattern((r"step (?P<step>\d+)",)),
        90,
        None,
        120.0,
        9.0,
        "..",
    )


@by_input("limit, expected", {"": (None, True), ", for: 9s": (9.0, False), ", timeout: 9s": (None, True)})
def test_a_command_has_a_limit_whatever_is_written(limit: str, expected: tuple[float | None, bool]) -> None:
    program = right(f"{{command: [a]{limit}}}")
    assert isinstance(program, ProgramWorkload)
    assert (program.for_s, program.timeout_s is not None) == expected


@pytest.mark.parametrize("key", sorted(AGENT_KEYS))
def test_what_agents_do_is_refused_of_a_command(key: str) -> None:
    _, (finding,) = read(f"command: [python, train.py]\n{key}: 7\n")
    assert (finding.line, finding.message.split(": ")[0]) == (2, f"{key} does not apply to a command")
    assert finding.fix


@pytest.mark.parametrize("key", sorted(COMMAND_KEYS))
def test_what_a_command_has_needs_one(key: str) -> None:
    _, (finding,) = read(f"steps: 5\n{key}: 7\n")
    assert (finding.line, finding.message) == (2, f"{key} belongs to a command, and the workload has none")


def test_every_key_belongs_to_one_form_or_to_both() -> None:
    assert {*AGENT_KEYS, *COMMAND_KEYS, "command", "steps", "timeout"} == OWN_KEYS


@by_input(
    "section, said",
    {
        "{strategy: pdd}": "unknown strategy 'pdd'",
        "{command: python train.py}": "expected a list of words",
        "{command: []}": "expected a list of words",
        "{command: ['']}": "expected a program",
        "{command: [a, true]}": "expected a word, got true",
        "{command: [a, [b]]}": "expected a word",
        '{command: ["a\\0b"]}': "expected a word",
        "{command: [a], env: {1x: 2}}": "expected the name of a variable",
        "{command: [a], env: {A: null}}": "expected a word",
        "{command: [a], env: [A]}": "expected a mapping of variables",
        "{command: [a], ranks_per_node: 65}": "out of range",
        "{command: [a], for: 9s, timeout: 9s}": "both for and timeout",
        "{command: [a], stall: 9s}": "cannot be noticed",
        "{command: [a], progress: nanogtp}": "unknown preset",
        "{heads: 5}": "width must be a multiple of heads",
        "{steps: 0}": "out of range",
        "7": "expected a mapping",
    },
)
def test_mistakes_of_a_workload(section: str, said: str) -> None:
    workload, (finding,) = read(section)
    assert said in finding.message
    assert finding.fix or "available: " in finding.message
    assert isinstance(workload, ProgramWorkload) == ("command" in section)


def test_a_word_for_a_shell_is_shown_as_a_list() -> None:
    _, (finding,) = read({"command": "python train.py --name 'a b'"})
    assert finding.fix == "write command: [python, train.py, '--name', 'a b']"


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
KEYS = st.sampled_from([*AGENT_KEYS, *COMMAND_KEYS, "command", "steps", "timeout", "other"])


@settings(max_examples=300, deadline=2000)
@given(st.one_of(VALUES, st.dictionaries(KEYS, VALUES, max_size=5)))
def test_any_workload_is_read_or_refused_with_a_fix(section: object) -> None:
    try:
        workload, findings = read(json.dumps(section))
    except FileMistakes:
        return
    assert isinstance(workload, AgentWorkload | ProgramWorkload)
    for finding in findings:
        assert finding.fix or "available: " in finding.message
    if not findings and isinstance(section, dict):
        assert isinstance(workload, ProgramWorkload) == ("command" in section)


EVERYTHING = {"step", "tokens", "train_loss"}


@by_input(
    "progress, fields",
    {
        r"{line: 'step (?P<step>\d+)'}": {"step"},
        r"{line: 'step (?P<step>\d+) (?P<train_loss>\d+)'}": {"step", "train_loss"},
        r"{line: 'step (?P<step>\d+)', tokens: 4096}": {"step", "tokens"},
        r"{line: ['(?P<tokens_per_step>\d+) a step', 'step (?P<step>\d+)']}": {"step", "tokens"},
        "{csv: a.csv, train_loss: loss}": {"step", "train_loss"},
        "{csv: a.csv, tokens_seen: n}": {"step", "tokens"},
        "{tensorboard: runs}": {"step"},
        "{prometheus: 9100, step: a, tokens: b, train_loss: c}": EVERYTHING,
        "calls": EVERYTHING,
        "nanogpt": EVERYTHING,
    },
)
def test_what_a_program_reports(progress: str, fields: set[str]) -> None:
    assert reported(right(f"command: [a]\nprogress: {progress}\n").progress) == fields


def test_what_is_reported_without_progress_and_by_calls() -> None:
    assert reported(None) == frozenset()
    assert reported(Calls()) == EVERYTHING


@pytest.mark.parametrize("fields", [((),), (("a",), {}, 0)], ids=["no words", "no ranks"])
def test_impossible_programs(fields: tuple[Any, ...]) -> None:
    with pytest.raises(UserError):
        ProgramWorkload(*fields)


def test_what_run_json_says_of_a_workload() -> None:
    assert AgentWorkload(60, 3, timeout_s=5.0).to_dict() == {"steps": 60, "seed": 3, "timeout_s": 5.0}
    secret = ProgramWorkload(("a", "b c"), {"TOKEN": "s3cret"}, 2, timeout_s=60.0).to_dict()
    assert secret == {"command": "a 'b c'", "ranks_per_node": 2, "timeout_s": 60.0}
