"""What `tc -s -r -j qdisc` says, compared with what was asked; recorded on Linux 6.1 with iproute2 6.1."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import statistics
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.physics.impairment import Impairment
from testbed.errors import LabError
from testbed.host.emulators import tc
from testbed.host.emulators.netem_mapping import qdiscs_of

RECORDED = json.loads(
    """[{"kind":"netem","handle":"1:","dev":"north-b","root":true,"refcnt":2,"options":{"limit":1000000,
    "delay":{"delay":0.000235,"jitter":0,"correlation":0},"loss-random":{"loss":0.001,"correlation":0},
    "rate":{"rate":4611686018427387904,"packetoverhead":0,"cellsize":0,"celloverhead":0},"ecn":false,"gap":0},
    "bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0},
    {"kind":"tbf","handle":"2:","dev":"north-b","parent":"1:1","options":{"rate":100000015,"burst":20000,
    "burst_raw":"c38","lat":199799,"limit":20000000,"overhead":24},"bytes":0,"packets":0,"drops":0,"overlimits":0,
    "requeues":0,"backlog":0,"qlen":0},{"kind":"clsact","handle":"ffff:","dev":"north-b","parent":"ffff:fff1",
    "options":{},"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0}]"""
)
RECORDED_FULL = json.loads(
    """[{"kind":"netem","handle":"1:","dev":"lo","root":true,"refcnt":2,"options":{"limit":1000000,
    "delay":{"delay":0.01,"jitter":0.001,"correlation":0},
    "loss-gemodel":{"p":0.0123457,"r":0.1,"1-h":0.75,"1-k":0.001},"corrupt":{"corrupt":0.01,"correlation":0},
    "ecn":false,"gap":0},"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0},
    {"kind":"tbf","handle":"2:","dev":"lo","parent":"1:1","options":{"rate":12500000,"burst":4712,"burst_raw":"1705",
    "lat":77664,"limit":975515,"overhead":38},"bytes":0,"packets":0,"drops":0,"overlimits":0,"requeues":0,"backlog":0,
    "qlen":0}]"""
)
FULL = Impairment(
    10e-3, 1e8, 10**6, p=0.0123456789, r=0.1, h=0.25, k=0.999, jitter_s=1e-3, jitter_reorders=True,
    corrupt=0.01, corrupt_survives=True, overhead_bytes=38,
)  # fmt: skip
NETEM = tc.Netem(delay_ns=235_123, limit=1_000_000, loss=0.001)
TBF = tc.Tbf(rate=100_000_015, limit=20_000_000, burst=20_000, overhead=24)


Shown = dict[str, Any]
"""An interface's qdiscs by kind, as tc shows them."""


def netem_of(impairment: Impairment | None = None, **fields: Any) -> tc.Netem:
    return qdiscs_of("n:w", impairment or Impairment(**fields), 1500)[0]


def request_of(impairment: Impairment | None = None, **fields: Any) -> bytes:
    """Return the request that changes a netem."""
    return netem_of(impairment, **fields).request(3, fresh=False)


@pytest.fixture
def shown() -> Shown:
    return tc.by_interface(copy.deepcopy(RECORDED))["north-b"]


def test_what_stands_as_asked_has_no_differences(shown: Shown) -> None:
    assert tc.differences(shown, NETEM, TBF) == []


@given(st.integers(2000, 10**9))
def test_a_delay_stands_as_the_kernel_and_tc_cut_it_off(delay_ns: int) -> None:
    """225,016 ns are 3,515 ticks of 64 ns, which are 224,960 ns, of which tc prints 224 us."""
    shown = tc.by_interface(copy.deepcopy(RECORDED))["north-b"]
    netem = dataclasses.replace(NETEM, delay_ns=delay_ns)
    printed_us = delay_ns // 64 * 64 // 1000
    for us, differs in ((printed_us, False), (printed_us - 2, True), (printed_us + 3, True)):
        shown["netem"]["options"]["delay"]["delay"] = us / 1e6
        assert any(text.startswith("delay") for text in tc.differences(shown, netem, TBF)) is differs


def differences_of(shown: Shown, netem: tc.Netem, tbf: tc.Tbf, path: str, value: Any) -> list[str]:
    """Return the differences where the option at ``path``, as in ``netem.delay.jitter``, has another value."""
    kind, *keys, last = path.split(".")
    options = shown[kind]["options"]
    for key in keys:
        options = options[key]
    options[last] = value
    return tc.differences(shown, netem, tbf)


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("netem.delay.delay", 0.000240, "delay"),
        ("netem.loss-random.loss", 0.00101, "loss"),
        ("netem.limit", 1000, "packet limit"),
        ("netem.rate.rate", 0, "in-order"),
        ("tbf.rate", 100_000_016, "rate"),
        ("tbf.limit", 20_000_001, "queue"),
        ("tbf.overhead", 0, "overhead"),
    ],
)
def test_each_value_that_is_otherwise_is_named(shown: Shown, path: str, value: float, name: str) -> None:
    (text,) = differences_of(shown, NETEM, TBF, path, value)
    assert text.startswith(name)


def test_values_that_tc_leaves_out_are_zero(shown: Shown) -> None:
    del shown["netem"]["options"]["delay"], shown["netem"]["options"]["loss-random"]
    assert tc.differences(shown, tc.Netem(0, 1_000_000), TBF) == []
    assert len(tc.differences(shown, NETEM, TBF)) == 2


def test_a_missing_qdisc_is_named(shown: Shown) -> None:
    del shown["tbf"]
    assert tc.differences(shown, NETEM, TBF) == ["expected netem and tbf, found netem, clsact"]
    assert tc.differences({}, NETEM, TBF) == ["expected netem and tbf, found no qdisc"]


def test_units() -> None:
    impairment = Impairment(delay_s=235.4e-6, rate_bps=0.8e9, queue_bytes=1_538_000, loss=1e-4)
    netem, tbf = qdiscs_of("north:west", impairment, mtu=1500)
    assert (netem.delay_ns, netem.loss) == (235_400, 1e-4)
    assert (tbf.rate, tbf.overhead) == (100_000_000, 24)
    assert tbf.limit == 1_514_000  # 1000 full frames wait, as 1000 x 1538 bytes on the wire
    assert 1538 < tbf.burst < 1538 + 0.001 * tbf.rate


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("netem.delay.jitter", 0.0011, "jitter"),
        ("netem.delay.correlation", 0.1, "correlation"),
        ("netem.loss-gemodel.p", 0.0124, "p of the loss"),
        ("netem.loss-gemodel.r", 0.9, "r of the loss"),
        ("netem.loss-gemodel.1-h", 0.25, "1-h of the loss"),
        ("netem.loss-gemodel.1-k", 0.999, "1-k of the loss"),
        ("netem.loss-random", {"loss": 0.1}, "loss"),
        ("netem.corrupt.corrupt", 0.02, "corrupt"),
        ("netem.duplicate", {"duplicate": 0.1}, "duplicate"),
        ("netem.reorder", {"reorder": 0.1}, "reorder"),
        ("netem.rate", {"rate": tc.IN_ORDER_RATE}, "in-order"),
        ("netem.seed", 8, "seed"),
        ("tbf.overhead", 24, "overhead"),
    ],
)
def test_each_impairment_that_is_otherwise_is_named(path: str, value: Any, name: str) -> None:
    shown = tc.by_interface(copy.deepcopy(RECORDED_FULL))["lo"]
    qdiscs = qdiscs_of("north:west", FULL, 1500, seed=7)
    assert tc.differences(shown, *qdiscs) == []  # this kernel does not show its seed
    (text,) = differences_of(shown, *qdiscs, path, value)
    assert text.startswith(name)


def test_one_loss_where_another_was_asked_for_is_named(shown: Shown) -> None:
    chain = netem_of(delay_s=235.123e-6, p=0.1, r=0.5)
    words = "; ".join(tc.differences(shown, chain, TBF))
    assert "loss is 0.001" in words and "p of the loss is 0" in words and "1-h of the loss is 0" in words


def attributes_of(request: bytes) -> dict[int, bytes]:
    """Of TCA_OPTIONS in an RTM_NEWQDISC, by a reader of its own: linux/netlink.h."""

    def split(data: bytes) -> dict[int, bytes]:
        found = {}
        while data:
            length, kind = struct.unpack_from("=HH", data)
            found[kind] = data[4:length]
            data = data[(length + 3) // 4 * 4 :]
        return found

    return split(split(request[16 + 20 :])[2][24:])


def test_every_value_is_said_in_every_change() -> None:
    """What a change leaves out netem keeps: a rate, flips, correlations."""
    always = {1, 3, 4, 6, 10, 11}  # CORR, REORDER, CORRUPT, RATE, LATENCY64, JITTER64
    for impairment in (Impairment(), FULL, Impairment(loss=0.1), Impairment(delay_s=1.0, jitter_s=0.1)):
        assert always <= set(attributes_of(request_of(impairment)))


def test_a_rate_keeps_the_order_or_is_said_to_be_none() -> None:
    kept = attributes_of(request_of(delay_s=1e-3))
    assert struct.unpack("=Q", kept[8]) == (tc.IN_ORDER_RATE,)
    broken = attributes_of(request_of(FULL))
    assert 8 not in broken and struct.unpack_from("=I", broken[6]) == (0,)


def kernel_delays_ns(request: bytes) -> list[int]:
    """What tabledist of net/sched/sch_netem.c makes of each entry, the delay not included."""
    options = attributes_of(request)
    (sigma,) = struct.unpack("=q", options[11])
    assert sigma <= 2**31 - 1
    delays = []
    for (t,) in struct.iter_unpack("=h", options[2]):
        x = (sigma % 8192) * t
        x = int((x + (4096 if x >= 0 else -4096)) / 8192)
        delays.append(x + (sigma // 8192) * t)
    return delays


@pytest.mark.parametrize("jitter_s", [1e-6, 35e-6, 3e-3, 1.9])
def test_the_kernel_makes_the_distribution_of_the_table(jitter_s: float) -> None:
    delays = kernel_delays_ns(request_of(delay_s=10.0, jitter_s=jitter_s, jitter_distribution="normal"))
    assert len(delays) == 16384
    assert statistics.fmean(delays) == pytest.approx(0, abs=0.001 * jitter_s * 1e9)
    assert statistics.pstdev(delays) == pytest.approx(jitter_s * 1e9, rel=0.001)
    assert max(delays) == pytest.approx(4 * jitter_s * 1e9, rel=0.001)


@pytest.mark.parametrize(("share", "by_s"), [(0.05, 500e-6), (0.9, 8.0), (1 / 16384, 1e-3), (1.0, 1e-3), (0.0123, 1.0)])
def test_the_kernel_holds_back_the_share(share: float, by_s: float) -> None:
    delays = kernel_delays_ns(request_of(delay_s=1.0, reorder=share, reorder_by_s=by_s))
    held = [delay for delay in delays if delay]
    assert len(held) / len(delays) == pytest.approx(share, rel=0.01)
    assert held == pytest.approx([by_s * 1e9] * len(held), rel=1e-4)


def test_both_ways_to_lose_a_packet_are_one() -> None:
    netem = netem_of(loss=0.1, corrupt=0.2)
    assert netem.loss == pytest.approx(0.28) and netem.corrupt == 0
    netem = netem_of(p=0.1, r=0.5, h=0.5, k=0.9, corrupt=0.2)
    assert netem.loss == 0 and netem.chain is not None
    assert (netem.chain.h, netem.chain.k) == pytest.approx((0.4, 0.72))


@pytest.mark.parametrize(("loss", "duplicate"), [(0.0, 0.3), (0.1, 0.2), (0.01, 0.5), (0.5, 0.01), (1.0, 0.5)])
def test_duplicates_beside_a_loss_come_out_as_asked(loss: float, duplicate: float) -> None:
    """netem_enqueue, played: a packet that is cloned and lost comes once; the clone passes netem once more."""
    netem = netem_of(loss=loss, duplicate=duplicate)
    chance, count = random.Random(4), 200_000
    times = [0, 0, 0]
    for _ in range(count):
        copies = 1 + (chance.random() < netem.duplicate) - (chance.random() < netem.loss)
        times[copies if copies < 2 else 1 + (chance.random() >= netem.loss)] += 1
    assert times[0] / count == pytest.approx(loss, abs=0.006)
    assert times[2] / count == pytest.approx((1 - loss) * duplicate, abs=0.006)


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("correlation", Impairment(delay_s=1e-2, jitter_s=1e-3, jitter_correlation=0.25)),
        ("duplicate", Impairment(loss=0.1, burst=4, duplicate=0.01)),
        ("duplicate", Impairment(loss=0.5, duplicate=0.5)),
        ("reorder", Impairment(reorder=1e-5, reorder_by_s=1e-3)),
        ("reorder_by", Impairment(reorder=0.1, reorder_by_s=9.0)),
        ("jitter", Impairment(delay_s=50.0, jitter_s=3.0)),
        ("loss", Impairment(loss=1e-10)),
    ],
)
def test_what_only_the_other_emulator_has_is_refused_by_name(name: str, beyond: Impairment) -> None:
    assert not list(beyond.findings())
    with pytest.raises(LabError, match=rf"^n:w: {name}: netem does not support .*; use --emulator fiberd$"):
        qdiscs_of("n:w", beyond, 1500)


@pytest.mark.parametrize(
    "wrong",
    [
        Impairment(loss=1.3),
        Impairment(loss=-0.1),
        Impairment(delay_s=-1e-9),
        Impairment(delay_s=float("nan")),
        Impairment(rate_bps=float("inf")),
        Impairment(rate_bps=3.0),
        Impairment(queue_bytes=-1),
    ],
)
def test_what_the_kernel_cannot_express_is_refused_with_the_direction(wrong: Impairment) -> None:
    with pytest.raises(LabError, match="north:west"):
        qdiscs_of("north:west", wrong, mtu=1500)


@pytest.mark.parametrize("limit", [0, 67, 68, 1000, 1399, 1400, 1499, 32767, 65534, 65535])
def test_blocks_match_what_is_larger_and_nothing_else(limit: int) -> None:
    blocks = tc.larger_than(limit)
    assert len(blocks) <= 16
    for length in range(1 << 16):
        assert sum(length & mask == value for value, mask in blocks) == (length > limit), length
