"""Sites of unequal size or speed: what each strategy says of them before anything is built, and declared speeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders.inputs import by_input

from testbed.core.topology import resolve
from testbed.core.topology.model import Topology
from testbed.core.training.strategies_built import BUILT
from testbed.core.workload import workload_layout, workload_words
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import FileMistakes

PAIRED = {"hsdp", "pipeline", "tensor", "moe", "torchft-diloco"}
"""Rank i of each site needs the ranks i of all others."""


def _topology(sizes: Sequence[int]) -> Topology:
    names = ["east", "west", "middle"][: len(sizes)]
    sites = ", ".join(f"{name}: {{nodes: {size}}}" for name, size in zip(names, sizes, strict=True))
    links = ", ".join(
        f"link-{left}-{right}: {{between: [{left}, {right}], km: 40}}"
        for index, left in enumerate(names)
        for right in names[index + 1 :]
    )
    text = f"name: unlike\nscale: 1000\nsites: {{{sites}}}\nlinks: {{{links}}}\n"
    return resolve.load_text(text.encode(), "unlike.yaml")


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1, 2)])
@pytest.mark.parametrize("name", sorted(BUILT))
def test_sites_of_unequal_size_are_trained_on_or_refused_in_words(name: str, sizes: tuple[int, ...]) -> None:
    workload = AgentWorkload(20, layers=6, strategy=name)
    topology = _topology(sizes)
    wrong = [it for it in workload_layout.examine(workload, topology) if not it.warning]
    if name in PAIRED:
        assert any("ranks" in it.message for it in wrong) and all(it.fix for it in wrong), wrong
        return
    assert wrong == []
    twin = workload_layout.twin_of(workload, topology)
    # Something crosses, and at the end all ranks have the same.
    sites = twin.layout.sites
    assert any(len({sites[rank] for rank in it.ranks}) > 1 for it in twin.operations(twin.layout.steps))
    ranks = tuple(range(sum(sizes)))
    assert name == "fsdp" or any(it.ranks == ranks for it in twin.equal(twin.layout.steps))


def _said(compute: object, strategy: str = "diloco:pace=time") -> AgentWorkload:
    return workload_words.changed(AgentWorkload(20), strategy, compute)


def test_speeds_are_read_and_written_again() -> None:
    found = _said("{at_least: 80ms, speeds: {west: 0.5}}")
    assert found.compute == DeclaredCompute(0.08, speeds={"west": 0.5})
    assert found.step_s == 0.16, "that of the slowest site"
    assert workload_words.changed(AgentWorkload(20), None, found.compute).compute == found.compute
    layout = workload_layout.layout_of(found, _topology((2, 1)))
    assert layout.speeds == {"west": 0.5} and layout.step_s == 0.16
    assert found.to_message(1000)["compute"]["speeds"] == {"west": 0.5}
    assert "west at 0.5 of the speed" in str(found.compute)
    real = _said({"real": True, "at_least": "80ms", "speeds": {"west": 0.5}})
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
        _said(compute)
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
    found = workload_layout.examine(_said(compute, strategy), _topology((2, 1)))
    wrong = [it for it in found if not it.warning]
    assert len(wrong) == 1 and wrong[0].option == option and says in wrong[0].message and wrong[0].fix, found


def test_async_diloco_needs_no_declared_speeds() -> None:
    """It measures them, and takes declared ones from the beginning."""
    for compute in ("80ms", "{at_least: 80ms, speeds: {west: 0.5}}"):
        assert not [it for it in workload_layout.examine(_said(compute, "async-diloco:pace=time"), _topology((1, 1)))
                    if not it.warning]  # fmt: skip
