"""What a command or a call says of the agents' workload beside a file: strategy, compute, model, noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from testbed.core import yamltext
from testbed.core.topology.topology_schema import Mistakes, Written
from testbed.core.units import Unreadable
from testbed.core.workload import strategy_section, workload_schema
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.core.yamltext import Path
from testbed.errors import FileMistakes, Finding

__all__ = ["changed"]

_OF_SECTION = ("compute", "model", "noise")
_SAID = (*_OF_SECTION, "steps", "seed", "data")
"""Keys of the workload that have an option or argument of their own."""


@dataclasses.dataclass(frozen=True)
class _Said(Written):
    """Places of what was said: names of options of a command, or of arguments."""

    prefix: str = "--"

    def place(self, path: Path) -> tuple[str, int]:
        key = str(path[0]) if path else ""
        return f"{self.prefix}{key if key in (*_OF_SECTION, 'layers') else 'strategy'}", 0


def changed(
    workload: AgentWorkload,
    strategy: str | None = None,
    compute: object = None,
    model: object = None,
    noise: object = None,
    options: Mapping[str, object] | None = None,
    prefix: str = "--",
    layers: int | None = None,
) -> AgentWorkload:
    """Return ``workload`` with what is given in place of its own; None leaves it.

    Args:
        strategy: ``diloco``, or ``diloco:every=50,outer.rate=0.7``; options that are not said have their default.
        compute: as in a file, ``80ms`` or ``{real: true, at_least: 80ms}``; text may be the latter's JSON.
        model, noise: as in a file.
        options: further options of the strategy, or in place of those of the workload's.
        prefix: of the names in messages: ``--`` for a command.
        layers: of the model.

    Raises:
        FileMistakes: everything that is wrong with them.
    """
    if all(option is None for option in (strategy, compute, model, noise, layers)) and not options:
        return workload
    if isinstance(compute, DeclaredCompute):
        compute, model, noise = (compute.written().get(key) for key in _OF_SECTION)
    section = _section(workload, strategy, options or {}, prefix)
    own = {} if workload.compute is None else workload.compute.written()
    replacements = {"compute": _mapping(compute), "model": model, "noise": noise}
    if compute is not None and model is None:
        own.pop("model", None)  # it may not go with this compute
        if compute == "real":
            own.pop("noise", None)
    section |= own | {key: value for key, value in replacements.items() if value is not None}
    if layers is not None or workload.layers != AgentWorkload.layers:
        section["layers"] = workload.layers if layers is None else layers
    mistakes = Mistakes(_Said(yamltext.Document("", section, {}), prefix=prefix))
    parsed = workload_schema.read(section, (), mistakes).agents
    mistakes.raise_if_any()
    assert parsed is not None
    return dataclasses.replace(
        workload, strategy=parsed.strategy, options=parsed.options, compute=parsed.compute, layers=parsed.layers
    )


def _section(
    workload: AgentWorkload, strategy: str | None, options: Mapping[str, object], prefix: str
) -> dict[str, Any]:
    if strategy is None:
        return {"strategy": workload.strategy, **workload.options, **options}
    try:
        name, written_options = strategy_section.parse_words(strategy)
    except Unreadable as error:
        raise FileMistakes([Finding(f"{prefix}strategy", 0, error.message, error.fix)]) from error
    if own := [key for key in written_options if key in workload_schema.OWN_KEYS]:
        message = f"{own[0]} belongs to the workload, not to a strategy"
        fix = f"write {prefix}{own[0]}" if own[0] in _SAID else f"write {own[0]}: in an experiment, under workload:"
        raise FileMistakes([Finding(f"{prefix}strategy", 0, message, fix)])
    return {"strategy": name, **written_options, **options}


def _mapping(compute: object) -> object:
    """Parse ``{real: true, at_least: 80ms}`` in a command's text."""
    if not isinstance(compute, str) or not compute.strip().startswith("{"):
        return compute
    try:
        return yamltext.read(compute.encode(), "--compute").data
    except FileMistakes:
        return compute
