"""Experiments on a command: what applies to it is planned, what does not is refused, and a run's file repeats it."""

from __future__ import annotations

import pytest
from builders.experiments import load, replayed
from builders.tables import table
from builders.topologies import METRO

from testbed.core.experiment import expect, fault_schedule, steady
from testbed.core.experiment.applicable import metric_refused
from testbed.core.experiment.experiment_schema import examine
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.faults.fault_registry import registry
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload
from testbed.errors import Finding

SILENT = "workload: {command: [a]}\n"
PRINTS = "workload: {command: [a], steps: 50, progress: {line: '(?P<step>\\d+) (?P<train_loss>\\d+)', tokens: 8}}\n"
AGENTS = "workload: {steps: 50}\n"


def findings(text: str) -> list[Finding]:
    experiment, found = examine(text.encode(), "x.yaml")
    return [*found, *fault_schedule.examine(experiment, METRO)[1]]


EVERYWHERE = ("ranks_up", "links_up")
"""Metrics of the fibers, which no program has to report."""


@pytest.mark.parametrize("metric", sorted(expect.METRICS | steady.METRICS))
def test_metric_refused_of_a_command_and_not_of_agents(metric: str) -> None:
    """None is forgotten: each is of the fibers, is reported by a program, or never applies to one."""
    assert (metric_refused(metric, ProgramWorkload(("a",))) is None) is (metric in EVERYWHERE)
    assert metric in EVERYWHERE or metric_refused(metric, AgentWorkload()) is None


@pytest.mark.parametrize("metric", sorted(expect.METRICS))
def test_expectations_that_do_not_apply(metric: str) -> None:
    text = f"expect: ['{metric} >= 0']\n"
    (silent,) = findings(SILENT + text)
    assert silent.line == 2 and silent.fix and silent.message.startswith(metric)
    applies = {"goodput", "recovery", "steps_lost", "train_loss_drop", "attempts", "restarts", "time_to_resume"}
    assert [finding.line for finding in findings(PRINTS + text)] == ([] if metric in applies else [2])
    assert findings(AGENTS + text) == []


@pytest.mark.parametrize("metric", sorted(steady.METRICS))
def test_conditions_that_do_not_apply(metric: str) -> None:
    text = f"hypothesis: {{before: ['{metric} > 0'], always: [{{check: '{metric} > 0'}}]}}\n"
    assert len(findings(SILENT + text)) == (0 if metric in EVERYWHERE else 2)
    assert findings(PRINTS + text) == []
    late = f"schedule: [{{when: '{metric} > 0', inject: cut, target: north}}]\n"
    assert [finding.line for finding in findings(SILENT + late)] == ([] if metric in EVERYWHERE else [2])


def test_loss_and_tokens_have_to_be_reported() -> None:
    steps_only = "workload: {command: [a], progress: {line: '(?P<step>\\d+)'}}\n"
    found = findings(f"{steps_only}hypothesis: {{always: [train_loss < 3, tokens_per_s > 1, steps_per_s > 1]}}\n")
    assert [it.message for it in found] == [
        "train_loss is not known of this command: it reports no train_loss",
        "tokens_per_s is not known of this command: it reports no tokens",
    ]


ENDLESS = PRINTS.replace("steps: 50, ", "")


@table(
    "workload, after, refused",
    {
        "a step that nothing reports": (SILENT, "step 5", "it reports no steps"),
        "a share that nothing reports": (SILENT, "step 40%", "it reports no steps"),
        "a step": (ENDLESS, "step 5", ""),
        "a share of an unknown number": (ENDLESS, "step 40%", "a share of all steps is not known"),
        "a share": (PRINTS, "step 40%", ""),
        "a step after the last": (PRINTS, "step 50", "out of range"),
        "a step of an unknown number": (ENDLESS, "step 999999", ""),
    },
)
def test_steps_to_wait_for(workload: str, after: str, refused: str) -> None:
    mistakes = findings(f"{workload}schedule: [{{after: {after}, inject: cut, target: north}}]\n")
    assert [refused in finding.message for finding in mistakes] == ([True] if refused else [])


def test_a_share_of_the_steps_that_it_makes() -> None:
    experiment = load(f"{PRINTS}schedule: [{{after: step 40%, inject: cut, target: north}}]\n")
    assert fault_schedule.plan(experiment, METRO) == (Planned("cut", "north", None, after_step=20),)


TWO = SILENT.replace("[a]", "[a], ranks_per_node: 2")


@pytest.mark.parametrize("name", sorted(registry()))
def test_every_fault_acts_on_a_command(name: str) -> None:
    targets = {"node-kill": "west-0", "rank-kill": "5", "rank-pause": "5", "straggler": "5"}
    target = targets.get(name, "north" if registry()[name].targets.startswith(("a link", "a fiber")) else "east")
    schedule = f"schedule: [{{at: 1s, inject: {name}, target: {target}, for: 1s}}]\n"
    messages = [finding.message for finding in findings(TWO + schedule)]
    if messages:  # some kinds need a parameter, or another target: they are refused of agents alike
        assert messages == [finding.message for finding in findings(AGENTS + schedule)]


def test_ranks_of_a_node_that_has_several() -> None:
    kill = "schedule: [{at: 1s, inject: rank-kill, target: %s}]\n"
    assert findings(TWO + kill % "7") == []
    assert "0 to 7" in str(findings(TWO + kill % "8")[0])
    assert "0 to 3" in str(findings(SILENT + kill % "7")[0])
    compiled = registry()["rank-pause"].compile
    assert compiled is not None
    for target, ranks in {"west": [4, 5, 6, 7], "west-0": [4, 5]}.items():
        assert [step.rank for step in compiled(METRO, target, {}, 2).steps] == ranks  # type: ignore[attr-defined]
    assert compiled(METRO, "5", {}, 2).nodes == ("west-0",)
    cpu = "schedule: [{at: 1s, inject: straggler, target: 5, with: {cpu: 30%}}]\n"
    assert "whose 2 ranks would share it" in str(findings(TWO + cpu)[0])


def test_a_rank_that_is_not_started_again_is_not_kept_away() -> None:
    text = "schedule: [{at: 1s, inject: rank-kill, target: 1, with: {away: 3s}}]\n"
    assert findings(AGENTS + text) == []
    assert "away of rank-kill does not apply" in findings(SILENT + text)[0].message


def test_what_is_wrong_with_progress_makes_nothing_else_wrong() -> None:
    text = "workload: {command: [a], progress: nanogtp}\nschedule: [{after: step 5, inject: cut, target: north}]\n"
    (only,) = findings(text + "expect: [recovery < 3s]\n")
    assert "unknown preset" in only.message


def test_a_run_leaves_a_file_that_repeats_it() -> None:
    experiment = load(
        "workload:\n  command: [python, 'it''s #1', --batch, 8]\n  env: {A: 'b: c'}\n  ranks_per_node: 2\n"
        "  progress: {line: '(?P<step>\\d+) (?P<train_loss>\\d+)', tokens: 8}\n  steps: 50\n  folder: /srv/x\n"
        "  timeout: 90s\n  stall: 12.5s\n"
        "schedule: [{after: step 40%, inject: rank-pause, target: 7, for: 1s}]\nexpect: [recovery < 3s]\n"
    )
    planned = fault_schedule.plan(experiment, METRO)
    again = replayed(experiment, planned)
    assert again.workload == experiment.workload
    assert fault_schedule.plan(again, METRO) == planned
