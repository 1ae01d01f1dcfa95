"""Faults of one direction, and timed faults, on a running lab: effects on carriers, pings and datagrams."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import math
import re
import statistics
import time
from pathlib import Path
from typing import Any

import host_stalls
import pytest
from builders.commands import Command, check_refused
from builders.conditions import LABS
from builders.labs import GATEWAYS, Lab, address_of, carrier_losses, is_dark, ns, run_in, watch
from oracles import oracle

from testbed.errors import UserError

pytestmark = LABS

FAR_S = 0.6
"""One way, of a fiber that is long enough to be cut while a ping is under way."""


def ping(lab: Lab, here: str, there: str, link: str, count: int = 3, wait_s: float = 0.3) -> list[float]:
    """Between the two ends of one link: no other way leads there."""
    return oracle.ping(ns(lab, here), address_of(lab, there, link), count=count, wait_s=wait_s)


def losses(lab: Lab) -> dict[str, int]:
    """Return how often both ends of north have lost the carrier."""
    return {gateway: carrier_losses(lab, gateway) for gateway in GATEWAYS}


def losses_since(lab: Lab, before: dict[str, int]) -> dict[str, int]:
    return {gateway: count - before[gateway] for gateway, count in losses(lab).items()}


def in_force(lab: Lab, link: str) -> list[dict[str, Any]]:
    """What `status --json` tells of both directions of a link."""
    (found,) = [it for it in dataclasses.asdict(lab.status())["links"] if it["name"] == link]
    return list(found["in_force"])


def counted(lab: Lab, gateway: str, way: str, link: str = "north") -> int:
    (found,) = oracle.ip(ns(lab, gateway), "-s", "link", "show", "dev", link)
    return int(found["stats64"][way]["packets"])


def echoes(lab: Lab, gateway: str) -> int:
    """How many pings have arrived there (RFC 2011, icmpInEchos)."""
    said = run_in(lab, gateway, "cat /proc/net/snmp")
    names, values = (line.split() for line in said.splitlines() if line.startswith("Icmp:"))
    return int(values[names.index("InEchos")])


# ---- cuts of one direction


def test_a_cut_of_one_direction_takes_the_carrier_of_its_receiver_alone(healthy: Lab) -> None:
    before = losses(healthy)
    with healthy.cut("north:west"):
        oracle.until(lambda: is_dark(healthy, "west-gw", "north"), 2.0, "west lost the carrier")
        assert not is_dark(healthy, "east-gw", "north")
        heard = counted(healthy, "east-gw", "rx")
        assert ping(healthy, "west-gw", "east-gw", "north") == [], "a port without light does not send"
        assert counted(healthy, "east-gw", "rx") == heard
        sent = counted(healthy, "east-gw", "tx")
        assert ping(healthy, "east-gw", "west-gw", "north") == []
        assert counted(healthy, "east-gw", "tx") > sent, "east goes on sending into the dark"
        assert ping(healthy, "east-gw", "west-gw", "south"), "the other fiber is as it was"
    oracle.until(lambda: ping(healthy, "east-gw", "west-gw", "north", 1), 5.0, "it passes again")
    assert losses_since(healthy, before) == {
        "east-gw": 0,
        "west-gw": 1,
    }


def test_a_signalled_cut_of_one_direction_takes_both_carriers(healthy: Lab) -> None:
    with watch(healthy, "north") as seen, healthy.cut("north:west", carrier="both"):
        seen.wait(False, 2.0)


@pytest.mark.parametrize("target", ["north:west", "north"])
def test_a_silent_cut_takes_no_carrier_and_passes_nothing(healthy: Lab, target: str) -> None:
    before = losses(healthy)
    assert ping(healthy, "east-gw", "west-gw", "north")
    dropped = healthy.status().links[0].drops
    with healthy.cut(target, carrier="silent"):
        arrived = {gateway: counted(healthy, gateway, "rx") for gateway in GATEWAYS}
        assert ping(healthy, "east-gw", "west-gw", "north") == []
        assert ping(healthy, "west-gw", "east-gw", "north") == []
        assert counted(healthy, "west-gw", "rx") == arrived["west-gw"], "nothing comes toward west"
        one_way = target == "north:west"
        assert (counted(healthy, "east-gw", "rx") > arrived["east-gw"]) is one_way, "toward east it is as it was"
    assert healthy.status().links[0].drops > dropped
    assert losses(healthy) == before
    assert len(ping(healthy, "east-gw", "west-gw", "north")) == 3


@pytest.mark.parametrize(
    ("target", "carrier", "arrives"),
    [
        ("north", "both", False),
        ("north:west", "receiver", False),
        ("north:east", "receiver", None),
        ("north:west", "silent", True),
        ("north", "silent", True),
    ],
)
@pytest.mark.alone
def test_what_is_in_flight(healthy: Lab, target: str, carrier: str, arrives: bool | None) -> None:
    """A packet toward west that was sent before the cut and is due after the heal.

    Under way to the end that stays up it is lost on fiberd, which empties both directions, and arrives on netem.
    """
    if arrives is None:
        arrives = not oracle.emulator_pids(healthy.name)
    far = address_of(healthy, "west-gw", "north")
    assert oracle.ping(ns(healthy, "east-gw"), far), "neighbours know each other"
    with concurrent.futures.ThreadPoolExecutor(1) as pool, healthy.inject("impair", "north", delay=f"{FAR_S}s"):
        sent, heard = counted(healthy, "east-gw", "tx"), echoes(healthy, "west-gw")
        answer = pool.submit(oracle.ping, ns(healthy, "east-gw"), far, wait_s=3 * FAR_S)
        oracle.until(lambda: counted(healthy, "east-gw", "tx") > sent, 2.0, "it is under way")
        fault = healthy.cut(target, carrier=carrier)
        fault.heal()
        assert echoes(healthy, "west-gw") == heard, "the machine was too slow: it had arrived before the heal"
        assert bool(answer.result()) is arrives


# ---- flaps


@pytest.mark.alone
def test_a_flap_is_dark_as_often_and_as_long_as_was_asked_and_ends_by_itself(healthy: Lab) -> None:
    before = losses(healthy)
    with watch(healthy, "north") as seen:
        seen.wait(True, 2.0)
        fault = healthy.inject("flap", "north", down="100ms", up="150ms", times=5, wait=True)
        lit = seen.wait(True, 2.0)
    assert losses_since(healthy, before) == dict.fromkeys(GATEWAYS, 5)
    for gateway in GATEWAYS:
        changes = [(t, up) for t, label, up in seen.changes if label == gateway][1:]
        dark = [after - t for (t, up), (after, _) in itertools.pairwise(changes) if not up]
        shone = [after - t for (t, up), (after, _) in itertools.pairwise(changes) if up]
        assert (len(dark), len(shone)) == (5, 4)
        assert statistics.median(dark) == pytest.approx(0.1, abs=0.02)
        assert statistics.median(shone) == pytest.approx(0.15, abs=0.02)
        assert lit[gateway] - changes[0][0] >= 0.9
        assert host_stalls.elapsed_s(changes[0][0], lit[gateway]) <= 1.3, "lateness adds up"
    assert fault.ended is not None
    assert fault.ended - fault.began >= 5 * 0.1 + 4 * 0.15
    assert host_stalls.elapsed_s(fault.began, fault.ended) < 1.6


@pytest.mark.alone
def test_a_flap_ends_when_its_time_is_over_and_can_be_healed_in_the_dark(healthy: Lab) -> None:
    with watch(healthy, "south") as seen:
        fault = healthy.inject("flap", "south", down="10s", up="10s", for_s=0.3)
        dark, lit = seen.wait(False, 2.0), seen.wait(True, 2.0)
        assert lit["east-gw"] - dark["east-gw"] >= 0.28
        assert host_stalls.elapsed_s(dark["east-gw"], lit["east-gw"]) < 0.6
        fault = healthy.inject("flap", "south:west", down="10s", up="10s")
        oracle.until(lambda: is_dark(healthy, "west-gw", "south"), 2.0, "it is dark")
        fault.refresh()
        assert (fault.ended, fault.phase) == (None, "dark")
        assert healthy.status().links[1].phases == (f"{fault.id} dark",)
        healthy.heal("south")
        seen.wait(True, 2.0)
    assert ping(healthy, "east-gw", "west-gw", "south")


def test_a_cut_outlasts_a_flap_of_the_same_fiber(healthy: Lab) -> None:
    flap = healthy.inject("flap", "north", down="30ms", up="30ms")
    with healthy.cut("north"):
        oracle.until(lambda: is_dark(healthy, "east-gw", "north"), 2.0, "it is dark")
        before = carrier_losses(healthy, "east-gw")
        time.sleep(0.2)  # several turns of the flap, which must change nothing
        assert carrier_losses(healthy, "east-gw") == before
        assert is_dark(healthy, "east-gw", "north")
    oracle.until(lambda: carrier_losses(healthy, "east-gw") > before + 1, 2.0, "it goes on flapping")
    flap.heal()


# ---- steps of latency, brown-outs


@pytest.mark.parametrize(
    ("target", "written", "more_s"),
    [("south:west", {"extra": "1ms"}, 1e-3), ("south", {"km": "247"}, 2e-3), ("south", {"delay": "1.235ms"}, 2e-3)],
)
@pytest.mark.alone
def test_a_step_of_latency_is_seen_by_ping(healthy: Lab, target: str, written: dict[str, Any], more_s: float) -> None:
    here, far = ns(healthy, "east-gw"), address_of(healthy, "west-gw", "south")
    before = oracle.undelayed_pings(here, far, count=60)
    with healthy.inject("latency-step", target, **written):
        during = oracle.undelayed_pings(here, far, count=60)
    after = oracle.undelayed_pings(here, far, count=60)
    assert min(len(before), len(during), len(after)) >= 10, "of the others the host delayed each"
    assert min(during) - min(before) == pytest.approx(more_s, abs=50e-6)
    assert statistics.median(during) - statistics.median(before) == pytest.approx(more_s, abs=100e-6)
    assert min(after) == pytest.approx(min(before), abs=50e-6)


@pytest.mark.thorough
def test_a_later_fault_leaves_what_an_earlier_one_states(healthy: Lab) -> None:
    """1000 pings over a fiber that loses a fifth each way: 640 are answered, with a standard deviation of 15."""

    def answered() -> list[float]:
        return ping(healthy, "east-gw", "west-gw", "north", count=1000, wait_s=0.1)

    with healthy.inject("impair", "north", loss="20%") as lossy:
        with healthy.inject("latency-step", "north", extra="1ms") as longer:
            found = answered()
            assert 640 - 75 < len(found) < 640 + 75
            assert min(found) >= 2.2e-3  # calibration takes some 20 us off each way
            for it in in_force(healthy, "north"):
                told = {value["key"]: value["by"] for value in it["values"] if value["by"] != ["link"]}
                assert told == {"delay": ["link", longer.id], "loss": [lossy.id]}
                assert it["impairment"]["loss"] == 0.2
                assert it["impairment"]["delay_s"] == pytest.approx(1.2e-3)
            lossy.heal()
            found = answered()
            assert len(found) == 1000
            assert min(found) >= 2.2e-3  # calibration takes some 20 us off each way
        assert min(answered()) < 2.2e-3
    assert all(value["by"] == ["link"] for it in in_force(healthy, "north") for value in it["values"])


def test_one_cut_darkens_whatever_began_later(healthy: Lab) -> None:
    with healthy.inject("cut", "north", carrier="silent") as cut:
        with healthy.inject("impair", "north", delay="1ms"):
            assert ping(healthy, "east-gw", "west-gw", "north") == []
            assert [it["dark_by"] for it in in_force(healthy, "north")] == [[cut.id]] * 2
        assert ping(healthy, "east-gw", "west-gw", "north") == []
    assert ping(healthy, "east-gw", "west-gw", "north")


def test_what_one_netem_cannot_hold_is_refused_on_fiberd_too(healthy: Lab) -> None:
    with healthy.inject("jitter", "north", amount="10us") as jitter:
        with pytest.raises(UserError, match=f"beside {jitter.id} .*; heal {jitter.id} first"):
            healthy.inject("impair", "north", reorder="1%", reorder_by="1ms")
        assert [it.id for it in healthy.faults() if it.ended is None] == [jitter.id]
    healthy.inject("impair", "north", reorder="1%", reorder_by="1ms").heal()


@pytest.mark.alone
def test_the_gap_before_a_step_of_latency_is_dark_and_silent(healthy: Lab) -> None:
    before = carrier_losses(healthy, "west-gw", "south")
    far = address_of(healthy, "west-gw", "south")
    fault = healthy.inject("latency-step", "south", extra="1ms", gap="400ms")
    found = oracle.udp_super_packets(
        ns(healthy, "east-gw"), ns(healthy, "west-gw"), far, packets=160, segments=1, size=64, pause_s=0.005
    )
    assert found == sorted(found)
    assert found[-1] == 159
    assert found[0] * 0.005 == pytest.approx(0.4, abs=0.1)
    assert len(found) == 160 - found[0], "it is dark once, then it is lit"
    assert carrier_losses(healthy, "west-gw", "south") == before
    fault.refresh()
    assert fault.phase == "delay + 1 ms"


@pytest.mark.alone
def test_a_brown_out_loses_more_and_more(healthy: Lab) -> None:
    """One percent to ninety within two seconds: 400 datagrams, one every 5 ms, against the ramp's own sum."""
    far = address_of(healthy, "west-gw", "north")
    fault = healthy.inject("brown-out", "north:west", loss="90%", over="2s", hold="200ms", from_="1%")
    found = oracle.udp_super_packets(
        ns(healthy, "east-gw"), ns(healthy, "west-gw"), far, packets=400, segments=1, size=64, pause_s=0.005
    )
    lost = sorted(set(range(400)).difference(found))
    expected = [0.01 * 90 ** (number / 400) for number in range(400)]
    for half in (range(200), range(200, 400)):
        mean = sum(expected[it] for it in half)
        sigma = math.sqrt(sum(expected[it] * (1 - expected[it]) for it in half))
        # A tenth more for datagrams that were sent a little later than the ramp began.
        assert mean * 0.9 - 4.9 * sigma <= sum(it in half for it in lost) <= mean * 1.1 + 4.9 * sigma
    oracle.until(lambda: not is_dark(healthy, "west-gw", "north"), 1.0, "no carrier was lost")
    oracle.until(lambda: len(ping(healthy, "east-gw", "west-gw", "north", 20)) == 20, 5.0, "it is over by itself")
    fault.refresh()
    assert fault.ended is not None
    assert fault.ended - fault.began >= 2.2 and host_stalls.elapsed_s(fault.began, fault.ended) < 3.0


# ---- by the command line


@pytest.mark.thorough
@pytest.mark.alone
def test_a_command_waits_for_a_fault_that_has_an_end_of_its_own(healthy: Lab, command: Command) -> None:
    began = time.monotonic()
    said = command(f"inject flap north down=50ms up=50ms times=2 --wait -l {healthy.name}")
    stalled_s = host_stalls.stalled_s(began, time.monotonic())
    assert said.returncode == 0, said.stderr
    (lasted,) = re.findall(r"lasted ([\d.]+) s", said.stdout)
    assert 0.15 <= float(lasted) < 0.6 + stalled_s
    check_refused(command(f"inject flap north down=50ms up=50ms --wait -l {healthy.name}"), 2, "--for")


def test_mistakes_are_refused_before_anything_is_touched(healthy: Lab, command: Command) -> None:
    before = len(healthy.faults())
    check_refused(command(f"inject flap north down=1ms times=never -l {healthy.name}"), 2, "down=1ms", "times=never")
    with pytest.raises(UserError):
        healthy.inject("latency-step", "north")
    assert len(healthy.faults()) == before


# ---- a keeper that dies in the middle


@pytest.mark.parametrize("moment", ["dark", "lit"])
def test_a_keeper_that_dies_in_the_middle_of_a_flap_leaves_nothing_that_heal_does_not_end(
    doomed: Lab, state_folder: Path, moment: str, command: Command
) -> None:
    """fiberd's fibers go dark with the keeper; netem's are the kernel's and stay as they were until `heal`."""
    fiberd = bool(oracle.emulator_pids(doomed.name))
    up = {"dark": "200ms", "lit": "10s"}[moment]
    down = {"dark": "10s", "lit": "200ms"}[moment]
    (keeper,) = oracle.keeper_pids(doomed.name, state_folder)
    with watch(doomed, "north") as north, watch(doomed, "south") as south:
        doomed.inject("flap", "north", down=down, up=up)
        north.wait(False, 2.0)
        if moment == "lit":
            north.wait(True, 2.0)
        doomed.inject("brown-out", "south", loss="5%", over="100s")
        oracle.kill([keeper])
        if fiberd:
            south.wait(False, 5.0)
            north.wait(False, 5.0)
        else:
            oracle.until(lambda: not oracle.keeper_pids(doomed.name, state_folder), 5.0, "the keeper is gone")
            assert not is_dark(doomed, "east-gw", "south")
            assert ping(doomed, "east-gw", "west-gw", "south", 20), "the kernel goes on"
    why = " ".join(doomed.status().why)
    assert "keeper is gone" in why
    assert ("lit, unsupervised" in why) is not fiberd
    assert ("fault f1 (flap north) is still active" in why) is (moment == "dark")
    assert ("fault f1 (flap north) is unfinished" in why) is (moment == "lit")
    assert "fault f2 (brown-out south) is still active" in why
    said = command(f"heal -l {doomed.name}")
    assert said.returncode == 0, said.stderr
    assert "f1: flap north" in said.stdout and "f2: brown-out south" in said.stdout
    assert "fault f" not in " ".join(doomed.status().why)
    for link in ("north", "south"):
        for gateway in GATEWAYS:
            assert is_dark(doomed, gateway, link), "without a keeper no fiber is lit"
    assert ping(doomed, "east-gw", "west-gw", "north", 1) == []
    # That `down` leaves nothing is for the fixture of the lab's name to see.
