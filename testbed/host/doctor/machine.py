"""Machine checks: cores, memory, clock, timers, and how much CPU other programs leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from testbed.core.topology.model import CONGESTION_CONTROLS
from testbed.host.doctor.check import Check, read
from testbed.host.linux import congestion, invocation

__all__ = ["clock", "headroom", "resources"]

_MEMORY_PER_HOST_BYTES: Final = 2_000_000_000
_QUICK_CLOCKS: Final = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
_CLOCK_COST_S: Final = 500e-9
"""Reading the clock by a system call (hpet, acpi_pm) costs 1 us or more; by the vDSO 30 to 100 ns."""
_CLOCK_RESOLUTION_S: Final = 1e-6
_SLEEPS: Final = 40
_LATE_S: Final = 300e-6
_WATCH_S: Final = 0.1
_IDLE_SHARE: Final = 0.25
_STOLEN_SHARE: Final = 0.05


def resources() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    yield Check(
        "cores",
        "ok" if cores >= 2 else "limited",
        f"{cores} usable of {os.cpu_count()}"
        + ("" if cores >= 2 else ": ranks and fibers compete for it, which reduces fidelity"),
    )
    memory = _available_memory_bytes()
    enough = memory >= _MEMORY_PER_HOST_BYTES
    yield Check(
        "memory",
        "ok" if enough else "limited",
        f"{memory / 1e9:.1f} GB available" + ("" if enough else "; four ranks with torch need about 1.5 GB"),
    )
    control = read("/proc/sys/net/ipv4/tcp_congestion_control") or "unknown"
    yield Check("congestion control", "ok", f"{control}: default of new namespaces; routes over fibers override it")
    lacking = [name for name in CONGESTION_CONTROLS if not congestion.has(name)]
    detail = f"available to topologies: {', '.join(name for name in CONGESTION_CONTROLS if name not in lacking)}"
    yield Check(
        "TCP over fibers",
        "limited" if lacking else "ok",
        detail + (f"; those that name {' or '.join(lacking)} use the kernel's default" if lacking else ""),
        invocation.as_root(f"modprobe -a {' '.join(f'tcp_{name}' for name in lacking)}") if lacking else "",
    )


def clock() -> Iterator[Check]:
    """Check what limits the accuracy of delay measurements: the clock, and the wake-up latency of timers."""
    name = read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    others = read("/sys/devices/system/clocksource/clocksource0/available_clocksource").split()
    cost_s = _least(_read_cost_s, 5)
    resolution_s = time.clock_getres(time.CLOCK_MONOTONIC)
    good = cost_s < _CLOCK_COST_S and resolution_s <= _CLOCK_RESOLUTION_S
    better = next((other for other in _QUICK_CLOCKS if other in others and other != name), "")
    yield Check(
        "clock source",
        "ok" if good else "limited",
        f"{name}, resolution {resolution_s * 1e9:.0f} ns, {cost_s * 1e9:.0f} ns per read"
        + ("" if good else ": delay measurements are less accurate"),
        invocation.as_root(f"echo {better} > /sys/devices/system/clocksource/clocksource0/current_clocksource")
        if better and not good
        else "",
    )
    late = sorted(_overshoot_s() for _ in range(_SLEEPS))
    least, median = late[0], late[len(late) // 2]
    slack_ns = read("/proc/self/timerslack_ns")
    prompt = median < _LATE_S
    yield Check(
        "timers",
        "ok" if prompt else "limited",
        f"a 1 ms sleep wakes {least * 1e6:.0f} us late at minimum, {median * 1e6:.0f} us at the median"
        + (f"; timer slack {int(slack_ns) / 1e3:g} us" if slack_ns.isdigit() else ""),
        "" if prompt else "stop other CPU load, or give this machine dedicated cores",
    )


def _read_cost_s() -> float:
    began = time.perf_counter()
    for _ in range(1000):
        time.monotonic_ns()
    return (time.perf_counter() - began) / 1000


def _overshoot_s() -> float:
    began = time.monotonic()
    time.sleep(1e-3)
    return time.monotonic() - began - 1e-3


def _least(work: Callable[[], float], times: int) -> float:
    return min(work() for _ in range(times))


def headroom() -> Iterator[Check]:
    """Check idle CPU and CPU stolen by the hypervisor, over a tenth of a second."""
    before = _cpu_ticks()
    time.sleep(_WATCH_S)
    spent = [after - start for start, after in zip(before, _cpu_ticks(), strict=True)]
    total = sum(spent) or 1
    idle, stolen = (spent[3] + spent[4]) / total, spent[7] / total
    load = os.getloadavg()[0]
    calm = idle >= _IDLE_SHARE and stolen <= _STOLEN_SHARE
    yield Check(
        "CPU headroom",
        "ok" if calm else "limited",
        f"{100 * idle:.0f} % idle, {100 * stolen:.0f} % stolen by the hypervisor, load {load:.1f}"
        + ("" if calm else ": packets may leave fibers late"),
        "" if calm else "stop other CPU load, then certify again",
    )


def _cpu_ticks() -> list[int]:
    """Return user, nice, system, idle, iowait, irq, softirq and steal ticks of all cores (proc_stat(5))."""
    return [int(word) for word in read("/proc/stat").splitlines()[0].split()[1:9]]


def _available_memory_bytes() -> int:
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
