"""Experiments on a command: what applies to it is planned, what does not is refused, and a run's file repeats it."""

from __future__ import annotations

import pytest

from testbed.core.experiment import applicable, expect, fault_schedule, replay, steady
from testbed.core.experiment.experiment_schema import Experiment, examine, load_text
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.faults.fault_registry import registry
from testbed.core.topology import resolve
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload
from testbed.errors import Finding

METRO = resolve.load_text(
    b"sites: {east: {nodes: 2}, west: {nodes: 2}}\nlinks: {north: {between: [east, west], km: 40}}\n", "metro.yaml"
)
SILENT = "workload: {command: [a]}\n"
PRINTS = "workload: {command: [a], steps: 50, progress: {line: '(?P<step>\\d+) (?P<train_loss>\\d+)', tokens: 8}}\n"
AGENTS = "workload: {steps: 50}\n"


def load(text: str) -> Experiment:
    return load_text(text.encode(), "x.yaml")


def findings(text: str) -> list[Finding]:
    experiment, found = examine(text.encode(), "x.yaml")
    return [*found, *fault_schedule.examine(experiment, METRO)[1]]


def test_every_metric_is_known_of_agents_and_judged_for_a_command() -> None:
    """None is forgotten: each is of the fibers, is reported by a program, or never applies to one."""
    everywhere = {"ranks_up", "links_up"}
    for metric in (expect.METRICS | steady.METRICS).keys() - everywhere:
        assert applicable.metric_refused(metric, ProgramWorkload(("a",))), metric
        assert applicable.metric_refused(metric, AgentWorkload()) is None
    for metric in everywhere:
        assert applicable.metric_refused(metric, ProgramWorkload(("a",))) is None


@pytest.mark.parametrize("metric", sorted(expect.METRICS))
def test_expectations_that_do_not_apply(metric: str) -> None:
    silent = findings(f"{SILENT}expect: ['{metric} >= 0']\n")
    assert [(it.line, bool(it.fix)) for it in silent] == [(2, True)]
    assert silent[0].message.startswith(metric)
    reporting = findings(f"{PRINTS}expect: ['{metric} >= 0']\n")
    applies = {"goodput", "recovery", "steps_lost", "train_loss_drop", "attempts", "restarts", "time_to_resume"}
    assert [it.line for it in reporting] == ([] if metric in applies else [2])
    assert findings(f"{AGENTS}expect: ['{metric} >= 0']\n") == []


@pytest.mark.parametrize("metric", sorted(steady.METRICS))
def test_conditions_that_do_not_apply(metric: str) -> None:
    text = f"hypothesis: {{before: ['{metric} > 0'], always: [{{check: '{metric} > 0'}}]}}\n"
    known = metric in ("ranks_up", "links_up")
    assert len(findings(SILENT + text)) == (0 if known else 2)
    assert findings(PRINTS + text) == []
    late = f"schedule: [{{when: '{metric} > 0', inject: cut, target: north}}]\n"
    assert [it.line for it in findings(SILENT + late)] == ([] if known else [2])


def test_loss_and_tokens_have_to_be_reported() -> None:
    steps_only = "workload: {command: [a], progress: {line: '(?P<step>\\d+)'}}\n"
    found = findings(f"{steps_only}hypothesis: {{always: [train_loss < 3, tokens_per_s > 1, steps_per_s > 1]}}\n")
    assert [it.message for it in found] == [
        "train_loss is not known of this command: it reports no train_loss",
        "tokens_per_s is not known of this command: it reports no tokens",
    ]


@pytest.mark.parametrize(
    "workload, after, refused",
    [
        (SILENT, "step 5", "it reports no steps"),
        (SILENT, "step 40%", "it reports no steps"),
        (PRINTS.replace("steps: 50, ", ""), "step 5", ""),
        (PRINTS.replace("steps: 50, ", ""), "step 40%", "a share of all steps is not known"),
        (PRINTS, "step 40%", ""),
        (PRINTS, "step 50", "out of range"),
        (PRINTS.replace("steps: 50, ", ""), "step 999999", ""),
    ],
)
def test_steps_to_wait_for(workload: str, after: str, refused: str) -> None:
    found = findings(f"{workload}schedule: [{{after: {after}, inject: cut, target: north}}]\n")
    assert [refused in it.message for it in found] == ([True] if refused else [])


def test_a_share_of_the_steps_that_it_makes() -> None:
    experiment = load(f"{PRINTS}schedule: [{{after: step 40%, inject: cut, target: north}}]\n")
    assert fault_schedule.plan(experiment, METRO) == (Planned("cut", "north", None, after_step=20),)


@pytest.mark.parametrize("name", sorted(registry()))
def test_every_fault_acts_on_a_command(name: str) -> None:
    targets = {"node-kill": "west-0", "rank-kill": "5", "rank-pause": "5", "straggler": "5"}
    target = targets.get(name, "north" if registry()[name].targets.startswith(("a link", "a fiber")) else "east")
    several = SILENT.replace("[a]", "[a], ranks_per_node: 2")
    found = findings(f"{several}schedule: [{{at: 1s, inject: {name}, target: {target}, for: 1s}}]\n")
    if found:  # some kinds need a parameter, or another target: they are refused of agents alike
        agents = findings(f"{AGENTS}schedule: [{{at: 1s, inject: {name}, target: {target}, for: 1s}}]\n")
        assert [it.message for it in found] == [it.message for it in agents]


def test_ranks_of_a_node_that_has_several() -> None:
    two = SILENT.replace("[a]", "[a], ranks_per_node: 2")
    kill = "schedule: [{at: 1s, inject: rank-kill, target: %s}]\n"
    assert findings(two + kill % "7") == []
    assert "0 to 7" in str(findings(two + kill % "8")[0])
    assert "0 to 3" in str(findings(SILENT + kill % "7")[0])
    compiled = registry()["rank-pause"].compile_ranks
    assert compiled is not None
    assert [step.rank for step in compiled(METRO, "west", {}, 2).steps] == [4, 5, 6, 7]  # type: ignore[attr-defined]
    assert [step.rank for step in compiled(METRO, "west-0", {}, 2).steps] == [4, 5]  # type: ignore[attr-defined]
    assert compiled(METRO, "5", {}, 2).nodes == ("west-0",)
    cpu = "schedule: [{at: 1s, inject: straggler, target: 5, with: {cpu: 30%}}]\n"
    assert "whose 2 ranks would share it" in str(findings(two + cpu)[0])


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
    text = replay.to_yaml(experiment, planned, topology="m.yaml", overrides={}, workload=experiment.workload)
    again = load_text(text.encode(), "again.yaml")
    assert again.workload == experiment.workload
    assert fault_schedule.plan(again, METRO) == planned
