"""The load of all cores against /proc/stat read here, and a wait that ends with free cores or in time."""

from __future__ import annotations

import time
from pathlib import Path

import host_stalls
import pytest

from testbed.host.linux import cpu_load
from testbed.host.linux.cpu_load import Load, LoadMeter, wait_until_free


def test_the_wait_ends_with_the_first_free_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_load, "WINDOW_S", 0.001)
    loads = [Load(1.0, 0.0), Load(0.26, 0.2), Load(0.25, 0.0), Load(0.0, 0.0)]
    assert wait_until_free(60.0, lambda: loads.pop(0)) == Load(0.25, 0.0)
    assert len(loads) == 1


def test_the_wait_is_bounded_where_the_cores_stay_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_load, "WINDOW_S", 0.01)
    began = time.monotonic()
    assert wait_until_free(0.05, lambda: Load(1.0, 0.0)).busy == 1.0
    assert time.monotonic() - began >= 0.05 and host_stalls.elapsed_s(began) < 5.0


def test_the_meter_agrees_with_the_kernel() -> None:
    def idle_and_all() -> tuple[int, int]:
        ticks = [int(it) for it in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)  # idle, iowait

    before = idle_and_all()
    meter = LoadMeter()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    load, after = meter.read(), idle_and_all()
    expected = 1 - (after[0] - before[0]) / (after[1] - before[1])
    assert load.busy == pytest.approx(expected, abs=0.1)
    assert 0 <= load.stolen <= load.busy
