"""Write an experiment as it was run to an experiment file: with the times drawn and the values overridden."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from testbed.core.experiment.experiment_schema import Experiment
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.experiment.steady import WHEN
from testbed.core.workload import progress_source
from testbed.core.workload.workload import Workload

__all__ = ["to_yaml"]


def to_yaml(
    experiment: Experiment,
    planned: Iterable[Planned],
    *,
    topology: str,
    overrides: Mapping[str, object],
    workload: Workload,
) -> str:
    """Return the text of a file that repeats the same faults: ``topology`` as an absolute path or shipped name.

    ``overrides`` are all overrides of the run, ``workload`` is what it ran. Values are written as JSON, a subset of
    YAML, so that a user's strings stay strings.
    """
    lines = [
        "# as it was run: random faults with the times that were drawn",
        *_entry("name", experiment.name),
        *_entry("teaches", experiment.teaches or None),
        *_entry("topology", topology),
        *_entry("set", dict(overrides) or None),
        *_entry("strict", experiment.strict or None),
        *_entry("workload", {key: value for key, value in _workload(workload).items() if value is not None}),
        *_hypothesis(experiment),
        *_listed("schedule", [_fault(fault) for fault in planned]),
        *_listed("expect", [expectation.text for expectation in experiment.expectations]),
    ]
    return "\n".join(lines) + "\n"


def _workload(ran: Workload) -> dict[str, Any]:
    if (program := ran.program) is not None:
        return {
            "command": list(program.command),
            "env": dict(program.environment) or None,
            "ranks_per_node": program.ranks_per_node,
            "progress": None if program.progress is None else progress_source.to_dict(program.progress),
            "steps": program.steps,
            "folder": program.folder,
            "for": _time(program.for_s),
            "timeout": _time(program.timeout_s),
            "stall": _time(program.stall_s),
            "keep_scratch": program.keep_scratch or None,
        }
    own = ran.to_dict()
    keys = {"checkpoint": "checkpoint_every", "evaluate": "evaluate_every"}
    named = {key: own.pop(field, None) for key, field in keys.items()} | {"timeout": _time(own.pop("timeout_s", None))}
    return {**own, **named}


def _time(duration_s: float | None) -> str | None:
    return None if duration_s is None else _seconds(duration_s)


def _hypothesis(experiment: Experiment) -> list[str]:
    if not experiment.hypothesis:
        return []
    lines = ["hypothesis:"]
    for when in WHEN:
        checks: list[object] = []
        for condition in experiment.hypothesis:
            if condition.when == when:
                within = {"within": _seconds(condition.within_s)} if when == "after" else {}
                checks.append({"check": condition.check.text, "for": _seconds(condition.grace_s), **within})
        lines += [f"  {line}" for line in _listed(when, checks)]
    return lines


def _fault(planned: Planned) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if planned.at_s is not None:
        written["at"] = _seconds(planned.at_s)
    elif planned.when is not None:
        written["when"] = planned.when.text
    else:
        written["after"] = f"step {planned.after_step}"
    written |= {"inject": planned.inject, "target": planned.target}
    if planned.for_s is not None:
        written["for"] = _seconds(planned.for_s)
    if planned.repeat > 1:
        written |= {"repeat": planned.repeat, "every": _seconds(planned.every_s)}
    if planned.parameters:
        written["with"] = dict(planned.parameters)
    return written


def _seconds(value: float) -> str:
    return f"{value:.9g}s"


def _entry(key: str, value: object) -> list[str]:
    return [] if value is None else [f"{key}: {_text(value)}"]


def _listed(key: str, values: Iterable[object]) -> list[str]:
    lines = [f"  - {_text(value)}" for value in values]
    return [f"{key}:", *lines] if lines else []


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
