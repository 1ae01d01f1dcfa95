"""What a fault is: a named disturbance that compiles to Steps, with its own validation. And those there are.

A fault never does anything by itself: its Steps go through the one journal and the one reconciler, so undoing it
is undoing Steps, whatever happens to whoever asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from testbed.core.plan.step import Setting
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName


@dataclass(frozen=True)
class Compiled:
    """The Steps of a fault, and the links it touches (for events, reports and ``status``)."""

    steps: tuple[Setting, ...]
    links: tuple[str, ...]


Compile = Callable[[Topology, str, Mapping[str, str]], Compiled]
"""(topology, target, parameters as written) to Steps; raises UserError, naming the parameter and the fix."""


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault. ``parameters`` maps each parameter's name to the words that ``--help`` shows."""

    name: str
    summary: str
    targets: str
    compile: Compile
    parameters: Mapping[str, str] = field(default_factory=dict)


def registry() -> dict[str, FaultKind]:
    """All faults there are, by name."""
    from testbed.core.faults import carrier, impair

    return {kind.name: kind for kind in (carrier.CUT, impair.IMPAIR)}


def compile_fault(topology: Topology, name: str, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Steps of the fault ``name``. Raises UnknownName or UserError before anything is touched."""
    kinds = registry()
    if name not in kinds:
        raise UnknownName("fault", name, kinds)
    for key in parameters:
        if key not in kinds[name].parameters:
            raise UnknownName(f"parameter of '{name}'", key, kinds[name].parameters)
    return kinds[name].compile(topology, target, parameters)


def target_links(topology: Topology, target: str) -> tuple[tuple[str, ...], str]:
    """(names of links, site that it is limited toward or "") of a fault target.

    ``north`` is a link both ways, ``north:west`` its direction toward west, the name of a duct every link inside.
    Raises UnknownName.
    """
    name, _, toward = target.partition(":")
    links = {link.name: link for link in topology.links}
    if name in links:
        if toward and toward not in links[name].between:
            raise UnknownName(f"end of link {name}", toward, links[name].between)
        return (name,), toward
    shared = tuple(link.name for link in topology.links if name in link.via)
    if shared and not toward:
        return shared, ""
    raise UnknownName("link or duct", target, [*links, *(duct.name for duct in topology.ducts)])
