"""What `tc -s -r -j qdisc` says, compared with what was asked; recorded on Linux 6.1 with iproute2 6.1."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from testbed.core.physics.impairment import Impairment
from testbed.errors import LabError
from testbed.host import tc
from testbed.host.netem_mapping import qdiscs_of

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
NETEM = tc.Netem(delay_ns=235_123, limit=1_000_000, loss=0.001)
TBF = tc.Tbf(rate=100_000_015, limit=20_000_000, burst=20_000, overhead=24)


@pytest.fixture
def found() -> dict[str, dict[str, Any]]:
    return tc.by_interface(copy.deepcopy(RECORDED))["north-b"]


def test_what_stands_as_asked_has_no_differences(found: dict[str, dict[str, Any]]) -> None:
    assert tc.differences(found, NETEM, TBF) == []


@pytest.mark.parametrize(
    ("kind", "path", "value", "word"),
    [
        ("netem", ("delay", "delay"), 0.000240, "delay"),
        ("netem", ("loss-random", "loss"), 0.00101, "loss"),
        ("netem", ("limit",), 1000, "packet limit"),
        ("netem", ("rate", "rate"), 0, "in-order"),
        ("tbf", ("rate",), 100_000_016, "rate"),
        ("tbf", ("limit",), 20_000_001, "queue"),
        ("tbf", ("overhead",), 0, "overhead"),
    ],
)
def test_each_value_that_is_otherwise_is_named(
    found: dict[str, dict[str, Any]], kind: str, path: tuple[str, ...], value: float, word: str
) -> None:
    place = found[kind]["options"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (said,) = tc.differences(found, NETEM, TBF)
    assert said.startswith(word)


def test_values_that_tc_leaves_out_are_zero(found: dict[str, dict[str, Any]]) -> None:
    del found["netem"]["options"]["delay"], found["netem"]["options"]["loss-random"]
    assert tc.differences(found, tc.Netem(0, 1_000_000), TBF) == []
    assert len(tc.differences(found, NETEM, TBF)) == 2


def test_a_missing_qdisc_is_named(found: dict[str, dict[str, Any]]) -> None:
    del found["tbf"]
    assert tc.differences(found, NETEM, TBF) == ["there is netem, clsact where netem and tbf were asked for"]
    assert tc.differences({}, NETEM, TBF) == ["there is no qdisc where netem and tbf were asked for"]


def test_units() -> None:
    impairment = Impairment(delay_s=235.4e-6, rate_bps=0.8e9, queue_bytes=1_538_000, loss=1e-4)
    netem, tbf = qdiscs_of("north:west", impairment, mtu=1500)
    assert (netem.delay_ns, netem.loss) == (235_400, 1e-4)
    assert (tbf.rate, tbf.overhead) == (100_000_000, 24)
    assert tbf.limit == 1_514_000  # 1000 full frames wait, as 1000 x 1538 bytes on the wire
    assert 1538 < tbf.burst < 1538 + 0.001 * tbf.rate


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
