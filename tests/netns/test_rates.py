"""The rate of a direction: right with jitter and on a busy machine, refused when it is wrong, called starved when the
prober was."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import oracle
import pytest

import testbed
from testbed.core.certification.judge import DirectionSample, judge_direction
from testbed.core.certification.link_certificate import DirectionCertificate
from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Topology
from testbed.host import lab_folder
from testbed.host.measure.probing import Probe
from testbed.lab.fiber_measurement import _paths
from testbed.lab.rate_measurement import RateSample, measure_rates
from testbed.lab.starvation import TRIES

pytestmark = [pytest.mark.netns]

TARGET = 0.8e9
TIMES = 20


@pytest.fixture(scope="module")
def lab(state_folder: Path) -> Iterator[testbed.Lab]:
    """metro-40km whose northern link has 40 us of jitter."""
    topology = testbed.load("metro-40km", {"links.north.impair.jitter": "40us"})
    name = oracle.unused_name()
    with testbed.up(topology, name=name, agents=False, allow_uncertified=True) as found:
        yield found
    assert oracle.left_behind(name, state_folder) == []


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
def probes(lab: testbed.Lab) -> Iterator[dict[str, Probe]]:
    with ExitStack() as opened:
        paths = _paths(lab_folder.folder(lab.name), lab.topology, Addressing(lab.topology))
        yield {path.name: opened.enter_context(closing(Probe(path))) for path in paths}


def rates(lab: testbed.Lab, topology: Topology, probes: Mapping[str, Probe]) -> dict[str, RateSample]:
    return measure_rates(lab_folder.folder(lab.name), topology, probes, list(probes), 0.5, lambda text: None)


def judged(lab: testbed.Lab, direction: str, sample: RateSample) -> DirectionCertificate:
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
            rate_tries=sample.tries,
            rate_starved=sample.starved,
            rate_beside=sample.beside,
        ),
    )


@pytest.mark.timing("rates within percents while every core is busy")
def test_rates_are_right_with_jitter_and_with_every_core_busy(lab: testbed.Lab, probes: dict[str, Probe]) -> None:
    with busy_cores():
        found = [rates(lab, lab.topology, probes) for _ in range(5)]
    for samples in found:
        for name, sample in samples.items():
            if not sample.starved:
                assert sample.bps == pytest.approx(TARGET, rel=0.02 if name.startswith("north") else 0.01), name
    # A machine that others use may starve one of many; on none is it the rule.
    assert sum(bool(sample.starved) for samples in found for sample in samples.values()) <= 2


def test_a_rate_of_094_is_refused_each_time(lab: testbed.Lab, probes: dict[str, Probe]) -> None:
    with lab.inject("impair", "south", rate="752M"):
        found = [rates(lab, lab.topology, probes)["south:west"] for _ in range(TIMES)]
    verdicts = [judged(lab, "south:west", sample) for sample in found]
    assert [each.ok for each in verdicts] == [False] * TIMES
    told = [sample.bps for sample in found if not sample.starved]
    assert len(told) >= TIMES - 1
    assert told == pytest.approx([0.94 * TARGET] * len(told), rel=0.005)


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


def test_a_starved_prober_of_a_right_rate_is_called_starved(lab: testbed.Lab, probes: dict[str, Probe]) -> None:
    probes["south:west"].sender = Slow(probes["south:west"].sender, 10**9)  # type: ignore[assignment]
    found = rates(lab, lab.topology, probes)
    slow, other = found["south:west"], found["south:east"]
    assert slow.tries == TRIES
    assert slow.bps is not None
    assert slow.bps < 0.9 * TARGET
    assert "the queue ran empty" in slow.starved
    verdict = judged(lab, "south:west", slow)
    (why,) = verdict.why
    assert why.startswith("the rate could not be measured: the measurement was starved of CPU, 3 times of 3 (")
    assert (verdict.starved, verdict.tries.rate) == (True, TRIES)
    if not other.starved:
        assert other.bps == pytest.approx(TARGET, rel=0.01)


def test_a_prober_that_was_starved_once_measures_again(lab: testbed.Lab, probes: dict[str, Probe]) -> None:
    probes["south:west"].sender = Slow(probes["south:west"].sender, 12)  # type: ignore[assignment]
    sample = rates(lab, lab.topology, probes)["south:west"]
    assert sample.tries >= 2
    if not sample.starved:
        assert sample.bps == pytest.approx(TARGET, rel=0.01)
        verdict = judged(lab, "south:west", sample)
        assert verdict.ok
        assert verdict.repeated == (f"rate measured {sample.tries} times, because the measurement was starved of CPU",)


def test_a_rate_above_its_target_reads_as_it_is(lab: testbed.Lab, probes: dict[str, Probe]) -> None:
    with lab.inject("impair", "south", rate="752M"):
        sample = rates(lab, _with_rate(lab.topology, 0.7e9), probes)["south:west"]
    if not sample.starved:
        assert sample.bps == pytest.approx(752e6, rel=0.005)


def _with_rate(topology: Topology, rate_bps: float) -> Topology:
    return dataclasses.replace(
        topology, links=tuple(dataclasses.replace(link, rate_bps=rate_bps) for link in topology.links)
    )
