"""A whole lab on netem: built, certified, changed by a fault, cut, taken down."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from contract.capture_contract import CaptureContract
from contract.long_names_contract import FILE, LINKS, SITES, long_name
from oracles import oracle

import testbed
from testbed.host.emulators.netem import available

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [pytest.mark.netns, pytest.mark.timing("a lab within its time limits")]


@pytest.mark.timing("rate of a fiber on the one CPU of a virtual machine")
def test_a_lab_comes_up_certified_and_goes(lab_name: str, state_folder: Path, tmp_path: Path) -> None:
    # Uncertified is allowed: one noisy CPU may push a median out of tolerance. What was measured is judged below.
    # 80 Mb/s: 800 Mb/s in four directions stall that CPU so often that no pair of packets lies between two stalls.
    with testbed.up(
        testbed.load("metro-40km", set={"scale": 10_000}), name=lab_name, agents=False, allow_uncertified=True
    ) as lab:
        certificate = json.loads((state_folder / "labs" / lab_name / "certificate.json").read_text())
        both = [it for link in certificate["links"] for it in link["directions"]]
        print([(it["direction"], it["error_s"], it["taken_off_s"], it["rate"]) for it in both])
        assert certificate["emulator"] == "netem"
        for link in certificate["links"]:
            for direction in link["directions"]:
                assert abs(direction["error_s"]["median"]) < 0.3e-3
                assert direction["lost"] == 0
                assert (direction["between"] == "nodes") == (direction["taken_off_s"] > 0)
                if direction["taken_off_s"]:
                    assert direction["measured_s"]["min"] >= direction["target_s"], "no packet is early"
                rate = direction["rate"]
                if rate is None:
                    assert direction["starved"], "the host left too few packets on time"
                    continue
                # One CPU need not fill the line, but must not exceed it.
                assert 0.5 * rate["target_bps"] < rate["measured_bps"] < 1.1 * rate["target_bps"]
        assert any(direction["taken_off_s"] for direction in both)
        journal = (state_folder / "labs" / lab_name / "journal.jsonl").read_text()
        assert '"emulator":"netem"' in journal

        def inside(node: str, *argv: str) -> str:
            return oracle.run("ip", "netns", "exec", oracle.netns(lab_name, node), *argv)

        CaptureContract().test_packets_are_captured_on_both_sides_of_the_fiber(lab, inside, tmp_path)
        east = oracle.netns(lab_name, "east-gw")
        lab.cut("north")
        oracle.until(lambda: oracle.no_carrier(east, "north"), 3.0, "north is dark")
        lab.heal()
        oracle.until(lambda: not oracle.no_carrier(east, "north"), 3.0, "north is lit")
    assert oracle.left_behind(lab_name, state_folder) == []


def test_names_of_40_characters(lab_name: str, state_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(FILE)
    name, direction = long_name(lab_name), f"{LINKS[0]}:{SITES[1]}"

    def port(site: str) -> dict[str, object]:
        links = json.loads(oracle.run("ip", "-n", oracle.netns(name, f"{site}-gw"), "-d", "-j", "link"))
        (found,) = (it for it in links if LINKS[0] in it.get("altnames", []))
        return found  # type: ignore[no-any-return]

    topology = testbed.load(str(tmp_path / "long.yaml"))
    with testbed.up(topology, name=name, agents=False, emulator="netem", allow_uncertified=True) as lab:
        full = {it["gso_max_segs"] for it in map(port, SITES)}
        with lab.inject("impair", direction, loss="1%"):
            # Loss is per segment, so the sender sends no super-packets meanwhile: the gateway at the other end.
            assert port(SITES[0])["gso_max_segs"] == 1 and {port(SITES[1])["gso_max_segs"]} == full
        assert {it["gso_max_segs"] for it in map(port, SITES)} == full
        with lab.cut(direction):
            oracle.until(lambda: "NO-CARRIER" in port(SITES[1])["flags"], 5.0, "it is dark")  # type: ignore[operator]
            assert "NO-CARRIER" not in port(SITES[0])["flags"]  # type: ignore[operator]
        oracle.until(lambda: "NO-CARRIER" not in port(SITES[1])["flags"], 5.0, "it is lit")  # type: ignore[operator]
    assert oracle.left_behind(name, state_folder) == []
