"""Sites of unequal size or speed: what each strategy says of them before anything is built, and declared speeds."""

from __future__ import annotations

import itertools

import pytest
from builders.inputs import by_input
from builders.topologies import topology

from testbed.core.topology.model import Topology
from testbed.core.training.strategies_built import BUILT
from testbed.core.training.twin import Mistake
from testbed.core.workload import workload_layout
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.core.workload.workload_words import changed
from testbed.errors import FileMistakes

PAIRED = {"hsdp", "pipeline", "tensor", "moe", "torchft-diloco"}
"""Rank i of each site needs the ranks i of all others."""


def unlike(*sizes: int) -> Topology:
    """Return sites of these sizes, each linked with each."""
    nodes = dict(zip(("east", "west", "middle"), sizes, strict=False))
    sites = ", ".join(f"{name}: {{nodes: {size}}}" for name, size in nodes.items())
    links = ", ".join(f"{a}-{b}: {{between: [{a}, {b}], km: 40}}" for a, b in itertools.combinations(nodes, 2))
    return topology(f"name: unlike\nscale: 1000\nsites: {{{sites}}}\nlinks: {{{links}}}\n")


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1, 2)])
@pytest.mark.parametrize("name", sorted(BUILT))
def test_sites_of_unequal_size_are_trained_on_or_refused_in_words(name: str, sizes: tuple[int, ...]) -> None:
    workload = AgentWorkload(20, layers=6, strategy=name)
    wrong = mistakes(workload, *sizes)
    if name in PAIRED:
        assert any("ranks" in mistake.message for mistake in wrong) and all(mistake.fix for mistake in wrong), wrong
        return
    assert wrong == []
    twin = workload_layout.twin_of(workload, unlike(*sizes))
    # Something crosses, and at the end all ranks have the same.
    sites, steps = twin.layout.sites, twin.layout.steps
    assert any(len({sites[rank] for rank in operation.ranks}) > 1 for operation in twin.operations(steps))
    ranks = tuple(range(sum(sizes)))
    assert name == "fsdp" or any(equal.ranks == ranks for equal in twin.equal(steps))


def mistakes(workload: AgentWorkload, *sizes: int) -> list[Mistake]:
    return [mistake for mistake in workload_layout.examine(workload, unlike(*sizes)) if not mistake.warning]


def declared(compute: object, strategy: str = "diloco:pace=time") -> AgentWorkload:
    return changed(AgentWorkload(20), strategy, compute)


def test_speeds_are_read_and_written_again() -> None:
    found = declared("{at_least: 80ms, speeds: {west: 0.5}}")
    assert found.compute == DeclaredCompute(0.08, speeds={"west": 0.5})
    assert found.step_s == 0.16, "that of the slowest site"
    assert changed(AgentWorkload(20), None, found.compute).compute == found.compute
    layout = workload_layout.layout_of(found, unlike(2, 1))
    assert layout.speeds == {"west": 0.5} and layout.step_s == 0.16
    assert found.to_message(1000)["compute"]["speeds"] == {"west": 0.5}
    assert "west at 0.5 of the speed" in str(found.compute)
    real = declared({"real": True, "at_least": "80ms", "speeds": {"west": 0.5}})
    assert real.compute == DeclaredCompute(0.08, True, speeds={"west": 0.5})


@by_input(
    "compute, says",
    {
        "{at_least: 80ms, speeds: {west: 0}}": "out of range",
        "{at_least: 80ms, speeds: {west: 1.5}}": "out of range",
        "{at_least: 80ms, speeds: {west: fast}}": "speeds: ",
        "{at_least: 80ms, speeds: 0.5}": "expected the speed of each slower site",
        "{real: true, speeds: {west: 0.5}}": "expected a time",
    },
)
def test_wrong_speeds_are_refused(compute: str, says: str) -> None:
    with pytest.raises(FileMistakes) as caught:
        declared(compute)
    assert [says in it.message and bool(it.fix) for it in caught.value.findings] == [True]


@pytest.mark.parametrize(
    "compute, strategy, option, says",
    [
        ("{at_least: 80ms, speeds: {wets: 0.5}}", "diloco:pace=time", "compute", "unknown site 'wets'"),
        ("{at_least: 80ms, speeds: {west: 0.5, east: 0.5}}", "diloco", "compute", "expected a site of speed 1"),
        *(
            ("80ms", f"{name}:pace=time", "pace", "time needs the declared speeds")
            for name in ("local-sgd", "diloco", "streaming-diloco", "sparse-loco", "multi-tier")
        ),
    ],
)
def test_speeds_that_do_not_fit_the_topology_are_mistakes(compute: str, strategy: str, option: str, says: str) -> None:
    (mistake,) = mistakes(declared(compute, strategy), 2, 1)
    assert mistake.option == option and says in mistake.message and mistake.fix


@pytest.mark.parametrize("compute", ["80ms", "{at_least: 80ms, speeds: {west: 0.5}}"])
def test_async_diloco_needs_no_declared_speeds(compute: str) -> None:
    """It measures them, and takes declared ones from the beginning."""
    assert mistakes(declared(compute, "async-diloco:pace=time"), 1, 1) == []
