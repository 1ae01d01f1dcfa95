"""Fabrics with a rate beside fibers of netem: both are queues of the kernel, and neither may disturb the other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from oracles import oracle

import testbed
from testbed.core.topology import resolve
from testbed.host.emulators.netem import available

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [pytest.mark.netns, pytest.mark.thorough, pytest.mark.timing("a lab within its time limits")]

LAB = b"""
scale: 1000
sites:
  east: {nodes: 3, fabric: {rate: 60G, oversubscription: 2}}
  west: {nodes: 2, fabric: {rate: 40G}}
links:
  north: {between: [east, west], km: 40}
"""


def test_a_fabric_keeps_its_rates_beside_fibers_of_netem(lab_name: str, state_folder: Path) -> None:
    # Uncertified is allowed: one noisy CPU may push a median out of tolerance. What was measured is judged below.
    topology = resolve.load_text(LAB, "fabrics.yaml")
    with testbed.up(topology, name=lab_name, agents=False, emulator="netem", allow_uncertified=True) as lab:
        certificate = lab.certificate
        assert certificate is not None
        written = json.loads((state_folder / "labs" / lab_name / "certificate.json").read_text())
        assert written["emulator"] == "netem"
        found = {it.site: {rate.path: rate for rate in it.rates} for it in certificate.fabrics}
        print([(path, rate.target_bps, rate.measured_bps) for rates in found.values() for path, rate in rates.items()])
        assert set(found) == {"east", "west"} and "core" in found["east"]
        assert found["east"]["core"].target_bps == 90e6 and found["west"]["west-0 > west-1"].target_bps == 40e6
        for rates in found.values():
            for rate in rates.values():
                # One CPU need not fill the port; that it is not wider it can show.
                assert rate.measured_bps is not None
                assert 0.5 * rate.target_bps < rate.measured_bps < 1.1 * rate.target_bps
        (fiber,) = written["links"]
        for direction in fiber["directions"]:
            assert direction["lost"] == 0 and abs(direction["error_s"]["median"]) < 0.3e-3
    assert oracle.left_behind(lab_name, state_folder) == []
