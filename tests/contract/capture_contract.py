"""Contract of `capture` and `status --fiber`, for every driver and emulator: subclass it; provide ``lab``, ``inside``.

As in ``lab_contract.py``, ``inside(node, *argv)`` is the oracle; scapy reads the files.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import scapy.layers.inet
from contract.lab_contract import Inside
from scapy.utils import rdpcap

from testbed.lab.lab import Lab

PINGS = 80
DELAY_S = 10e-3


def echoes(file: Path, kind: int) -> dict[int, float]:
    """Return the time of each ICMP echo request (8) or reply (0) in a file, by its number."""
    return {
        it[scapy.layers.inet.ICMP].seq: float(it.time)
        for it in rdpcap(str(file))
        if scapy.layers.inet.ICMP in it and it[scapy.layers.inet.ICMP].type == kind
    }


def received(inside: Inside) -> int:
    """Return how many packets the gateway behind the fiber has received of it, by the kernel's own count."""
    (link,) = json.loads(inside("west-gw", "ip", "-s", "-j", "link", "show", "north"))
    return int(link["stats64"]["rx"]["packets"])


class CaptureContract:
    def test_packets_are_captured_on_both_sides_of_the_fiber(self, lab: Lab, inside: Inside, tmp_path: Path) -> None:
        """Delay and loss are what differs between the two, and the counts are the emulator's and the kernel's."""
        before, after = tmp_path / "before.pcap", tmp_path / "after.pcap"
        with lab.inject("impair", "north:west", delay="10ms", loss="20%") as fault:
            (earlier,) = lab.fiber("north:west")
            assert {it.key: (it.text, it.by) for it in earlier.values if it.by != ("link",)} == {
                "delay": ("10 ms", (fault.id,)), "loss": ("20%", (fault.id,)),
            }  # fmt: skip
            assert earlier.differences == ()
            kernel = received(inside)
            with lab.capture("north:west", before, before=True), lab.capture("north", after) as behind:
                words = inside("east-0", "ping", "-c", f"{PINGS}", "-i", "0.02", "-W", "1", "-q", "10.2.1.1")
            kernel = received(inside) - kernel
            (later,) = lab.fiber("north:west")
        answered = int(re.search(r"(\d+) received", words)[1])  # type: ignore[index]
        sent, arrived = echoes(before, 8), echoes(after, 8)
        assert set(sent) == set(range(1, PINGS + 1)), "all were sent"
        assert len(arrived) == answered < PINGS, "what was lost is in one file and not in the other"
        assert len(echoes(after, 0)) == answered, "the other direction of the link is in the same file"
        apart = [arrived[number] - sent[number] for number in arrived]
        assert min(apart) >= earlier.delay_s - 1e-6, "no packet is early"  # type: ignore[operator]
        assert abs(statistics.median(apart) - DELAY_S) < 0.1 * DELAY_S
        toward = {it.direction: it.packets for it in behind.found}
        assert toward["north:west"] == later.packets - earlier.packets == kernel
        # All that entered and did not leave: echoes, and a neighbor's probe (ARP) that may fall among them. One more
        # may be lost between the emulator's counts and the captures, which begin and end one after the other.
        missing = len(rdpcap(str(before))) - toward["north:west"]
        lost = later.drops["loss"] - earlier.drops["loss"]
        assert missing >= PINGS - answered
        assert lost in (missing, missing + 1), f"the emulator lost {lost} packets, and {missing} are missing"
        assert behind.dropped == 0 and behind.super_packets == 0
