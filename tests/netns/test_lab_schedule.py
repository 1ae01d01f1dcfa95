"""Scheduled faults on real fibers: on time under load, and simultaneous if scheduled for the same time."""

from __future__ import annotations

import contextlib
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import host_stalls
import pytest
from builders.conditions import ALONE
from builders.labs import Lab, events, is_dark, keeper, ns, run_in, shared_lab
from oracles import oracle

from testbed.core.experiment.fault_schedule import Planned
from testbed.host import lab_folder
from testbed.lab.run.fault_player import FaultPlayer

pytestmark = ALONE

LINKS = [f"link{number}" for number in range(8)]
EIGHT = "scale: 1000\nsites: {east: {nodes: 1}, west: {nodes: 1}}\nlinks:\n" + "".join(
    f"  {link}: {{between: [east, west], km: 40}}\n" for link in LINKS
)


lab = shared_lab(EIGHT)


@pytest.fixture(autouse=True)
def healed(lab: Lab) -> Iterator[None]:
    yield
    lab.heal()


def play(lab: Lab, planned: list[Planned], began_t: float) -> FaultPlayer:
    """Hand everything over, as a run does when its job has begun."""
    player = FaultPlayer(lab_folder.folder(lab.name), tuple(planned))
    player.hand_over(time.monotonic(), began_t, 0, {})
    return player


def until_events(lab: Lab, kind: str, count: int, since: int, bound_s: float) -> None:
    oracle.until(lambda: len(events(lab, kind, since)) == count, bound_s, f"{count} events {kind}")


def now(lab: Lab) -> int:
    return keeper(lab).events(since=0)["next"]


@contextlib.contextmanager
def every_core_busy(for_s: float) -> Iterator[None]:
    """As the orchestrator and the ranks of a job would have it."""
    spin = f"import time; e = time.monotonic() + {for_s}\nwhile time.monotonic() < e: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def monitored(namespace: str) -> Iterator[list[tuple[float, str, bool]]]:
    """(unix seconds, interface, has a carrier) of each link event of a namespace, by the clock of ``ip monitor``, which
    runs at real-time priority: it stamps an event when it gets to run."""
    command = ["ip", "-n", namespace, "-ts", "-o", "monitor", "link"]
    seen: list[tuple[float, str, bool]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(process.pid, os.SCHED_FIFO, os.sched_param(30))
        try:
            time.sleep(0.3)  # it says nothing when it begins to listen
            yield seen
        finally:
            process.terminate()
            for line in process.stdout:
                found = re.match(r"\[(\S+)\] \d+: (\w+)@?\S*: <([^>]*)>", line)
                if found:
                    flags = found[3].split(",")
                    seen.append((datetime.fromisoformat(found[1]).timestamp(), found[2], "NO-CARRIER" not in flags))


def test_twenty_cuts_within_5_ms_of_their_time(lab: Lab) -> None:
    since = now(lab)
    planned = [Planned("cut", LINKS[number % 8], 0.05, at_s=0.3 + 0.1 * number) for number in range(20)]
    with every_core_busy(4.0), play(lab, planned, time.monotonic()):
        until_events(lab, "fault-ended", 20, since, 15.0)
    began = events(lab, "fault-began", since)
    late = [it["ack_t"] - it["planned_t"] for it in began]
    print(f"planned to acknowledged: median {statistics.median(late) * 1e3:.2f} ms, worst {max(late) * 1e3:.2f} ms")
    assert min(late) >= 0
    assert statistics.median(late) < 0.005
    assert [it["target"] for it in began] == [it.target for it in planned]


def test_eight_links_go_dark_as_one(lab: Lab) -> None:
    """Spread of the kernel's events of the eight at one gateway: the least of five, as a host may stall in any."""
    spreads = []
    for _ in range(5):
        planned = [Planned("cut", link, 0.3, at_s=0.2) for link in LINKS]
        since = now(lab)
        with monitored(ns(lab, "west-gw")) as seen, play(lab, planned, time.monotonic()):
            until_events(lab, "fault-ended", 8, since, 10.0)
            until_events(lab, "carrier", 32, since, 5.0)
        assert len({it["ack_t"] for it in events(lab, "fault-began", since)}) == 1
        dark = {name: t for t, name, lit in reversed(seen) if not lit and name in LINKS}
        assert sorted(dark) == LINKS
        wall_s = time.time() - time.monotonic()
        spreads.append(host_stalls.elapsed_s(min(dark.values()) - wall_s, max(dark.values()) - wall_s))
    print(f"spread of eight links: {[f'{it * 1e3:.2f} ms' for it in spreads]}")
    assert min(spreads) < 0.001


def test_each_carrier_was_seen_to_change_once_each_way(lab: Lab) -> None:
    since = now(lab)
    planned = [Planned("cut", link, 0.2, at_s=0.1) for link in LINKS]
    with play(lab, planned, time.monotonic()):
        oracle.until(lambda: len(events(lab, "carrier", since)) >= 32, 10.0, "two gateways, two changes each")
    changes = [(it["site"], it["link"], it["up"]) for it in events(lab, "carrier", since)]
    assert sorted(changes) == sorted((site, link, up) for site in ("east", "west") for link in LINKS for up in (0, 1))


def kernel_counts(lab: Lab) -> dict[tuple[str, str], int]:
    """How often each carrier has changed, by site and link, as each gateway's kernel counts it."""
    files = [f"/sys/class/net/{link}/carrier_changes" for link in LINKS]
    return {
        (site, link): int(count)
        for site in ("east", "west")
        for link, count in zip(LINKS, run_in(lab, f"{site}-gw", "cat", *files).split(), strict=True)
    }


def test_the_counts_of_the_kernel_prove_that_no_event_was_missed(lab: Lab) -> None:
    """Cuts and flaps at random, the shortest of 20 ms, several of them over each other. Changes that a stall keeps the
    kernel from reporting are counted."""
    chance = random.Random(6)
    planned = [
        Planned("cut", chance.choice(LINKS), chance.uniform(0.02, 0.2), at_s=chance.uniform(0.2, 3.0))
        for _ in range(40)
    ]
    fast = {"down": "20ms", "up": "20ms", "times": "15"}
    planned += [Planned("flap", link, None, at_s=chance.uniform(0.2, 2.0), parameters=fast) for link in LINKS[:3]]
    since, before = now(lab), kernel_counts(lab)
    with every_core_busy(4.0), play(lab, planned, time.monotonic()):
        until_events(lab, "fault-ended", len(planned), since, 20.0)
    counted = {key: count - before[key] for key, count in kernel_counts(lab).items()}
    assert sum(counted.values()) > 250

    def heard(site: str, link: str) -> list[dict]:
        return [it for it in events(lab, "carrier", since) if (it["site"], it["link"]) == (site, link)]

    def missed() -> list[dict]:
        return events(lab, "carrier-missed", since)

    def accounted() -> dict[tuple[str, str], int]:
        missed_of = {
            end: sum(event["count"] for event in missed() if (event["site"], event["link"]) == end) for end in counted
        }
        return {end: len(heard(*end)) + missed_of[end] for end in counted}

    oracle.until(lambda: accounted() == counted, 5.0, f"as many events as changes: {counted}")
    unexplained = [event for event in missed() if not host_stalls.stalls(event["t"] - 0.1, event["t"])]
    assert unexplained == [], "none is missed on a host that does not stall"
    missing = {(event["site"], event["link"]) for event in missed()}
    for it in counted:
        changes = heard(*it)
        numbers = [event["changes"] for event in changes]
        assert [event["up"] for event in changes] == [number % 2 == 0 for number in numbers]
        if it not in missing:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_command_event_and_acknowledgement_are_on_one_clock(lab: Lab) -> None:
    """In their order, and when `ip monitor` says that it was."""
    since, place = now(lab), ns(lab, "west-gw")
    planned = [Planned("cut", "link3", 0.05, at_s=0.2 + 0.15 * number) for number in range(10)]
    with monitored(place) as seen, play(lab, planned, time.monotonic()):
        until_events(lab, "fault-ended", 10, since, 10.0)
        until_events(lab, "carrier", 40, since, 5.0)
        offset = time.time() - time.monotonic()
    dark = [it["t"] for it in events(lab, "carrier", since) if it["site"] == "west" and not it["up"]]
    began = events(lab, "fault-began", since)
    for cut, heard_t in zip(began, dark, strict=True):
        assert cut["planned_t"] <= cut["command_t"] <= cut["ack_t"]
        assert cut["command_t"] <= heard_t
    after = [heard_t - cut["command_t"] for cut, heard_t in zip(began, dark, strict=True)]
    print(f"command to event: median {statistics.median(after) * 1e3:.2f} ms")
    assert statistics.median(after) < 0.01
    by_ip = [t - offset for t, name, lit in seen if name == "link3" and not lit]
    off = [abs(mine - theirs) for mine, theirs in zip(dark, by_ip, strict=True)]
    assert statistics.median(off) < 0.005


def test_nothing_comes_after_whoever_planned_it_is_gone(lab: Lab) -> None:
    since = now(lab)
    gone = play(lab, [Planned("cut", "link0", 0.1, at_s=0.4)], time.monotonic())
    gone._connection.close()  # as when its process is killed
    with play(lab, [Planned("cut", "link1", 0.1, at_s=0.6)], time.monotonic()):
        oracle.until(lambda: bool(events(lab, "fault-ended", since)), 5.0, "the other one's is over")
    assert [it["target"] for it in events(lab, "fault-began", since)] == ["link1"]
    assert not is_dark(lab, "west-gw", "link0")
