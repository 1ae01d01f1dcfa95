"""Cut and heal: loss of carrier, failover, faults that end by themselves, an emulator that dies."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import host_stalls
import pytest
from builders.commands import Command, check
from builders.conditions import LABS
from builders.labs import GATEWAYS, Lab, address_of, carrier_losses, is_dark, ns, watch
from oracles import oracle

import testbed
from testbed import errors

pytestmark = LABS


def stream(lab: Lab) -> oracle.Stream:
    address = address_of(lab, "west-0")
    return oracle.Stream(ns(lab, "east-0"), ns(lab, "west-0"), address)


@pytest.mark.alone
def test_both_gateways_lose_the_carrier_at_once_and_get_it_back(healthy: Lab) -> None:
    lost_s, back_s = [], []
    for _ in range(3):
        with watch(healthy, "north") as seen:
            began = time.monotonic()
            fault = healthy.cut("north")
            lost_s.append(host_stalls.elapsed_s(began, max(seen.wait(False, 2.0).values())))
            for gateway in GATEWAYS:
                assert is_dark(healthy, gateway, "north")
                assert not is_dark(healthy, gateway, "south")
                assert oracle.addresses(ns(healthy, gateway), "north").keys() == {"inet", "inet6"}, "addresses stay"
            healed = time.monotonic()
            fault.heal()
            back_s.append(host_stalls.elapsed_s(healed, max(seen.wait(True, 2.0).values())))
        assert fault.ended is not None
        assert began < fault.began < fault.ended, "one clock for everything"
    assert statistics.median(lost_s) < 0.050, lost_s
    assert statistics.median(back_s) < 0.050, back_s


@pytest.mark.alone
def test_a_stream_survives_and_hardly_notices(healthy: Lab) -> None:
    """The longest silence at the receiver around the cut and around the heal: 20 ms at most, by the median of five."""
    cuts, heals = [], []
    with stream(healthy) as flow:
        for _ in range(5):
            before = time.monotonic()
            fault = healthy.cut("north")
            oracle.until(lambda t=before: flow.flows_after(t + 0.25), 5.0, "the stream goes on over south")  # type: ignore[misc]
            cuts.append(flow.gap_s(before - 0.01, before + 0.25))
            before = time.monotonic()
            fault.heal()
            oracle.until(lambda t=before: flow.flows_after(t + 0.25), 5.0, "the stream goes on after the heal")  # type: ignore[misc]
            heals.append(flow.gap_s(before - 0.01, before + 0.25))
    assert flow.broken == ""
    assert flow.received == flow.sent
    assert statistics.median(cuts) < 0.020, cuts
    assert statistics.median(heals) < 0.020, heals


@pytest.mark.alone
def test_traffic_moves_to_the_other_fiber_and_back(healthy: Lab) -> None:
    address = address_of(healthy, "west-0", family="inet6")
    near = ns(healthy, "east-0")
    over_north = min(oracle.ping(near, address, count=50))
    with healthy.cut("north"):
        over_south = min(oracle.ping(near, address, count=50))
    again = min(oracle.ping(near, address, count=50))
    # 7 km more, there and back: 70 us, and what a busy machine adds to the least of fifty.
    assert over_south - over_north == pytest.approx(70e-6, abs=50e-6)
    assert over_south - again == pytest.approx(70e-6, abs=50e-6)


@pytest.mark.thorough
def test_with_both_fibers_dark_tcp_waits_and_goes_on(healthy: Lab) -> None:
    with stream(healthy) as flow:
        began = time.monotonic()
        for link in ("north", "south"):
            healthy.cut(link, for_s=2.0)
        oracle.until(lambda: time.monotonic() > began + 1.9, 3.0, "the cuts stand")
        assert not [t for t in flow.arrivals if began + 0.1 < t < began + 1.9], "a dark fiber passes nothing"
        oracle.until(lambda: flow.flows_after(began + 2.0), 5.0, "it resumes by TCP's own retransmission")
    assert flow.broken == ""
    assert flow.received == flow.sent


@pytest.mark.alone
def test_the_keeper_ends_a_timed_fault_with_nobody_connected(healthy: Lab, command: Command) -> None:
    with watch(healthy, "south") as seen:
        check(command(f"cut south --for 0.5s -l {healthy.name}"))
        dark = seen.wait(False, 2.0)
        lit = seen.wait(True, 5.0)
    for gateway in GATEWAYS:
        assert lit[gateway] - dark[gateway] > 0.45
        assert host_stalls.elapsed_s(dark[gateway], lit[gateway]) < 0.55
    (fault,) = [it for it in healthy.faults() if it.target == "south" and it.began > min(dark.values()) - 0.1]
    assert fault.ended is not None


def test_overlapping_cuts_of_one_fiber_end_with_the_last(healthy: Lab) -> None:
    first, second = healthy.cut("north"), healthy.cut("north")
    first.heal()
    assert is_dark(healthy, "east-gw", "north")
    assert healthy.status().links[0].faults == (second.id,)
    second.heal()
    assert not is_dark(healthy, "east-gw", "north")


def test_no_short_cut_is_swallowed(healthy: Lab) -> None:
    """The kernel's own count of lost carriers tells."""
    before = carrier_losses(healthy, "west-gw")
    for _ in range(20):
        healthy.cut("north").heal()
    assert carrier_losses(healthy, "west-gw") - before == 20
    assert len([it for it in healthy.faults() if it.ended is None]) == 0


# ---- an emulator that dies


@pytest.mark.alone
def test_a_dead_emulator_is_a_cut(doomed: Lab) -> None:
    (pid,) = oracle.emulator_pids(doomed.name)
    with watch(doomed, "north") as north, watch(doomed, "south") as south:
        killed = time.monotonic()
        oracle.kill([pid])
        for seen in (north, south):
            assert host_stalls.elapsed_s(killed, max(seen.wait(False, 2.0).values())) < 0.2
    oracle.until(lambda: doomed.status().state == "degraded", 2.0, "status says degraded")
    status = doomed.status()
    assert [why for why in status.why if "emulator died" in why and f"testbed down {doomed.name}" in why]
    assert next(it for it in testbed.labs() if it.name == doomed.name).state == "degraded"
    fault = doomed.cut("north")
    fault.heal()
    doomed.heal()
    for link in ("north", "south"):
        for gateway in GATEWAYS:
            assert is_dark(doomed, gateway, link), "healing does not light what nothing forwards"
    assert doomed.status().state == "degraded"


def test_a_dead_keeper_takes_the_light_with_it_and_heal_works_without(doomed: Lab, state_folder: Path) -> None:
    doomed.cut("north")
    (keeper,) = oracle.keeper_pids(doomed.name, state_folder)
    with watch(doomed, "south") as south:
        oracle.kill([keeper])
        south.wait(False, 2.0)
    oracle.until(lambda: not oracle.emulator_pids(doomed.name), 5.0, "the emulator goes with its keeper")
    status = doomed.status()
    assert status.state == "degraded"
    assert [why for why in status.why if "keeper is gone" in why]
    assert [why for why in status.why if "fault f1 (cut north) is still active" in why]
    with pytest.raises(errors.UnknownName, match="did you mean north"):
        doomed.heal("nrth")
    assert doomed.heal("south") == ()
    doomed.heal()
    assert not [why for why in doomed.status().why if "is still active" in why]
    for link in ("north", "south"):
        assert is_dark(doomed, "east-gw", link)
