"""Fabrics with a rate in containers: the certificate of their ports and core, and what the kernel has in each."""

from __future__ import annotations

import json
import subprocess

from builders.commands import run_line
from builders.conditions import THOROUGH
from builders.labs import bring_up
from oracles import oracle

from testbed.core.topology import resolve

pytestmark = THOROUGH

LAB = b"""
scale: 1000
sites:
  east: {nodes: 3, fabric: {rate: 200G, oversubscription: 2}}
  west: {nodes: 1}
links:
  north: {between: [east, west], km: 40}
"""


def _tc(lab: str, node: str) -> list[str]:
    """Return the kinds of queues of a container, as seen from the host."""
    pid = json.loads(
        subprocess.run(["docker", "inspect", f"clab-{lab}-{node}"], check=True, capture_output=True).stdout
    )
    shown = run_line("nsenter -t", str(pid[0]["State"]["Pid"]), "-n", "tc", "-j", "qdisc")
    return [it["kind"] for it in json.loads(shown)]


def test_ports_and_core_keep_their_rates(containers: str) -> None:
    name = oracle.unused_name()
    topology = resolve.load_text(LAB, "fabrics.yaml")
    # Uncertified is allowed: a fiber may be late on a busy machine. The rates of the fabric are judged below.
    with bring_up(name, topology, driver="containerlab") as lab:
        assert lab.certificate is not None
        (east,) = lab.certificate.fabrics
        found = {it.path: it for it in east.rates}
        assert set(found) == {"east-0 > east-1", "east-1 > east-2", "east-2 > east-0", "core"}
        assert found["core"].target_bps == 300e6 and found["east-0 > east-1"].target_bps == 200e6
        print([(path, it.target_bps, it.measured_bps) for path, it in found.items()])
        for rate in found.values():
            assert rate.measured_bps is not None, rate
            assert 0.8 * rate.target_bps < rate.measured_bps < 1.05 * rate.target_bps
        assert "tbf" in _tc(name, "east-gw") and "tbf" not in _tc(name, "west-gw")
    left = run_line("docker ps --all --quiet")
    assert left == ""
