"""A measured audit: the table matches what happened, and nothing is left behind, however it ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import host_stalls
import pytest
from builders.commands import argv_of, piped
from builders.json_files import read_json
from oracles import oracle

from testbed.host import fork_server
from testbed.host.files import catalog
from testbed.lab.run import measured_audit

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(fork_server.missing()), reason="needs torch"),
    pytest.mark.alone,
]


@pytest.mark.thorough
def test_each_cut_is_measured_in_one_lab(state_folder: Path) -> None:
    """Of two diverse fibers each one's cut leaves the other: the job goes on while it lasts."""
    name = oracle.unused_name()
    topology = catalog.load_topology("metro-40km", {"sites.east.nodes": 1, "sites.west.nodes": 1})
    began = time.monotonic()
    found = measured_audit.measure(topology, hold_s=1.5, name=name, allow_uncertified=True)
    stalled_s = host_stalls.stalled_s(began, time.monotonic())
    assert (found.status, found.left) == ("finished", ())
    assert [it.duct for it in found.impacts] == ["north", "south"]
    for impact in found.impacts:
        assert impact.came_back
        assert 1.4 <= impact.lasted_s < 5.0 + stalled_s
        assert impact.steps_per_s_during > 0, "there is another fiber"
    assert found.directory is not None and (found.directory / "ranks" / "rank-0.jsonl").exists()
    assert oracle.left_behind(name, state_folder) == []


@pytest.mark.thorough
def test_an_interruption_keeps_what_was_measured(state_folder: Path) -> None:
    name = oracle.unused_name()
    argv = argv_of(f"audit metro-40km --measure --name {name} --hold 1s")
    argv += ["--set", "sites.east.nodes=1", "--set", "sites.west.nodes=1", "--allow-uncertified"]
    process = piped(argv, env={**os.environ, "COLUMNS": "150"})
    for line in process.stderr:
        if "cut: south" in line:
            process.send_signal(signal.SIGINT)
            break
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted" in said
    assert "north" in said.rpartition("Measured")[2], "the first cut was over"
    assert "not cut: south" in said
    (run,) = (state_folder.parent / "runs").glob(f"{name}-*/run.json")
    assert read_json(run)["status"] == "interrupted"
    assert oracle.left_behind(name, state_folder) == []
