"""Encode Steps as JSON, for the journal and the keeper's socket."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final

from testbed.core.physics.change import change_from_dict, change_to_dict
from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.plan.properties import Calibrated, Carrier, Changed, Paused, Shape, Slowed, Throttled
from testbed.core.plan.resources import (
    Address,
    Agents,
    Bridge,
    Containers,
    End,
    Fibers,
    Killed,
    Namespace,
    Prometheus,
    Rank,
    Redirect,
    Route,
    SiteFabric,
    Sysctls,
    Unpowered,
    Veth,
)
from testbed.core.plan.step import Plan, Step

_KINDS: dict[str, type[Step]] = {
    kind.__name__: kind
    for kind in (
        Namespace,
        Veth,
        Bridge,
        Sysctls,
        Containers,
        Address,
        Route,
        Redirect,
        SiteFabric,
        Fibers,
        Agents,
        Prometheus,
        Carrier,
        Shape,
        Changed,
        Calibrated,
        Paused,
        Slowed,
        Throttled,
        Killed,
        Unpowered,
    )
}


def to_dict(step: Step) -> dict[str, Any]:
    """Return a Step as JSON data."""
    if isinstance(step, Changed):  # only what is stated: a brown-out writes ten of these in a second
        fields = {"direction": step.direction, "change": change_to_dict(step.change), "flush": step.flush}
        return {"step": "Changed", **fields}
    written = {"step": type(step).__name__, **dataclasses.asdict(step)}
    # Keepers of older versions know no such keys, and `certify` sends Veths to whatever keeper a lab has.
    for part in (*map(written.get, _Build.END), *written.get("directions", ())):
        if isinstance(part, dict):
            for key in _LATER & part.keys():
                if not part[key]:
                    del part[key]
    return written


_LATER: Final = frozenset({"alternative", "receiver"})
"""Fields of an End and of an EmulatedDirection that older versions lack; left out where they are empty."""


class _Build:
    """Decode nested values from JSON, by field name."""

    END: ClassVar[tuple[str, ...]] = ("a", "b")

    @staticmethod
    def field(name: str, value: Any) -> Any:
        if name in _Build.END and isinstance(value, Mapping):
            return End(**value)
        if name == "impairment":
            return Impairment(**value)
        if name == "change":
            return change_from_dict(value)
        if name == "directions":
            return tuple(
                EmulatedDirection(**{**fields, "impairment": Impairment(**fields["impairment"])}) for fields in value
            )
        if name == "ranks":
            return tuple(Rank(**rank) if isinstance(rank, Mapping) else rank for rank in value)
        if isinstance(value, list):
            return tuple(tuple(nested) if isinstance(nested, list) else nested for nested in value)
        return value


def from_dict(data: Mapping[str, Any]) -> Step:
    """Invert :func:`to_dict`. Raises KeyError for a kind of Step unknown to this version."""
    fields = {name: _Build.field(name, value) for name, value in data.items() if name != "step"}
    return _KINDS[data["step"]](**fields)


def plan_from_list(data: Iterable[Mapping[str, Any]]) -> Plan:
    """Return the plan of a list of Steps as JSON data. Raises as :func:`from_dict`."""
    return tuple(from_dict(fields) for fields in data)
