"""What the keeper of an observed lab exports, from a lab that is made up; read back by Prometheus' own parser."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders.noop import NoopEmulator
from oracles import exported_series
from prometheus_client.parser import text_string_to_metric_families

from testbed.errors import LabError
from testbed.host.emulators.emulator import DirectionStats, EmulatorInfo
from testbed.host.files import catalog
from testbed.host.linux.interfaces import Traffic
from testbed.host.measure.carrier_watch import CarrierState
from testbed.keeper import exporter
from testbed.keeper.exporter import Exporter, Sources

TOPOLOGY = catalog.load_topology("metro-40km")

Sample = tuple[str, frozenset[tuple[str, str]]]


class Emulator(NoopEmulator):
    """Says what it is given."""

    info = EmulatorInfo("fiberd", 'SCHED_FIFO "40"')

    def __init__(self, *counted: DirectionStats) -> None:
        super().__init__([])
        self.counted = counted

    def stats(self) -> tuple[DirectionStats, ...]:
        return self.counted


class Dead(Emulator):
    def stats(self) -> tuple[DirectionStats, ...]:
        raise LabError("fiberd is gone")


@dataclass
class Lab:
    """What a keeper would know."""

    folder: Path
    emulator: NoopEmulator | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    carriers: dict[tuple[str, str], CarrierState] = field(default_factory=dict)
    faults: tuple[list[tuple[str, str]], Mapping[str, int]] = ((), {})  # type: ignore[assignment]

    def __post_init__(self) -> None:
        sources = Sources(
            lambda: self.emulator,
            lambda: self.ranks,
            lambda: self.carriers,
            lambda: self.faults,
            self.folder / "certificate.json",
        )
        self.exporter = Exporter(TOPOLOGY, sources, {})

    def told(self) -> dict[Sample, float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.exporter.text().decode())
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.told().get((name, frozenset(labels.items())))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_direction_is_told_of_the_site_that_it_leaves(lab: Lab) -> None:
    lab.emulator = Emulator(
        DirectionStats("north:west", packets=7, segments=9, bytes=9000, queue_bytes=5, corrupted=1, held_back=2)
    )
    assert lab.value("testbed_fiber_packets_total", link="north", site="east") == 7
    assert lab.value("testbed_fiber_packets_total", link="north", site="west") is None
    assert lab.value("testbed_fiber_segments_total", link="north", site="east") == 9
    assert lab.value("testbed_fiber_bytes_total", link="north", site="east") == 9000
    assert lab.value("testbed_fiber_queue_bytes", link="north", site="east") == 5
    assert lab.value("testbed_fiber_corrupted_packets_total", link="north", site="east") == 1
    assert lab.value("testbed_fiber_held_back_packets_total", link="north", site="east") == 2
    assert lab.value("testbed_fiber_duplicated_packets_total", link="north", site="east") is None, "netem counts none"


def test_buckets_of_lateness_are_cumulative_and_have_no_sum(lab: Lab) -> None:
    lab.emulator = Emulator(
        DirectionStats("north:east", lateness_bounds_s=(1e-6, 1e-3), lateness_counts=(5, 3, 2)),
        DirectionStats("south:east"),
    )
    west = {"link": "north", "site": "west"}
    name = "testbed_fiber_lateness_seconds"
    buckets = [lab.value(f"{name}_bucket", le=le, **west) for le in ("1e-06", "0.001", "+Inf")]
    assert buckets == [5, 8, 10]
    assert lab.value(f"{name}_count", **west) == 10
    assert [it for it in lab.told() if it[0] == f"{name}_sum"] == []
    assert lab.value(f"{name}_count", link="south", site="west") is None, "netem times no packets"


@pytest.mark.parametrize("emulator", [None, Dead()])
def test_a_dead_emulator_counts_nothing_and_hides_nothing_else(lab: Lab, emulator: NoopEmulator | None) -> None:
    lab.emulator = emulator
    assert lab.value("testbed_emulator_up") == 0
    names = {name for name, _ in lab.told()}
    assert "testbed_emulator_info" not in names and "testbed_fiber_packets_total" not in names
    delay = lab.value("testbed_fiber_delay_seconds", link="north", site="east")
    assert delay == pytest.approx(200e-6, rel=0.05), "40 km of glass, whoever emulates it"
    assert "testbed_keeper_cpu_seconds_total" in names


def test_words_with_quotes_stay_whole(lab: Lab) -> None:
    lab.emulator = Emulator()
    found = next(dict(labels) for name, labels in lab.told() if name == "testbed_emulator_info")
    assert (found["emulator"], found["scheduling"]) == ("fiberd", 'SCHED_FIFO "40"')


def test_carriers_ranks_and_faults(lab: Lab) -> None:
    lab.carriers = {("east-gw", "north"): CarrierState(), ("west-gw", "north"): CarrierState(False, 3)}
    lab.ranks = [
        {"rank": 0, "node": "east-0", "site": "east", "state": "training", "pid": 77},
        {"rank": 1, "node": "east-1", "site": "east", "state": "gone", "pid": 78},
        {"rank": 2, "node": "west-0", "site": "west", "state": "starting", "pid": 0},
    ]
    lab.faults = ([("cut", "north"), ("impair", "south"), ("cut", "north")], {"cut": 4, "impair": 1})
    assert lab.value("testbed_link_up", link="north", site="east") == 1
    assert lab.value("testbed_link_up", link="north", site="west") == 0
    assert lab.value("testbed_link_carrier_changes_total", link="north", site="west") == 3
    up = [lab.value("testbed_rank_up", site=s, node=n, rank=r) for s, n, r in (
        ("east", "east-0", "0"), ("east", "east-1", "1"), ("west", "west-0", "2"),
    )]  # fmt: skip
    assert up == [1, 0, 0]
    assert lab.value("testbed_fault_active", type="cut", target="north") == 2
    assert lab.value("testbed_fault_active", type="impair", target="south") == 1
    assert lab.value("testbed_faults_total", type="cut") == 4
    assert lab.value("testbed_faults_total", type="flap") == 0, "so that the first one is an increase"


def certificate(taken_s: float, west_median: float | None = 210e-6) -> str:
    measured = west_median and {"min": 2e-4, "median": west_median, "p90": 3e-4, "p99": 4e-4, "n": 700}
    bare = {"min": 4e-6, "median": 7e-6, "p90": 8e-6, "p99": 9e-6, "n": 700}
    west = {
        "direction": "north:west", "target_s": 2e-4, "measured_s": measured, "bare_s": bare, "tolerance_s": 5e-5,
        "probes": 700, "lost": 0, "verdict": "ok", "why": [],
    }  # fmt: skip
    bad = {**west, "direction": "north:east", "verdict": "bad", "why": ["its delay is off"]}
    links = [{"name": "north", "km": 40.0, "directions": [west, bad]}]
    return json.dumps({"taken_unix_s": taken_s, "links": links, "around": {"ok": True}, "cpu_busy": 0.5})


def test_a_certificate_is_read_again_when_it_was_replaced(lab: Lab) -> None:
    path, beside = lab.folder / "certificate.json", lab.folder / "beside"
    assert lab.value("testbed_certified") is None, "not measured yet"
    path.write_text(certificate(100.0))
    assert lab.value("testbed_certified") == 0
    assert lab.value("testbed_certificate_timestamp_seconds") == 100
    assert lab.value("testbed_certificate_within_tolerance", link="north", site="east") == 1
    assert lab.value("testbed_certificate_within_tolerance", link="north", site="west") == 0
    assert lab.value("testbed_certificate_tolerance_seconds", link="north", site="east") == 5e-5
    beside.write_text(certificate(200.0, west_median=None))
    # As fast as a file system's clock allows no second time to be told from the first.
    os.utime(beside, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    beside.replace(path)
    assert lab.value("testbed_certificate_timestamp_seconds") == 200
    error = "testbed_certificate_delay_error_seconds"
    assert lab.value(error, link="north", site="east") is None, "no packet came: there is no error to tell"


def test_a_noisy_host_and_a_direction_that_was_not_measurable(lab: Lab) -> None:
    document = json.loads(certificate(100.0))
    unmeasured = {"what": "rate", "target": 8e8, "measured": None, "verdict": "unmeasured", "why": "rate: too few"}
    document["links"][0]["directions"][1] |= {"verdict": "not measured", "why": [], "checks": [unmeasured]}
    document["noise"] = {"packets": 100, "delayed": 12}
    (lab.folder / "certificate.json").write_text(json.dumps(document))
    assert (lab.value("testbed_certified"), lab.value("testbed_certificate_noisy_host")) == (0, 1)
    values = [lab.value("testbed_certificate_within_tolerance", link="north", site=site) for site in ("east", "west")]
    assert values == [1, None], "a direction is labelled with the site that it leaves"


@pytest.mark.parametrize("content", ["", "[]", '{"links": 3}', "\x00"])
def test_a_file_that_is_no_certificate_certifies_nothing(lab: Lab, content: str) -> None:
    (lab.folder / "certificate.json").write_text(content)
    assert lab.value("testbed_certified") in (None, 0)
    assert lab.value("testbed_emulator_up") == 0


def test_nothing_is_exported_that_is_not_in_the_table(lab: Lab) -> None:
    lab.emulator = Emulator(DirectionStats("north:west", corrupted=0, duplicated=0, held_back=0))
    (lab.folder / "certificate.json").write_text(certificate(100.0))
    families = {family.name: family for family in text_string_to_metric_families(lab.exporter.text().decode())}
    known = {it.name.removesuffix("_total"): it for it in exported_series.ALL}
    assert set(families) <= set(known)
    for name, family in families.items():
        kind = "gauge" if known[name].kind == "info" else known[name].kind
        assert family.type == kind
        assert family.documentation.startswith(known[name].meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known[name].labels)


def test_an_interface_of_a_long_name_is_told_by_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = catalog.load_topology("bay-area")

    class Counters:
        def __init__(self, path: Path) -> None:
            self.names = ("san-fra-k7ezu", "san-francisco-0") if path.name == "san-francisco-gw" else ()

        def read(self) -> dict[str, Traffic]:
            return {name: Traffic(1, 2, 1, 0) for name in self.names}

    monkeypatch.setattr(exporter, "InterfaceCounters", Counters)
    sources = lab.exporter._sources
    lab.exporter = Exporter(topology, sources, {site.gateway: Path("/run", site.gateway) for site in topology.sites})
    for interface in ("san-francisco-to-santa-clara", "san-francisco-0"):
        labels = {"site": "san-francisco", "node": "san-francisco-gw", "interface": interface}
        assert lab.value("testbed_transmit_bytes_total", **labels) == 1
        assert lab.value("testbed_receive_bytes_total", **labels) == 2
