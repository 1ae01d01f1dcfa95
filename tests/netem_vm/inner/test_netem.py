"""The emulator contract on netem, and tests specific to netem. Needs a kernel with sch_netem."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
from collections.abc import Iterator

import pytest
from contract.emulator_contract import NOTHING, EmulatorContract, Start, directions, lab  # noqa: F401
from netns.fiberd_lab import Lab, run

from testbed.core.physics.impairment import Impairment
from testbed.errors import LabError
from testbed.host.emulators import tc
from testbed.host.emulators.netem import Netem, available
from testbed.host.linux import namespace

SIOCETHTOOL, ETHTOOL_GSG = 0x8946, 0x18
WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(not shutil.which("iperf3"), reason="iperf3 is missing"),
    pytest.mark.alone,
]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Netem] = []

    def begin(lab: Lab, there: Impairment, back: Impairment) -> Netem:  # noqa: F811
        near, far = lab.ends()
        senders = {near: (namespace.netns_path(lab.a), "fib0"), far: (namespace.netns_path(lab.b), "fib0")}
        running.append(Netem.start(lab.plant, directions(lab, there, back), senders, seed=7))
        return running[-1]

    yield begin
    for emulator in running:
        emulator.stop()


def segments_of(lab: Lab) -> int:  # noqa: F811
    return int(json.loads(run("ip", "-n", lab.a, "-d", "-j", "link", "show", "fib0"))[0]["gso_max_segs"])


def scatters(lab: Lab) -> bool:  # noqa: F811
    """``ethtool -k fib0``: scatter-gather; struct ethtool_value."""
    value = ctypes.create_string_buffer(struct.pack("=II", ETHTOOL_GSG, 0))
    with lab.socket(lab.a, socket.AF_INET, socket.SOCK_DGRAM) as inside:
        fcntl.ioctl(inside, SIOCETHTOOL, struct.pack("16sP16x", b"fib0", ctypes.addressof(value)))
    return bool(struct.unpack("=II", value.raw[:8])[1])


class TestNetem(EmulatorContract):
    lacks = frozenset({"correlation"})

    def test_offload_is_off_while_chance_has_a_say(self, lab: Lab, start: Start) -> None:  # noqa: F811
        emulator = start(lab, NOTHING, NOTHING)
        before = segments_of(lab)
        assert before > 1
        for asked in (
            Impairment(loss=1e-3),
            Impairment(p=0.1, r=0.5),
            Impairment(corrupt=0.1),
            Impairment(duplicate=0.1),
            Impairment(delay_s=1e-2, jitter_s=1e-3),
            Impairment(reorder=0.1, reorder_by_s=1e-3),
        ):
            emulator.set({"l0:b": asked})
            assert segments_of(lab) == 1
            assert emulator.segmented() == ("l0:b",)
            emulator.set({"l0:b": Impairment(delay_s=1e-3)})
            assert segments_of(lab) == before
            assert emulator.segmented() == ()

    def test_packets_lie_in_one_piece_while_bits_are_flipped(self, lab: Lab, start: Start) -> None:  # noqa: F811
        emulator = start(lab, NOTHING, NOTHING)
        assert scatters(lab)
        emulator.set({"l0:b": Impairment(corrupt=0.1, corrupt_survives=True)})
        assert not scatters(lab)
        emulator.set({"l0:b": Impairment(corrupt=0.1)})
        assert scatters(lab)

    def test_what_netem_lacks_is_refused_before_anything_is_touched(self, lab: Lab, start: Start) -> None:  # noqa: F811
        with pytest.raises(LabError, match=r"l0:a: duplicate: netem does not support .*; use --emulator fiberd"):
            start(lab, Impairment(loss=0.1), Impairment(loss=0.1, burst=3, duplicate=0.1))
        standing = run("tc", "-n", lab.plant, "qdisc", "show")
        assert "netem" not in standing and "clsact" not in standing
        assert segments_of(lab) > 1

    def test_what_somebody_else_took_away_is_noticed(self, lab: Lab, start: Start) -> None:  # noqa: F811
        emulator = start(lab, NOTHING, NOTHING)
        run("tc", "-n", lab.plant, "qdisc", "del", "dev", lab.ends()[1], "root")
        for ask in (emulator.stats, lambda: emulator.set({"l0:a": NOTHING})):
            with pytest.raises(LabError, match="was removed from l0-b"):
                ask()

    def test_what_the_kernel_did_otherwise_is_noticed(
        self,
        lab: Lab,  # noqa: F811
        start: Start,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        emulator = start(lab, Impairment(delay_s=1e-3), NOTHING)
        # an attribute that the kernel does not know
        monkeypatch.setattr("testbed.host.emulators.tc.TCA_NETEM_LATENCY64", 99)
        with pytest.raises(LabError, match="delay"):
            emulator.set({"l0:b": Impairment(delay_s=7e-3)})

    def test_kernels_without_matchall_take_u32(self, lab: Lab, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        real = tc.redirect
        monkeypatch.setattr("testbed.host.emulators.tc.redirect", lambda link, other, kind: real(link, other, "u32"))
        start(lab, Impairment(delay_s=2e-3), NOTHING)
        assert "u32" in run("tc", "-n", lab.plant, "filter", "show", "dev", lab.ends()[0], "ingress")
        lab.rtts_s(2)
        assert lab.rtts_s(10)[0] >= 2e-3

    def test_stop_leaves_nothing(self, lab: Lab, start: Start) -> None:  # noqa: F811
        start(lab, Impairment(loss=0.1), NOTHING).stop()
        assert "netem" not in run("tc", "-n", lab.plant, "qdisc", "show")
        assert "clsact" not in run("tc", "-n", lab.plant, "qdisc", "show")
        assert segments_of(lab) > 1
