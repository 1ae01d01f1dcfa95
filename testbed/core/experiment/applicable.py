"""What of an experiment applies to its workload: conditions, expectations and triggers that need what it cannot tell.

The testbed's agents record everything. Of a program of the user's only what its ``progress:`` names is known; what
cannot be known is refused before a run rather than found unknown after it.
"""

from __future__ import annotations

from typing import Final

from testbed.core.workload.reported_figures import STEP, TOKENS, TRAIN_LOSS, reported
from testbed.core.workload.workload import ProgramWorkload, Workload

__all__ = ["Refusal", "metric_refused", "parameter_refused", "step_refused"]

_LOSSES: Final = frozenset({"train_loss", "train_loss_drop"})

Refusal = tuple[str, str]
"""What does not apply and why, and the fix."""

_REPORTED: Final = {
    "goodput": STEP,
    "recovery": STEP,
    "steps_lost": STEP,
    "attempts": STEP,
    "restarts": STEP,
    "time_to_resume": STEP,
    "train_loss_drop": TRAIN_LOSS,
    "steps_per_s": STEP,
    "step_seconds": STEP,
    "train_loss": TRAIN_LOSS,
    "tokens_per_s": TOKENS,
}
"""Metrics, and what a program must report for them."""

_STARTED_ONCE: Final = "a command is started once, and not again"
_EVIDENCE: Final = "only the testbed's agents record the evidence for the checkers"
_OF_AGENTS: Final = {
    "compute_utilization": "only the testbed's agents time compute and communication apart",
    "wire_ratio": "it is not known how many bytes a program must have moved",
    "detection": "a program does not tell when it noticed that it could not continue",
    "wrong_sums": _EVIDENCE,
    "hangs": _EVIDENCE,
    "stale_parameters": _EVIDENCE,
    "lost_updates": _EVIDENCE,
}
"""Metrics that a program never has, and why."""

_HOW: Final = {
    STEP: "add progress: to the workload: a preset such as nanogpt, a line's pattern, or calls",
    TRAIN_LOSS: "add (?P<train_loss>...) to the pattern of progress:, or train_loss: with its name there",
    TOKENS: "add tokens: to progress:, the whole job's tokens in one step",
}


def metric_refused(metric: str, workload: Workload) -> Refusal | None:
    """Return why a condition or expectation on ``metric`` does not apply to the workload; None if it does."""
    program, agents = workload.program, workload.agents
    if program is None:
        if agents is not None and agents.asleep and metric in _LOSSES:
            fix = "remove it, or write compute: {real: true, at_least: …}"
            return f"{metric} tells nothing of a model that sleeps: its loss is that of a toy problem", fix
        return None
    if why := _OF_AGENTS.get(metric):
        return f"{metric} does not apply to a command: {why}", "remove it"
    return _unreported(f"{metric} is not known of this command", _REPORTED.get(metric), program)


def step_refused(workload: Workload, *, share: bool) -> Refusal | None:
    """Return why a fault cannot wait for a step, or for a ``share`` of all; None if it can."""
    program = workload.program
    if program is None:
        return None
    if refused := _unreported("a step is not known of this command", STEP, program):
        return refused[0], f"{refused[1]}; or write at: 20s"
    if share and program.steps is None:
        fix = "add steps: to the workload, or write the number of a step"
        return "a share of all steps is not known of this command", fix
    return None


def parameter_refused(fault: str, parameter: str, workload: Workload) -> Refusal | None:
    """Return why a parameter of a fault does not apply to the workload; None if it does."""
    if workload.program is not None and (fault, parameter) == ("rank-kill", "away"):
        return f"away of rank-kill does not apply: {_STARTED_ONCE}", "remove it"
    return None


def _unreported(what: str, needed: str | None, workload: ProgramWorkload) -> Refusal | None:
    quantities = reported(workload.progress)
    if needed is None or needed in quantities:
        return None
    missing = STEP if STEP not in quantities else needed
    why = {STEP: "reports no steps", TRAIN_LOSS: "reports no train_loss", TOKENS: "reports no tokens"}[missing]
    return f"{what}: it {why}", _HOW[missing]
