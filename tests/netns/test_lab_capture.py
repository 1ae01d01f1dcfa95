"""Capture of packets in a running lab, by the command and from Python; scapy, tcpdump and tshark read the files."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command, argv_of, captured, run_line
from builders.conditions import LABS, thorough
from builders.json_files import read_json
from builders.labs import Lab, counters, events, ns, run_in
from contract.capture_contract import CaptureContract
from contract.lab_contract import Inside
from oracles import oracle
from scapy.layers.inet import ICMP
from scapy.utils import rdpcap

from testbed.errors import LabError, UserError

pytestmark = LABS

MTU_FRAME = 1500 + 14


@pytest.fixture
def inside(lab: Lab) -> Inside:
    return functools.partial(run_in, lab)


class TestNamespaces(CaptureContract):
    pass


@contextlib.contextmanager
def capturing(lab: Lab, *words: str, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run `testbed capture` in the background; yield it once it captures."""
    argv = argv_of(f"capture -l {lab.name}", *words)
    child = subprocess.Popen(argv, stderr=subprocess.PIPE, **more)
    try:
        said = []
        for line in child.stderr:
            said.append(line)
            if b"capturing" in line:
                break
        assert said and b"capturing" in said[-1], said
        yield child
    finally:
        child.kill()
        child.communicate()


def ended(child: subprocess.Popen[bytes], number: int | None = None) -> tuple[int, str]:
    if number is not None:
        child.send_signal(number)
    _, said = child.communicate(timeout=30)
    return child.returncode, said.decode()


def ping(lab: Lab, count: int) -> None:
    assert len(oracle.ping(ns(lab, "east-0"), "10.2.1.1", count=count)) == count


def stream(lab: Lab, seconds: float = 1.0) -> None:
    oracle.iperf3(ns(lab, "east-0"), ns(lab, "west-0"), "10.2.1.1", seconds=seconds)


def test_ctrl_c_ends_it_with_a_whole_file_of_the_callers(lab: Lab, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    file = tmp_path / "x.pcap"
    environment = {**os.environ, "SUDO_UID": "60701", "SUDO_GID": "60702"}
    with capturing(lab, "north:west", "-w", str(file), env=environment) as child:
        ping(lab, 7)
        status, said = ended(child, signal.SIGINT)
    packets = rdpcap(str(file))
    assert (status, said.splitlines()[0].partition(" in ")[0]) == (0, f"{len(packets)} packets"), said
    assert "0 packets dropped by the kernel" in said
    assert [len(it) for it in packets if ICMP in it] == 7 * [98]  # there may be others, such as ARP's
    assert (file.stat().st_uid, file.stat().st_gid) == (60701, 60702)
    stranger = tmp_path / "of-root.pcap"
    stranger.write_text("mine")
    argv = argv_of(f"capture -l {lab.name} north -w", str(stranger))
    refused = captured(argv, env=environment, timeout=60)
    assert (refused.returncode, stranger.read_text()) == (2, "mine")
    assert "belongs to root (uid 0); name another file" in refused.stderr


@pytest.mark.parametrize("reader", ["tcpdump", thorough("tshark")])
def test_other_programs_read_it_along(lab: Lab, tmp_path: Path, reader: str) -> None:
    if shutil.which(reader) is None:
        pytest.skip(f"{reader} is not installed")
    with (tmp_path / "out").open("wb") as out:
        reading = subprocess.Popen([reader, "-nnr", "-"], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE)
        with capturing(lab, "north:west", "-w", "-", "--for", "2s", stdout=reading.stdin) as child:
            reading.stdin.close()
            reading.stdin = None
            ping(lab, 5)
            status, said = ended(child)
        reading.communicate(timeout=30)
    assert status == 0 and "the time is over" in said, said
    assert len(re.findall("echo request|\\(ping\\) request", (tmp_path / "out").read_text())) == 5


def test_the_program_that_reads_along_may_end(lab: Lab) -> None:
    with capturing(lab, "north:west", "-w", "-", stdout=subprocess.PIPE) as child:
        child.stdout.close()
        child.stdout = None
        oracle.until(lambda: oracle.ping(ns(lab, "east-0"), "10.2.1.1") and child.poll(), 10.0, "it ends")
        assert child.returncode == 141  # as a program that SIGPIPE ended, in a shell


def test_a_full_disk_keeps_what_was_written(lab: Lab, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    run_line("mount -t tmpfs -o size=2m none", small)
    try:
        with capturing(lab, "north:west", "-w", str(small / "x.pcap")) as child:
            stream(lab)
            status, said = ended(child)
        assert status == 3 and "No space left on device" in said, said
        packets = rdpcap(str(small / "x.pcap"))
        assert len(packets) == int(re.search(r"([\d,]+) packets in", said)[1].replace(",", ""))  # type: ignore[index]
        assert sum(map(len, packets)) > 1_500_000
    finally:
        oracle.run("umount", small)


def test_size_snaplen_and_super_packets(lab: Lab, tmp_path: Path) -> None:
    whole, heads, large = (tmp_path / name for name in ("whole", "heads", "large"))
    with (
        lab.capture("north:west", whole, most_bytes=300_000) as limited,
        lab.capture("north:west", heads, snaplen=66) as short,
        lab.capture("north:west", large, before=True) as sent,
    ):
        stream(lab)
        assert limited.wait(10.0) and limited.ending == "size"
    assert 200_000 < whole.stat().st_size <= 300_000
    assert len(rdpcap(str(whole))) == limited.packets
    lengths = [(len(it), it.wirelen) for it in rdpcap(str(heads))]
    assert len(lengths) == short.packets and max(it for it, _ in lengths) == 66
    assert sum(it for _, it in lengths) == short.found[0].bytes
    # Before the fiber too: hosts hand over up to 64 KiB at once, which no wire does.
    packets = rdpcap(str(large))
    assert len(packets) == sent.packets
    assert sent.super_packets == sum(len(it) > MTU_FRAME for it in packets) > 0
    assert sent.found[0].largest_bytes == max(map(len, packets))


def test_a_run_is_marked_as_captured(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a capture that began before it, and by one that outlasts it."""
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    with lab.capture("north:west", tmp_path / "before.pcap") as began_earlier:
        running = lab.launch(["sleep", "3"], directory=runs)
        record = lab.run_directory.path / "run.json"
        ping(lab, 3)
        began_earlier.stop()
        with lab.capture("south", tmp_path / "later.pcap", before=True):
            oracle.until(lambda: len(read_json(record)["captures"]) == 2, 5.0, "the run says so at once")
            assert [it for it in lab.status().captures if "south:west, south:east are captured, before the fiber" in it]
            running.exit_status()
    first, second = read_json(record)["captures"]
    assert (first["directions"], first["before"], first["packets"], first["dropped"]) == (["north:west"], False, 3, 0)
    assert (second["directions"], second["ended_t"]) == (["south:west", "south:east"], None)
    report = lab.report()
    report.save(tmp_path / "out")
    for page in ("report.md", "index.html"):
        text = (tmp_path / "out" / page).read_text()
        assert "Packets were captured while this was measured: north:west behind the fiber for" in text
        assert "(3 packets, none dropped by the kernel); south:west, south:east before the fiber until the end" in text
    assert lab.status().captures == ()


def test_a_capture_that_is_killed_has_ended(lab: Lab, tmp_path: Path) -> None:
    with capturing(lab, "north", "-w", str(tmp_path / "x.pcap")) as child:
        assert len(lab.status().captures) == 1
        child.kill()
        oracle.until(lambda: lab.status().captures == (), 5.0, "the keeper has noticed")
    assert events(lab, "capture-ended")[-1]["counted"] == {}
    assert events(lab, "capture-ended")[-1]["capture"] == events(lab, "capture-began")[-1]["capture"]


def test_mistakes_are_told(lab: Lab, command: Command, tmp_path: Path) -> None:
    for words, status, says in (
        (("capture", "north:mars", "-w", "x"), 2, "unknown end of link north 'mars' (available: east, west)"),
        (("capture", "north", "-w", "/nowhere/x.pcap"), 3, "cannot write /nowhere/x.pcap: No such file or directory"),
        (("capture", "north", "-w", "x", "--most", "lots"), 2, "--most: "),
        (("status", "--fiber", "nroth"), 2, "unknown link 'nroth'; did you mean north?"),
    ):
        done = command(*words, "-l", lab.name)
        assert (done.returncode, says in done.stderr) == (status, True), done
        assert "Traceback" not in done.stderr
    for wrong in ({"for_s": 0.0}, {"most_bytes": 10}, {"snaplen": 1 << 20}):
        with pytest.raises(UserError, match="expected"):
            lab.capture("north", tmp_path / "x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected a file to write, got the folder"):
        lab.capture("north", tmp_path)


def test_a_fiber_is_shown_with_who_made_each_value(healthy: Lab, command: Command) -> None:
    with healthy.inject("impair", "north:west", rate="80M") as slow, healthy.cut("north:east") as cut:
        said = command(f"status --fiber north -l {healthy.name}")
        assert said.returncode == 0
        lines = [" ".join(line.split()) for line in said.stdout.splitlines()]
        assert "north:west: east-gw → west-gw, interface north, plant north-a and north-b" in lines
        assert f"rate 80 Mb/s for 80 Gb/s {slow.id} -" in lines
        assert f"dark, by {cut.id}: no packet passes" in lines
        assert "read back from fiberd: it applies exactly the values below" in lines
        data = json.loads(command(f"status --fiber north:west --json -l {healthy.name}").stdout)
    (west,) = data
    assert (west["direction"], west["impairment"]["rate_bps"], west["differences"]) == ("north:west", 80e6, [])
    assert west["delay_s"] == west["impairment"]["delay_s"] - west["taken_off_s"] > 0

    def counted() -> dict[str, Any]:
        return counters(healthy)["north:west"]

    before = counted()
    (now,) = healthy.fiber("north:west")
    after = counted()  # the nodes' own packets, such as ARP, go on
    assert {it.by for it in now.values} == {("link",)}
    assert before["packets"] <= now.packets <= after["packets"] <= before["packets"] + 20
    assert before["bytes"] <= now.bytes <= after["bytes"]
    assert before["drops"] == now.drops == after["drops"]


def test_a_capture_ends_with_its_lab(lab: Lab, tmp_path: Path) -> None:
    """Last in this file: it takes the lab down."""
    capture = lab.capture("north:west", tmp_path / "x.pcap")
    ping(lab, 2)
    time.sleep(0.3)  # a packet in the ring is read within that time, or lost with the gateway
    taking = threading.Thread(target=lab.down)
    taking.start()
    with pytest.raises(LabError, match="was taken down; the capture has ended"):
        capture.wait(30.0)
    taking.join()
    packets = rdpcap(str(tmp_path / "x.pcap"))
    assert (capture.ending, capture.packets) == ("lab", len(packets))
    assert sum(ICMP in it for it in packets) == 2
    with pytest.raises(LabError):
        lab.fiber("north:west")
