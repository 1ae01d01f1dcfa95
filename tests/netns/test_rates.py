"""The rate of a direction: right with jitter and on a busy machine, refused when it is wrong, not measured when the
host left too few packets to judge."""

from __future__ import annotations

import dataclasses
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from builders.conditions import ALONE
from builders.labs import Lab, shared_lab

import testbed
from testbed.core.certification.judge import DirectionSample, judge_direction
from testbed.core.certification.link_certificate import DirectionCertificate
from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Topology
from testbed.host import lab_folder
from testbed.host.measure.probing import Probe
from testbed.lab.fiber_measurement import probe_paths
from testbed.lab.packet_log import TRIES
from testbed.lab.rate_measurement import RateSample, measure_rates

pytestmark = ALONE

TARGET = 0.8e9
TIMES = 20


lab = shared_lab(lambda: testbed.load("metro-40km", {"links.north.impair.jitter": "40us"}))


@contextmanager
def busy_cores() -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.fixture
def probes(lab: Lab) -> Iterator[dict[str, Probe]]:
    with ExitStack() as opened:
        paths = probe_paths(lab_folder.folder(lab.name), lab.topology, Addressing(lab.topology))
        yield {path.name: opened.enter_context(closing(Probe(path))) for path in paths}


def rates(lab: Lab, topology: Topology, probes: Mapping[str, Probe]) -> dict[str, RateSample]:
    return measure_rates(lab_folder.folder(lab.name), topology, probes, list(probes), 0.5, lambda text: None)


def judged(lab: Lab, direction: str, sample: RateSample) -> DirectionCertificate:
    """The verdict on a direction whose delays are as they were to be."""
    target = next(link for link in lab.topology.links if direction in link.directions).impairment(direction)
    like = dataclasses.replace(target, jitter_s=0.0)
    delays = [target.delay_s + 20e-6] * 100
    return judge_direction(
        direction,
        like,
        DirectionSample(
            delays,
            [20e-6] * 100,
            100,
            rate_bps=sample.bps,
            rate_slack=sample.slack,
            rate_why=sample.why,
            rate_unmeasured=sample.unmeasured,
            rate_tries=sample.tries,
            rate_beside=sample.beside,
        ),
    )


def test_rates_are_right_with_jitter_and_with_every_core_busy(lab: Lab, probes: dict[str, Probe]) -> None:
    with busy_cores():
        series = [rates(lab, lab.topology, probes) for _ in range(5)]
    for name in series[0]:
        measured = [samples[name].bps for samples in series if samples[name].bps is not None]
        assert len(measured) >= 3, name
        within = 0.02 if name.startswith("north") else 0.01
        assert statistics.median(measured) == pytest.approx(TARGET, rel=within), name


def test_a_rate_of_094_is_never_right(lab: Lab, probes: dict[str, Probe]) -> None:
    with lab.inject("impair", "south", rate="752M"):
        samples = [rates(lab, lab.topology, probes)["south:west"] for _ in range(TIMES)]
    verdicts = [judged(lab, "south:west", sample).verdict for sample in samples]
    assert verdicts.count("bad") >= TIMES - 1 and "ok" not in verdicts
    measured = [sample.bps for sample in samples if sample.bps is not None]
    assert measured == pytest.approx([0.94 * TARGET] * len(measured), rel=0.005)


class Slow:
    """A sender that loses the CPU before each super-packet, for longer than the queue lasts."""

    def __init__(self, sender: socket.socket, times: int) -> None:
        self._sender, self._times = sender, times

    def sendto(self, data: bytes, to: Any) -> int:
        if len(data) > 1500 and self._times > 0:
            self._times -= 1
            time.sleep(0.003)  # a super-packet lasts 0.6 ms
        return self._sender.sendto(data, to)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)


def test_a_rate_that_the_sender_cannot_fill_is_not_measured(lab: Lab, probes: dict[str, Probe]) -> None:
    probes["south:west"].sender = Slow(probes["south:west"].sender, 10**9)  # type: ignore[assignment]
    samples = rates(lab, lab.topology, probes)
    slow, other = samples["south:west"], samples["south:east"]
    assert (slow.tries, slow.bps) == (TRIES, None)
    assert "0 pairs of packets were on time" in slow.unmeasured
    verdict = judged(lab, "south:west", slow)
    assert (verdict.verdict, verdict.tries.rate) == ("not measured", TRIES)
    if other.bps is not None:
        assert other.bps == pytest.approx(TARGET, rel=0.01)


def test_gaps_of_the_sender_do_not_change_the_rate(lab: Lab, probes: dict[str, Probe]) -> None:
    probes["south:west"].sender = Slow(probes["south:west"].sender, 12)  # type: ignore[assignment]
    sample = rates(lab, lab.topology, probes)["south:west"]
    assert sample.bps == pytest.approx(TARGET, rel=0.01)
    assert judged(lab, "south:west", sample).ok


def test_a_rate_above_its_target_reads_as_it_is(lab: Lab, probes: dict[str, Probe]) -> None:
    with lab.inject("impair", "south", rate="752M"):
        sample = rates(lab, _with_rate(lab.topology, 0.7e9), probes)["south:west"]
    assert sample.bps == pytest.approx(752e6, rel=0.005)


def _with_rate(topology: Topology, rate_bps: float) -> Topology:
    return dataclasses.replace(
        topology, links=tuple(dataclasses.replace(link, rate_bps=rate_bps) for link in topology.links)
    )
