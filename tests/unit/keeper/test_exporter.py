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


class Emulator(NoopEmulator):
    """Returns the counters that it is given, or fails."""

    info = EmulatorInfo("fiberd", 'SCHED_FIFO "40"')

    def __init__(self, *counters: DirectionStats, dead: bool = False) -> None:
        super().__init__([])
        self.counters, self.dead = counters, dead

    def stats(self) -> tuple[DirectionStats, ...]:
        if self.dead:
            raise LabError("fiberd is gone")
        return self.counters


@dataclass
class Lab:
    """What a keeper has of its lab."""

    folder: Path
    emulator: NoopEmulator | None = None
    ranks: list[Any] = field(default_factory=list)
    carriers: dict[tuple[str, str], CarrierState] = field(default_factory=dict)
    faults: tuple[list[tuple[str, str]], Mapping[str, int]] = ((), {})  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.certificate = self.folder / "certificate.json"
        self.sources = Sources(
            lambda: self.emulator, lambda: self.ranks, lambda: self.carriers, lambda: self.faults, self.certificate
        )
        self.exporter = Exporter(TOPOLOGY, self.sources, {})

    def families(self) -> list[Any]:
        return list(text_string_to_metric_families(self.exporter.text().decode()))

    def samples(self) -> dict[str, float]:
        """Return each sample by name, without ``testbed_``, and labels: ``link_up link=north site=east``."""
        return {
            " ".join([sample.name.removeprefix("testbed_"), *(f"{k}={v}" for k, v in sorted(sample.labels.items()))]):
            sample.value
            for family in self.families()
            for sample in family.samples
        }  # fmt: skip

    def check(self, expected: Mapping[str, float | None]) -> None:
        """Compare samples; None: it is not exported."""
        samples = self.samples()
        assert {name: samples.get(name) for name in expected} == expected


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_direction_is_labelled_with_the_site_that_it_leaves(lab: Lab) -> None:
    lab.emulator = Emulator(
        DirectionStats("north:west", packets=7, segments=9, bytes=9000, queue_bytes=5, corrupted=1, held_back=2)
    )
    lab.check(
        {
            "fiber_packets_total link=north site=east": 7,
            "fiber_packets_total link=north site=west": None,
            "fiber_segments_total link=north site=east": 9,
            "fiber_bytes_total link=north site=east": 9000,
            "fiber_queue_bytes link=north site=east": 5,
            "fiber_corrupted_packets_total link=north site=east": 1,
            "fiber_held_back_packets_total link=north site=east": 2,
            "fiber_duplicated_packets_total link=north site=east": None,  # netem counts none
        }
    )


def test_buckets_of_lateness_are_cumulative_and_have_no_sum(lab: Lab) -> None:
    lab.emulator = Emulator(
        DirectionStats("north:east", lateness_bounds_s=(1e-6, 1e-3), lateness_counts=(5, 3, 2)),
        DirectionStats("south:east"),
    )
    lab.check(
        {
            "fiber_lateness_seconds_bucket le=1e-06 link=north site=west": 5,
            "fiber_lateness_seconds_bucket le=0.001 link=north site=west": 8,
            "fiber_lateness_seconds_bucket le=+Inf link=north site=west": 10,
            "fiber_lateness_seconds_count link=north site=west": 10,
            "fiber_lateness_seconds_count link=south site=west": None,  # netem times no packets
        }
    )
    assert [name for name in lab.samples() if name.startswith("fiber_lateness_seconds_sum")] == []


@pytest.mark.parametrize("emulator", [None, Emulator(dead=True)])
def test_a_dead_emulator_counts_nothing_and_hides_nothing_else(lab: Lab, emulator: NoopEmulator | None) -> None:
    lab.emulator = emulator
    samples = lab.samples()
    names = {name.split()[0] for name in samples}
    assert samples["emulator_up"] == 0
    assert "emulator_info" not in names and "fiber_packets_total" not in names
    delay_s = samples["fiber_delay_seconds link=north site=east"]
    assert delay_s == pytest.approx(200e-6, rel=0.05), "40 km of glass, whichever emulator there is"
    assert "keeper_cpu_seconds_total" in names


def test_labels_with_quotes_stay_whole(lab: Lab) -> None:
    lab.emulator = Emulator()
    (info,) = (sample.labels for family in lab.families() for sample in family.samples if "_info" in sample.name)
    assert (info["emulator"], info["scheduling"]) == ("fiberd", 'SCHED_FIFO "40"')


def test_carriers_ranks_and_faults(lab: Lab) -> None:
    lab.carriers = {("east-gw", "north"): CarrierState(), ("west-gw", "north"): CarrierState(False, 3)}
    lab.ranks = [
        {"rank": 0, "node": "east-0", "site": "east", "state": "training", "pid": 77},
        {"rank": 1, "node": "east-1", "site": "east", "state": "gone", "pid": 78},
        {"rank": 2, "node": "west-0", "site": "west", "state": "starting", "pid": 0},
    ]
    lab.faults = ([("cut", "north"), ("impair", "south"), ("cut", "north")], {"cut": 4, "impair": 1})
    lab.check(
        {
            "link_up link=north site=east": 1,
            "link_up link=north site=west": 0,
            "link_carrier_changes_total link=north site=west": 3,
            "rank_up node=east-0 rank=0 site=east": 1,
            "rank_up node=east-1 rank=1 site=east": 0,
            "rank_up node=west-0 rank=2 site=west": 0,
            "fault_active target=north type=cut": 2,
            "fault_active target=south type=impair": 1,
            "faults_total type=cut": 4,
            "faults_total type=flap": 0,  # so that the first one is an increase
        }
    )


CERTIFICATE = """{
    "taken_unix_s": 100.0, "around": {"ok": true}, "cpu_busy": 0.5,
    "links": [{"name": "north", "km": 40.0, "directions": [
        {"target_s": 2e-4, "tolerance_s": 5e-5, "probes": 700, "lost": 0,
            "bare_s": {"min": 4e-6, "median": 7e-6, "p90": 8e-6, "p99": 9e-6, "n": 700},
            "measured_s": {"min": 2e-4, "median": 210e-6, "p90": 3e-4, "p99": 4e-4, "n": 700},
            "direction": "north:west", "verdict": "ok", "why": []},
        {"target_s": 2e-4, "tolerance_s": 5e-5, "probes": 700, "lost": 0,
            "bare_s": {"min": 4e-6, "median": 7e-6, "p90": 8e-6, "p99": 9e-6, "n": 700},
            "measured_s": {"min": 2e-4, "median": 210e-6, "p90": 3e-4, "p99": 4e-4, "n": 700},
            "direction": "north:east", "verdict": "bad", "why": ["its delay is off"]}
    ]}]
}"""


def test_a_certificate_is_read_again_when_it_was_replaced(lab: Lab) -> None:
    path, beside = lab.certificate, lab.folder / "beside"
    lab.check({"certified": None})  # not measured yet
    path.write_text(CERTIFICATE)
    lab.check(
        {
            "certified": 0,
            "certificate_timestamp_seconds": 100,
            "certificate_within_tolerance link=north site=east": 1,
            "certificate_within_tolerance link=north site=west": 0,
            "certificate_tolerance_seconds link=north site=east": 5e-5,
        }
    )
    document = json.loads(CERTIFICATE) | {"taken_unix_s": 200.0}
    document["links"][0]["directions"][0]["measured_s"] = None
    beside.write_text(json.dumps(document))
    # So fast that a file system's clock shows no later time.
    os.utime(beside, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    beside.replace(path)
    # No packet came, so there is no error.
    lab.check({"certificate_timestamp_seconds": 200, "certificate_delay_error_seconds link=north site=east": None})


def test_a_noisy_host_and_a_direction_that_was_not_measurable(lab: Lab) -> None:
    document = json.loads(CERTIFICATE)
    unmeasured = {"what": "rate", "target": 8e8, "measured": None, "verdict": "unmeasured", "why": "rate: too few"}
    document["links"][0]["directions"][1] |= {"verdict": "not measured", "why": [], "checks": [unmeasured]}
    document["noise"] = {"packets": 100, "delayed": 12}
    lab.certificate.write_text(json.dumps(document))
    lab.check(
        {
            "certified": 0,
            "certificate_noisy_host": 1,
            "certificate_within_tolerance link=north site=east": 1,
            "certificate_within_tolerance link=north site=west": None,
        }
    )


@pytest.mark.parametrize("content", ["", "[]", '{"links": 3}', "\x00"])
def test_a_file_that_is_no_certificate_certifies_nothing(lab: Lab, content: str) -> None:
    lab.certificate.write_text(content)
    assert lab.samples().get("certified") in (None, 0)
    lab.check({"emulator_up": 0})


def test_nothing_is_exported_that_is_not_in_the_table(lab: Lab) -> None:
    lab.emulator = Emulator(DirectionStats("north:west", corrupted=0, duplicated=0, held_back=0))
    lab.certificate.write_text(CERTIFICATE)
    table = {series.name.removesuffix("_total"): series for series in exported_series.ALL}
    for family in lab.families():
        series = table[family.name]
        assert family.type == ("gauge" if series.kind == "info" else series.kind)
        assert family.documentation.startswith(series.meaning)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(series.labels)


def test_an_interface_of_a_long_name_is_labelled_with_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = catalog.load_topology("bay-area")

    class Counters:
        def __init__(self, path: Path) -> None:
            self.names = ("san-fra-k7ezu", "san-francisco-0") if path.name == "san-francisco-gw" else ()

        def read(self) -> dict[str, Traffic]:
            return {name: Traffic(1, 2, 1, 0) for name in self.names}

    monkeypatch.setattr(exporter, "InterfaceCounters", Counters)
    gateways = {site.gateway: Path("/run", site.gateway) for site in topology.sites}
    lab.exporter = Exporter(topology, lab.sources, gateways)
    for interface in ("san-francisco-to-santa-clara", "san-francisco-0"):
        labels = f"interface={interface} node=san-francisco-gw site=san-francisco"
        lab.check({f"transmit_bytes_total {labels}": 1, f"receive_bytes_total {labels}": 2})
