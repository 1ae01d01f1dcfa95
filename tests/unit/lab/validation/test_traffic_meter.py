"""Inputs of the bounds: delays and payload rates from a certificate."""

from __future__ import annotations

import dataclasses

import pytest
from builders.cli_fixtures import certificate_of

from testbed.core.certification.link_certificate import RateCertificate
from testbed.core.topology.model import Topology
from testbed.host.files import catalog
from testbed.lab.validation.traffic_meter import UNLIMITED, certified

PAYLOAD = (1500 - 20 - 32) / (1500 + 14 + 24)
"""Payload share of a full packet: without IPv4 and TCP with timestamps, with Ethernet's header and frame overhead."""


@pytest.fixture
def topology() -> Topology:
    return catalog.load_topology("metro-40km")


def test_without_a_certificate_it_is_what_was_asked_for(topology: Topology) -> None:
    found = certified(topology, None)
    assert set(found) == {"north:west", "north:east", "south:west", "south:east"}
    assert found["north:west"]["delay_s"] == pytest.approx(200e-6, rel=0.05)
    assert found["north:west"]["rate"] == pytest.approx(100e6 * PAYLOAD)


def test_the_least_measured_delay_and_the_greater_rate_count(topology: Topology) -> None:
    certificate = certificate_of(topology, error_s=3e-6)
    asked = certified(topology, None)["north:west"]
    found = certified(topology, certificate)["north:west"]
    assert found["delay_s"] == pytest.approx(asked["delay_s"] + 43e-6)  # the bare path is on the way of any message
    assert found["rate"] == asked["rate"]  # measured was 799 Mb/s
    first = certificate.links[0]
    faster = dataclasses.replace(first.directions[0], rate=RateCertificate(800e6, 820e6))
    link = dataclasses.replace(first, directions=(faster, first.directions[1]))
    better = dataclasses.replace(certificate, links=(link, *certificate.links[1:]))
    assert certified(topology, better)["north:west"]["rate"] == pytest.approx(102.5e6 * PAYLOAD)


def test_a_fiber_without_a_rate_limits_nothing(topology: Topology) -> None:
    links = tuple(dataclasses.replace(it, rate_bps=0.0, impairments=()) for it in topology.links)
    found = certified(dataclasses.replace(topology, links=links), None)
    assert {it["rate"] for it in found.values()} == {UNLIMITED}
