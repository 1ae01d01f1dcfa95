"""fiberd on real veth pairs; the oracles are ping, iperf3, `ip` and plain sockets."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_stalls
import pytest
from builders import ROOT
from builders.conditions import IPERF3, LABS
from builders.proc import status_of
from fiberd_lab import Lab, alive, cpu_s, lab_up, run, until
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.errors import LabError
from testbed.host.emulators import fiberd as client
from testbed.host.emulators.emulator import DirectionStats
from testbed.host.emulators.fiberd import Fiberd

pytestmark = [*LABS, IPERF3]

SEED = 7
NOTHING = Impairment()
SOL_UDP, UDP_SEGMENT = 17, 103
SOL_PACKET, PACKET_AUXDATA, PACKET_VNET_HDR, TP_STATUS_VLAN_VALID, ETH_P_ALL = 263, 8, 15, 1 << 4, 3
SO_RCVBUFFORCE = 33
RAW, DATAGRAM = (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_DGRAM)
PROPORTION_Z = statistics.NormalDist().inv_cdf(1 - 0.5e-6)  # a two-sided interval that fails once in a million


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    with lab_up("fdt") as lab:
        yield lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    for end in shared_lab.ends():
        shared_lab.set_end(end, "mtu", "1500", "up")
    return shared_lab


Starter = Callable[..., Fiberd]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    running: list[Fiberd] = []

    def start(lab: Lab, impairment: Impairment = NOTHING, back: Impairment = NOTHING, **more: int) -> Fiberd:
        directions = []
        for link in range(lab.links):
            near, far = lab.ends(link)
            directions += [
                EmulatedDirection(f"l{link}:b", near, far, impairment),
                EmulatedDirection(f"l{link}:a", far, near, back),
            ]
        running.append(Fiberd.start(lab.plant, directions, SEED, tmp_path / "fiberd.log", **more))
        return running[-1]

    yield start
    for emulator in running:
        emulator.stop()


def forth(emulator: Fiberd) -> DirectionStats:
    """The direction from a to b."""
    return emulator.stats()[0]


def quiet(emulator: Fiberd) -> DirectionStats:
    """The same, once nothing is under way any more."""
    until(lambda: not any(each.in_flight_packets for each in emulator.stats()), 5, "nothing is in flight")
    return forth(emulator)


class Stream:
    """Numbered datagrams from a to b through an emulator, and what arrived, in order."""

    def __init__(self, lab: Lab, emulator: Fiberd) -> None:
        self.emulator = emulator
        self.sender = lab.socket(lab.a, *DATAGRAM)
        self.receiver = lab.socket(lab.b, *DATAGRAM)
        self.receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        self.receiver.bind(("10.77.0.2", 0))
        self.target = self.receiver.getsockname()
        self.sent = 0
        self.arrived: list[int] = []
        # No ARP while packets are counted.
        for here, there, address in ((lab.a, lab.b, "10.77.0.2"), (lab.b, lab.a, "10.77.0.1")):
            hardware = lab.links_of(there)["fib0"]["address"]
            run(f"ip -n {here} neigh replace", address, "lladdr", hardware, "dev", "fib0", "nud", "permanent")

    def send(self, size: int = 100) -> None:
        self.sender.sendto(struct.pack("!I", self.sent).ljust(size, b"x"), self.target)
        self.sent += 1

    def send_super(self, segments: int, size: int) -> None:
        """One GSO super-packet of ``segments`` datagrams."""
        data = b"".join(struct.pack("!I", self.sent + i).ljust(size, b"x") for i in range(segments))
        self.sender.sendmsg([data], [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))], 0, self.target)
        self.sent += segments

    def collect(self, idle_s: float = 0.3) -> list[int]:
        """Read until nothing has come for ``idle_s``."""
        self.receiver.settimeout(idle_s)
        while True:
            try:
                self.arrived.append(struct.unpack("!I", self.receiver.recv(65536)[:4])[0])
            except TimeoutError:
                return self.arrived

    def stats(self) -> DirectionStats:
        """Return the statistics from a to b, once nothing is under way any more."""
        return quiet(self.emulator)

    def set(self, **impairment: Any) -> None:
        """Impair the direction from a to b."""
        self.emulator.set({"l0:b": Impairment(**impairment)})


@contextlib.contextmanager
def streaming(lab: Lab, emulator: Fiberd) -> Iterator[Stream]:
    stream = Stream(lab, emulator)
    with stream.sender, stream.receiver:
        yield stream


@pytest.fixture
def stream(lab: Lab, start: Starter) -> Iterator[Stream]:
    """Provide a stream through an emulator that impairs nothing yet."""
    with streaming(lab, start(lab)) as opened:
        yield opened


# ---- delay -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [200e-6, 5e-3])
@pytest.mark.alone
def test_round_trip_is_twice_the_delay(lab: Lab, start: Starter, delay_s: float) -> None:
    with lab.redirect():
        bare = lab.undelayed_rtts_s(150, 0.005)
    start(lab, Impairment(delay_s), Impairment(delay_s))
    fiber = lab.undelayed_rtts_s(150, 0.005)
    tolerance_s = max(50e-6, 0.02 * 2 * delay_s)
    assert abs(fiber[0] - bare[0] - 2 * delay_s) < tolerance_s
    assert abs(statistics.median(fiber) - statistics.median(bare) - 2 * delay_s) < tolerance_s


@pytest.mark.alone
def test_each_direction_has_its_own_delay(stream: Stream) -> None:
    stream.emulator.set({"l0:b": Impairment(delay_s=0.04), "l0:a": Impairment(delay_s=0.001)})
    for end in (stream.sender, stream.receiver):
        end.settimeout(2)
    began = time.monotonic()
    stream.send()
    _, address = stream.receiver.recvfrom(100)
    there = time.monotonic()
    stream.receiver.sendto(b"back", address)
    stream.sender.recv(100)
    back = time.monotonic()
    assert there - began >= 0.040 and host_stalls.elapsed_s(began, there) < 0.060
    assert back - there >= 0.001 and host_stalls.elapsed_s(there, back) < 0.020


@pytest.mark.alone
def test_lateness_is_counted(lab: Lab, start: Starter) -> None:
    emulator = start(lab, Impairment(delay_s=1e-3), Impairment(delay_s=1e-3))
    lab.rtts_s(50, 0.002)
    stats = quiet(emulator)
    assert len(stats.lateness_counts) == len(stats.lateness_bounds_s) + 1
    assert stats.lateness_bounds_s[0] == 1e-6 and stats.lateness_bounds_s[-1] == 0.1
    assert sum(stats.lateness_counts) == stats.packets >= 50
    within_1_ms = sum(
        n for bound, n in zip(stats.lateness_bounds_s, stats.lateness_counts, strict=False) if bound <= 1e-3
    )
    assert within_1_ms > stats.packets / 2


def test_the_stall_watch_waits_for_no_reader() -> None:
    """A sleeper that waits in `write` for room in the pipe would log that as a stall."""
    argv = [str(client.find_binary()), "--stalls", "--parent", str(os.getpid())]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout.readline().startswith("period_ns=")
        flags = dict(line.split() for line in Path(f"/proc/{watch.pid}/fdinfo/1").read_text().splitlines())["flags:"]
        watch.stdin.close()
    assert int(flags, 8) & os.O_NONBLOCK


@pytest.mark.alone
def test_packets_that_find_the_queue_empty_are_counted(stream: Stream) -> None:
    stream.set(delay_s=1e-3, rate_bps=10e6)
    for trains in (1, 2, 3):
        before = stream.stats().emptied
        for _ in range(trains):
            for _ in range(3):
                stream.send_super(20, 1000)  # each lasts 17 ms on the wire
            stream.stats()
        assert stream.stats().emptied - before == trains
    stream.set(delay_s=1e-3)  # without a rate there is no queue
    before = stream.stats().emptied
    stream.send()
    assert stream.stats().emptied == before


# ---- what crosses ----------------------------------------------------------------------------------------------------


def test_arp(lab: Lab, start: Starter) -> None:
    start(lab, Impairment(delay_s=1e-3), Impairment(delay_s=1e-3))
    for namespace in (lab.a, lab.b):
        run(f"ip -n {namespace} neigh flush dev fib0 nud all")
    assert len(lab.rtts_s(3)) == 3
    assert lab.links_of(lab.b)["fib0"]["address"] in run(f"ip -n {lab.a} neigh show 10.77.0.2")


@pytest.mark.alone
def test_ipv6(lab: Lab, start: Starter) -> None:
    start(lab, Impairment(delay_s=1e-3, rate_bps=1e9), Impairment(delay_s=1e-3))
    hosts = (lab.a, lab.b)
    try:
        for side, namespace in enumerate(hosts, 1):
            run(f"ip netns exec {namespace} sysctl -qw net.ipv6.conf.fib0.disable_ipv6=0")
            run(f"ip -n {namespace} addr add fd77::{side}/64 dev fib0 nodad")
        round_trips = lab.rtts_s(5, 0.01, "fd77::2", "-6")
        assert len(round_trips) == 5 and round_trips[0] > 2e-3
        assert lab.links_of(lab.b)["fib0"]["address"] in run(f"ip -n {lab.a} neigh show fd77::2")
        assert lab.iperf(1, target="fd77::2")["sum_received"]["bits_per_second"] > 0.5e9  # super-packets were sliced
    finally:
        for namespace in hosts:
            run(f"ip netns exec {namespace} sysctl -qw net.ipv6.conf.fib0.disable_ipv6=1")


@pytest.mark.parametrize("rate_bps", [0, 1e9], ids=["whole", "sliced"])
def test_vlan_tags_cross(lab: Lab, start: Starter, rate_bps: float) -> None:
    """A tagged super-packet as a VLAN device would send it: the tag is on every piece that arrives."""
    start(lab, Impairment(delay_s=1e-3, rate_bps=rate_bps))
    mss, data = 1400, random.Random(1).randbytes(30 * 1400 + 9)
    headers = Ether(dst="ff:ff:ff:ff:ff:ff", src="02:00:00:00:00:01") / Dot1Q(vlan=77, prio=3)
    headers /= IP(src="10.1.1.1", dst="10.1.1.2") / TCP(sport=1, dport=2, seq=1000, flags="A")
    sender = lab.socket(lab.a, *RAW, 0)
    receiver = lab.socket(lab.b, *RAW, socket.htons(ETH_P_ALL))
    with sender, receiver:
        sender.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        sender.bind(("fib0", 0))
        receiver.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        receiver.bind(("fib0", ETH_P_ALL))
        receiver.settimeout(2)
        sender.send(struct.pack("=BBHHHH", 1, 1, 58, mss, 38, 16) + bytes(headers / Raw(data)))
        arrived = b""
        pieces = 0
        while len(arrived) < len(data):
            frame, control, _, _ = receiver.recvmsg(70000, 64)
            ((_, _, auxiliary),) = control
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", auxiliary)
            assert status & TP_STATUS_VLAN_VALID and (tci, tpid) == (3 << 13 | 77, 0x8100)
            packet = Ether(frame)
            assert packet[TCP].seq == 1000 + len(arrived)
            arrived += bytes(packet[TCP].payload)
            pieces += 1
        assert arrived == data
        assert (pieces == 1) == (rate_bps == 0)


def test_any_ethertype_crosses_unchanged(lab: Lab, start: Starter) -> None:
    start(lab)
    sender = lab.socket(lab.a, *RAW, 0)
    receiver = lab.socket(lab.b, *RAW, socket.htons(0x88B5))
    with sender, receiver:
        sender.bind(("fib0", 0))
        receiver.bind(("fib0", 0x88B5))
        receiver.settimeout(2)
        frame = b"\xff" * 6 + b"\x02\0\0\0\0\1" + b"\x88\xb5" + random.Random(1).randbytes(1400)
        sender.send(frame)
        assert receiver.recv(2000) == frame


# ---- rate and queue --------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_rate(lab: Lab, start: Starter) -> None:
    emulator = start(lab, Impairment(200e-6, 0.8e9, 1_000_000), Impairment(200e-6, 0.8e9, 1_000_000))
    began = time.monotonic()
    end = lab.iperf(2)
    whole_s = time.monotonic() - began
    goodput = end["sum_received"]["bits_per_second"]
    expected = 0.8e9 * 1448 / 1538  # payload of what a 1500 B segment is on the wire
    assert goodput < 1.05 * expected
    stalled = host_stalls.stalled_s(began, began + whole_s) / whole_s
    assert goodput > 0.95 * expected * (1 - stalled), f"the host stalled for {stalled:.0%}"
    stats = quiet(emulator)
    assert stats.segments > 2 * stats.packets  # it was re-sliced, not taken apart


@pytest.mark.alone
def test_counters_agree_with_iperf3(lab: Lab, start: Starter) -> None:
    emulator = start(lab, Impairment(200e-6, 1e9), Impairment(200e-6, 1e9))
    before = forth(emulator)
    end = lab.iperf(1)
    after = quiet(emulator)
    # iperf3 knows what went into one socket and came out of the other; at its end some of it is still between them.
    least, most = end["sum_received"]["bytes"], end["sum_sent"]["bytes"]
    segments = after.segments - before.segments
    assert 0.98 * least / 1448 <= segments <= 1.02 * most / 1448
    frame = 1448 + 14 + 20 + 32
    assert 0.98 * least * frame / 1448 <= after.bytes - before.bytes <= 1.02 * most * frame / 1448
    assert most - least < 0.1 * most


@pytest.mark.alone
def test_queue_drops_the_tail(stream: Stream) -> None:
    limit, size = 30_000, 1000
    stream.set(delay_s=1e-3, rate_bps=10e6, queue_bytes=limit)
    for _ in range(200):
        stream.send(size)
    arrived = stream.collect()
    wire = size + 8 + 20 + 14 + 24
    assert limit // wire <= len(arrived) <= limit // wire + 20  # what was sent while the burst came in had room too
    assert arrived[:20] == list(range(20))
    assert arrived == sorted(arrived)
    stats = stream.stats()
    assert stats.drops["queue"] == 200 - len(arrived)
    assert stats.queue_bytes == 0


def test_queue_takes_the_part_of_a_super_packet_that_fits(stream: Stream) -> None:
    stream.set(rate_bps=3e9, queue_bytes=10 * (1000 + 66))  # not sliced at this rate
    stream.send_super(40, 1000)
    assert stream.collect() == list(range(10))
    assert stream.stats().drops["queue"] == 30


# ---- loss ------------------------------------------------------------------------------------------------------------


def assert_proportion(lost: int, total: int, p: float) -> None:
    spread = PROPORTION_Z * (total * p * (1 - p)) ** 0.5
    assert abs(lost - total * p) <= spread + 1, (lost, total)


def test_loss_is_per_segment_and_repeats(lab: Lab, start: Starter) -> None:
    lost_in_run: list[set[int]] = []
    for _ in range(2):
        with streaming(lab, start(lab)) as stream:
            before = forth(stream.emulator)
            stream.set(delay_s=1e-3, loss=0.01)
            for _ in range(400):
                stream.send_super(50, 1200)
            arrived = stream.collect()
            stats = stream.stats()
        assert arrived == sorted(set(arrived))
        assert stats.drops["loss"] == stream.sent - len(arrived)
        assert stats.segments - before.segments == len(arrived)
        assert stats.packets < stats.segments / 5  # super-packets were cut where a segment was lost, not taken apart
        assert_proportion(stats.drops["loss"], stream.sent, 0.01)
        lost_in_run.append(set(range(stream.sent)) - set(arrived))
        stream.emulator.stop()
        for end in lab.ends():
            lab.set_end(end, "up")
    assert lost_in_run[0] == lost_in_run[1]


@pytest.mark.alone
def test_loss_with_tso(lab: Lab, start: Starter) -> None:
    emulator = start(lab, Impairment(delay_s=200e-6, loss=0.01), Impairment(delay_s=200e-6))
    end = lab.iperf(1, "-P", "2")
    stats = quiet(emulator)
    assert stats.segments > 1.5 * stats.packets
    assert_proportion(stats.drops["loss"], stats.segments + stats.drops["loss"], 0.01)
    assert end["sum_sent"]["retransmits"] >= 0.9 * stats.drops["loss"] - 10


def test_all_or_nothing_lost(stream: Stream) -> None:
    stream.set(loss=1.0)
    for _ in range(20):
        stream.send_super(10, 500)
    assert stream.collect(0.1) == []
    stream.set(loss=0.0)
    stream.send()
    assert stream.collect(0.1) == [200]


# ---- change at run time ----------------------------------------------------------------------------------------------


def test_change_of_delay_loses_and_reorders_nothing(stream: Stream) -> None:
    stream.set(delay_s=200e-6)
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            stream.send()
            time.sleep(0.0003)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for delay_s in (5e-3, 200e-6, 5e-3, 0.0, 5e-3, 200e-6):
            time.sleep(0.15)
            stream.set(delay_s=delay_s)
    finally:
        done.set()
        sender.join()
    assert stream.sent > 500
    assert stream.collect() == list(range(stream.sent))


@pytest.mark.alone
def test_change_of_rate_speeds_up_what_waits(stream: Stream) -> None:
    stream.set(rate_bps=1e6)
    began = time.monotonic()
    for _ in range(300):
        stream.send(1000)  # 2.5 s at this rate
    assert forth(stream.emulator).queue_bytes > 200_000
    stream.set(rate_bps=100e6)
    until(lambda: forth(stream.emulator).in_flight_packets == 0, 1, "the queue has drained at the new rate")
    assert host_stalls.elapsed_s(began) < 1.5
    assert stream.collect(0.1) == list(range(300))


def test_bad_values_change_nothing(lab: Lab, start: Starter) -> None:
    emulator = start(lab, Impairment(delay_s=20e-3))
    with pytest.raises(LabError, match=r"l0:b: loss: 1\.5 is out of range; expected 0 to 1"):
        emulator.set({"l0:b": Impairment(delay_s=0, loss=1.5)})
    with pytest.raises(LabError, match="l9:b: unknown direction"):
        emulator.set({"l9:b": Impairment()})
    assert lab.rtts_s(3)[0] >= 20e-3
    assert emulator.stats()


# ---- caps and errors -------------------------------------------------------------------------------------------------


@pytest.mark.alone
def test_memory_cap(stream: Stream) -> None:
    stream.set(delay_s=0.2)
    stream.emulator._ask(["set l0:b memory_bytes=100000"])
    for _ in range(200):
        stream.send()
    arrived = stream.collect()
    stats = stream.stats()
    assert 20 < len(arrived) < 100
    assert stats.drops["memory"] == 200 - len(arrived)


def test_a_frame_that_the_egress_refuses(lab: Lab, stream: Stream) -> None:
    lab.set_end(lab.ends()[1], "mtu", "1000")
    stream.send(1400)
    stream.send(500)
    assert stream.collect(0.2) == [1]
    assert stream.stats().drops["transmit"] == 1


@pytest.mark.alone
def test_an_end_that_goes_down_loses_what_is_in_flight(lab: Lab, stream: Stream) -> None:
    stream.set(delay_s=0.15)
    for _ in range(10):
        stream.send()
    until(lambda: forth(stream.emulator).in_flight_packets == 10, 2, "all are in flight")
    far = lab.ends()[1]
    lab.set_end(far, "down")
    until(lambda: forth(stream.emulator).drops["down"] == 10, 2, "they are lost")
    before_s = cpu_s(stream.emulator.pid)
    time.sleep(0.5)
    assert cpu_s(stream.emulator.pid) - before_s < 0.1  # it does not spin on a dead socket
    stream.send()
    until(lambda: forth(stream.emulator).drops["down"] == 11, 2, "what comes now is lost, too")
    lab.set_end(far, "up")
    until(lambda: lab.links_of(lab.b)["fib0"]["operstate"] == "UP", 2, "carrier is back")
    stream.send()
    assert stream.collect(0.4) == [11]


def test_garbage_frames_under_sanitizers(
    lab: Lab, start: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = sorted((ROOT / "testbed" / "fiberd").glob("*.c"))
    binary = tmp_path / "fiberd-sanitized"
    argv = ["cc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([*argv, "-o", binary, *sources, "-lm"], capture_output=True).returncode != 0:
        pytest.skip("no compiler with sanitizers")
    monkeypatch.setattr(client, "find_binary", lambda: binary)
    emulator = start(lab, Impairment(1e-3, 2e9, 0, 0.01), Impairment(1e-3))
    rng = random.Random(3)
    sender = lab.socket(lab.a, *RAW, 0)
    starts = [bytes.fromhex(it) for it in ("080045", "86dd60", "81000007080045", "88a800018100000286dd", "0806", "")]
    with sender:
        sender.bind(("fib0", 0))
        for _ in range(3000):
            head = b"\xff" * 6 + b"\x02\0\0\0\0\1" + rng.choice(starts)
            sender.send((head + rng.randbytes(rng.randrange(1400)))[: rng.randrange(14, 1400)].ljust(14, b"\0"))
    with streaming(lab, emulator) as stream:
        for _ in range(100):
            stream.send_super(rng.randrange(2, 50), 1000)
    lab.iperf(1)
    assert quiet(emulator).packets > 2500
    emulator.stop()
    assert emulator.wait(0) == 0, (tmp_path / "fiberd.log").read_text()


# ---- life and death --------------------------------------------------------------------------------------------------


def ends_are_down(lab: Lab) -> bool:
    return not any(lab.is_up(end) for end in lab.ends())


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "end of file"])
def test_the_end_takes_both_ends_down(lab: Lab, start: Starter, way: str) -> None:
    emulator = start(lab)
    assert not ends_are_down(lab)
    if way == "end of file":
        emulator.stop()
    else:
        os.kill(emulator.pid, signal.Signals[way])
    assert emulator.wait(5) == 0
    assert ends_are_down(lab)
    until(lambda: "NO-CARRIER" in lab.links_of(lab.a)["fib0"]["flags"], 2, "the host sees no carrier")
    assert not Path(f"/proc/{emulator.pid}").exists()  # no zombie
    emulator.stop()
    with pytest.raises(LabError, match="ended with status 0"):
        emulator.stats()


@pytest.mark.alone
def test_killed_is_noticed_at_once(lab: Lab, start: Starter) -> None:
    emulator = start(lab)
    assert emulator.wait(0.05) is None
    os.kill(emulator.pid, signal.SIGKILL)
    began = time.monotonic()
    assert emulator.wait(5) == -signal.SIGKILL
    assert host_stalls.elapsed_s(began) < 1
    with pytest.raises(LabError, match="status -9"):
        emulator.set({"l0:b": Impairment()})
    emulator.stop()


def test_the_death_of_its_parent_takes_both_ends_down(lab: Lab, tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.host.emulators.fiberd import Fiberd
near, far = sys.argv[2:4]
emulator = Fiberd.start(sys.argv[1], [EmulatedDirection("x:b", near, far, Impairment())], 0, Path(sys.argv[4]))
print(emulator.pid, flush=True)
time.sleep(60)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program, lab.plant, *lab.ends(), tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    pid = int(parent.stdout.readline())
    assert alive(pid) and not ends_are_down(lab)
    parent.kill()
    parent.communicate()
    until(lambda: not alive(pid), 5, "fiberd has ended")
    assert ends_are_down(lab)


def test_it_outlives_the_thread_that_started_it(lab: Lab, start: Starter) -> None:
    """The kernel sends the parent-death signal when a thread ends, although the process lives on."""
    started: list[Fiberd] = []
    thread = threading.Thread(target=lambda: started.append(start(lab)))
    thread.start()
    thread.join()
    assert started[0].wait(0.3) is None
    assert len(lab.rtts_s(2)) == 2


def test_missing_interface_is_named(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nosuch0: cannot find the interface"):
        Fiberd.start(lab.plant, [EmulatedDirection("x:b", "nosuch0", "l0-b", Impairment())], 0, tmp_path / "log")


def test_missing_namespace_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="/run/netns/no-such-plant: No such file"):
        Fiberd.start("no-such-plant", [], 0, tmp_path / "log")


def test_keeps_no_privileges_but_one(lab: Lab, start: Starter) -> None:
    values = status_of(start(lab).pid)
    assert int(values["CapEff"], 16) == int(values["CapPrm"], 16) == 1 << 12  # CAP_NET_ADMIN
    assert values["NoNewPrivs"] == "1"


def test_without_real_time_priority(lab: Lab, start: Starter) -> None:
    emulator = start(lab, Impairment(delay_s=5e-3), priority=0)
    assert emulator.info.scheduling.startswith("SCHED_OTHER")
    assert lab.rtts_s(5)[0] >= 5e-3


@pytest.mark.alone
def test_many_links_are_cheap(start: Starter) -> None:
    with lab_up("fdm", links=32) as lab:
        emulator = start(lab, Impairment(delay_s=200e-6), Impairment(delay_s=200e-6))
        for link in (0, 31):
            assert len(lab.rtts_s(2, 0.01, f"10.77.{link}.2")) == 2
        assert len(emulator.stats()) == 64
        assert int(status_of(emulator.pid)["VmRSS"].split()[0]) < 10_000
        before_s = cpu_s(emulator.pid)
        time.sleep(0.5)
        assert cpu_s(emulator.pid) - before_s <= 0.05
        emulator.stop()
        assert not any(link["flags"].count("UP") for link in lab.links_of(lab.plant).values() if link["ifname"] != "lo")


def test_threads_share_a_client(lab: Lab, start: Starter) -> None:
    emulator = start(lab)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(50):
                emulator.set({"l0:b": Impairment(delay_s=(seed + i) * 1e-6)})
                assert [each.direction for each in emulator.stats()] == ["l0:b", "l0:a"]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
