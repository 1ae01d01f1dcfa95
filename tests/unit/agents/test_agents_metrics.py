"""What a rank exposes, read back by Prometheus' own parser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from testbed_agents.interfaces import InterfaceBytes, interface_bytes
from testbed_agents.metrics import RankMetrics

STEP: dict[str, Any] = {"train_loss": 5.0, "tokens": 256, "compute_s": 0.03, "peer_wait_s": 0.01, "network_s": 0.02}
WHERE = {"site": "east", "node": "east-1", "rank": "1"}


@pytest.fixture
def metrics() -> RankMetrics:
    return RankMetrics(site="east", node="east-1", rank=1, torch_version="2.13.0+cpu")


def families(metrics: RankMetrics) -> list[Metric]:
    return list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))


def samples(metrics: RankMetrics) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels that not every sample has."""
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key not in WHERE)): sample.value
        for family in families(metrics)
        for sample in family.samples
    }


def test_every_sample_says_site_node_and_rank(metrics: RankMetrics) -> None:
    assert families(metrics)
    for family in families(metrics):
        assert family.documentation
        for sample in family.samples:
            assert sample.name.startswith("testbed_")
            assert sample.labels.items() >= WHERE.items(), sample


def test_names_follow_the_conventions_of_prometheus(metrics: RankMetrics) -> None:
    metrics.step_done(step=1, **STEP)
    for family in families(metrics):
        names = {sample.name for sample in family.samples}
        assert not any(name.endswith("_created") for name in names)
        if family.type == "counter":
            assert all(name.endswith("_total") for name in names), names
        elif family.type == "gauge":
            assert not any(name.endswith("_total") for name in names), names
        for bad in ("_ms", "_milliseconds", "_kb", "_mbps"):
            assert not any(bad in name for name in names)
        for word, unit in (("second", "_seconds"), ("byte", "_bytes")):
            assert all(unit in name for name in names if word in name)


def test_what_the_design_promises_is_there(metrics: RankMetrics) -> None:
    design = (Path(__file__).parents[3] / "docs" / "design.md").read_text()
    section = design.partition("### Metrics of a rank")[2].partition("\n## ")[0].partition("\n\n")[2]
    promised = {word.split("{")[0] for word in section.split("`") if word.startswith("testbed_")}
    assert len(promised) >= 13
    metrics.step_done(step=1, **STEP)
    exposed = {key[0] for key in samples(metrics)}
    exposed |= {name.removesuffix("_count") for name in exposed if name.endswith("_count")}
    assert promised <= exposed


def test_steps_add_up(metrics: RankMetrics) -> None:
    for step in (1, 2):
        metrics.step_done(step=step, **STEP | {"train_loss": 5.0 - step})
    metrics.collective_done(0.15)
    found = samples(metrics)
    assert found["testbed_steps_total",] == found["testbed_step",] == 2
    assert found["testbed_tokens_total",] == 512
    assert found["testbed_train_loss",] == 3.0
    assert found["testbed_compute_seconds_total",] == pytest.approx(0.06)
    assert found["testbed_exposed_communication_seconds_total", "peer_wait"] == pytest.approx(0.02)
    assert found["testbed_exposed_communication_seconds_total", "network"] == pytest.approx(0.04)
    assert found["testbed_step_seconds_sum",] == pytest.approx(0.12)
    assert found["testbed_collective_seconds_bucket", "0.1"] == 0
    assert found["testbed_collective_seconds_bucket", "0.2"] == 1
    assert found["testbed_heartbeat_timestamp_seconds",] == pytest.approx(time.time(), abs=60)


def test_job_info_has_one_state_at_a_time(metrics: RankMetrics) -> None:
    assert ("testbed_job_info", "", "waiting") in samples(metrics)
    metrics.job_state("j1", "training")
    states = [key for key in samples(metrics) if key[0] == "testbed_job_info"]
    assert states == [("testbed_job_info", "j1", "training")]
    assert next(k for k in samples(metrics) if k[0] == "testbed_agent_info")[:2] == ("testbed_agent_info", "2.13.0+cpu")


def test_interface_bytes_are_the_kernels(metrics: RankMetrics) -> None:
    sys_class_net = Path("/sys/class/net")
    if not sys_class_net.is_dir():
        pytest.skip("no /sys here")
    assert set(interface_bytes()) == {it.name for it in sys_class_net.iterdir() if it.is_dir()}
    for name, traffic in interface_bytes().items():  # counters grow between two readings, and never shrink
        read = int((sys_class_net / name / "statistics" / "rx_bytes").read_text())
        opened = InterfaceBytes(name)
        again = [opened.read().received for _ in range(2)]
        opened.close()
        assert traffic.received <= read <= again[0] <= again[1] <= interface_bytes()[name].received
    assert ("testbed_receive_bytes_total", "lo") in samples(metrics)
