"""A workload on a topology: the layout that its twin is asked about, and what is wrong with the two together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from testbed.core.physics import validity
from testbed.core.plan import build
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import validity_of
from testbed.core.training.layout import Layout, asleep_tensors, gpt_tensors
from testbed.core.training.strategies_built import make, twin_class
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Mistake, Twin
from testbed.core.user_text import unknown
from testbed.core.workload.workload import BUCKETS, AgentWorkload
from testbed.errors import FileMistakes, Finding

__all__ = ["examine", "findings", "layout_of", "refuse_mistakes", "refuse_mistakes_of", "twin_of", "twin_on"]

_MOST_STEPS = 1000
"""Steps that are searched for the smallest message."""


def layout_of(workload: AgentWorkload, topology: Topology) -> Layout:
    """Return who trains what: the ranks of ``topology``, the model and the steps of ``workload``."""
    return _layout(workload, [rank.site for rank in build.ranks(topology)], topology.scale)


def _layout(workload: AgentWorkload, sites: Sequence[str], scale: float) -> Layout:
    if workload.asleep:
        tensors = asleep_tensors(workload.elements(scale), workload.layers)
    else:
        tensors = gpt_tensors(workload.layers, workload.width, workload.context)
    return Layout(
        sites=tuple(sites),
        tensors=tensors,
        tokens=workload.batch * workload.context,
        context=workload.context,
        width=workload.width,
        layers=workload.layers,
        heads=workload.heads,
        steps=workload.steps,
        step_s=workload.step_s,
        speeds={} if workload.compute is None else workload.compute.speeds,
    )


def twin_of(workload: AgentWorkload, topology: Topology) -> Twin:
    """Return the twin of the workload's strategy, all its options filled in."""
    return twin_on(workload, [rank.site for rank in build.ranks(topology)], topology.scale)


def twin_on(workload: AgentWorkload, sites: Sequence[str], scale: float) -> Twin:
    """Return the twin of the workload's strategy in a lab of this ``scale``, of ranks at ``sites``."""
    return make(workload.strategy, workload.values(scale), _layout(workload, sites, scale))


def examine(workload: AgentWorkload, topology: Topology, unsure: Collection[str] = ()) -> tuple[Mistake, ...]:
    """Return what is wrong with the workload on this topology, all at once; warnings last.

    ``unsure``: options whose values are not known, because what is written is wrong. Only what is wrong whatever they
    are is returned.
    """
    if why := workload.refused(topology.scale):
        fix = f"write another model, or change scale: of the topology ({topology.scale:g} now)"
        return (Mistake("model", why, fix),)
    twin = twin_of(workload, topology)
    mistakes = [*_wrong_speeds(twin.layout), *twin.mistakes()]
    if unsure:
        other = {name: _other(value) if name in unsure else value for name, value in twin.values.items()}
        of_any = make(twin.name, other, twin.layout).mistakes()
        mistakes = [mistake for mistake in mistakes if mistake in of_any or mistake.option == "compute"]
    if workload.asleep and not twin.asleep:
        why = f"strategy {twin.name} splits the matrices of a real model, and the declared one only sleeps"
        mistakes.append(Mistake("compute", why, f"write compute: {{real: true, at_least: {workload.step_s:g}s}}"))
    if not unsure and all(mistake.warning for mistake in mistakes):
        mistakes += _small_messages(twin, topology)
    return tuple(sorted(mistakes, key=lambda mistake: mistake.warning))


def _wrong_speeds(layout: Layout) -> Iterator[Mistake]:
    for name in layout.speeds:
        if name not in layout.members:
            message, fix = unknown("site", name, layout.site_names)
            yield Mistake("compute", f"speeds: {message}", fix or f"write one of {', '.join(layout.site_names)}")
    if layout.speeds and not any(layout.speeds.get(name, 1.0) == 1.0 for name in layout.site_names):
        yield Mistake("compute", "speeds: expected a site of speed 1, the fastest one", "write the time of that site")


def _other(value: object) -> object:
    """Return a value far from ``value``, of the same kind."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return value * 997 + 1


def findings(
    workload: AgentWorkload,
    topology: Topology,
    file: str,
    lines: Mapping[str, int] | None = None,
    bad: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Return :func:`examine` as findings of ``file``.

    ``lines`` has the line of each key of the workload, and under "" that of the section; ``bad`` are the keys whose
    values are wrong.
    """
    at = lines or {}
    options = {option.name for option in twin_class(workload.strategy).options}
    if {*bad} - options:
        return ()  # what is known of the workload is not enough
    return tuple(
        Finding(
            file,
            at.get(mistake.option, at.get("", 0)),
            f"{mistake.option}: {mistake.message}",
            mistake.fix,
            mistake.warning,
        )
        for mistake in examine(workload, topology, bad)
    )


def refuse_mistakes(workload: AgentWorkload, topology: Topology, label: str = "the workload") -> tuple[Finding, ...]:
    """Return the warnings on a workload that no file describes. Raises FileMistakes if it has mistakes."""
    mistakes = findings(workload, topology, label)
    if wrong := [mistake for mistake in mistakes if not mistake.warning]:
        raise FileMistakes(wrong)
    return mistakes


def refuse_mistakes_of(twin: Twin, label: str) -> None:
    """Raise FileMistakes if options of ``twin`` are wrong for its layout; ``label``: where they were written."""
    mistakes = [*_wrong_speeds(twin.layout), *(mistake for mistake in twin.mistakes() if not mistake.warning)]
    if mistakes:
        raise FileMistakes(
            [Finding(label, 0, f"{mistake.option}: {mistake.message}", mistake.fix) for mistake in mistakes]
        )


def _small_messages(twin: Twin, topology: Topology) -> Iterator[Mistake]:
    """Warn of the smallest message across fibers if it is less than a packet, and is more at full scale."""
    sites = twin.layout.sites
    steps = min(twin.layout.steps, twin.cycle, _MOST_STEPS)
    exchanges = {
        _exchange(twin, operation)
        for step in range(1, steps + 1)
        for operation in twin.operations(step)
        if operation.byte_count > 0 and len({sites[rank] for rank in operation.ranks}) > 1
    }
    if not exchanges:
        return
    least = min(exchanges, key=lambda exchange: exchange.message_bytes)
    packet = min((link.mtu for link in topology.links), default=0) - validity.HEADER_BYTES
    for validity_finding in validity_of(topology, least):
        if (
            validity_finding.quantity == "operation size"
            and validity_finding.verdict == validity.FAILS
            and validity_finding.lab < packet
        ):
            where = f"the smallest message of strategy {twin.name}, {least.message_bytes:.0f} bytes,"
            reason = validity_finding.reason.replace("a message of the ring", where)
            yield Mistake("strategy", f"on {validity_finding.fiber}, {reason}", validity_finding.change, warning=True)
            return


def _exchange(twin: Twin, operation: Operation) -> validity.Exchange:
    parts = int(twin.values.get(BUCKETS, 1)) if operation.what == "gradients" else 1
    if operation.kind in ("send", "broadcast"):  # one message, not a part for each rank
        return validity.Exchange(2, 2 * operation.byte_count)
    return validity.Exchange(len(operation.ranks), operation.byte_count / parts)
