"""doctor's checks against the host as other tools see it; and that probing leaves nothing behind."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import host_stalls
import pytest
from builders.processes import needs_root, open_files
from builders.tables import table
from oracles import oracle

from testbed.errors import MissingTool
from testbed.host import doctor
from testbed.host.doctor import Check, can_run, limits, machine, programs, trial
from testbed.host.emulators import fiberd
from testbed.host.files import catalog
from testbed.host.linux import congestion


def examined() -> dict[str, Check]:
    return {check.name: check for check in doctor.examine()}


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    results = doctor.examine()
    assert len({check.name for check in results}) == len(results), "each name is told once"
    return {check.name: check for check in results}


def test_every_check_is_whole(checks: dict[str, Check]) -> None:
    for check in checks.values():
        assert check.state in ("ok", "missing", "limited")
        assert check.detail
        assert "\n" not in check.detail + check.fix
        assert check.state != "ok" or not check.fix, "what is well needs no mending"
        if check.needed and check.state == "missing":
            assert check.fix


@needs_root
@pytest.mark.netns
def test_kernel_parts_agree_with_ip_and_tc(checks: dict[str, Check]) -> None:
    """The oracle is `ip` and `tc` in a namespace of their own, made by `unshare`."""

    def works(script: str) -> bool:
        return subprocess.run(["unshare", "-n", "sh", "-ec", script], capture_output=True, timeout=20).returncode == 0

    veth = "ip link add v0 type veth peer name v1; "
    clsact = veth + "tc qdisc add dev v0 clsact; tc filter add dev v0 ingress "
    redirect = " action mirred egress redirect dev v1"
    for name, script in {
        "network namespaces": "true",
        "veth": veth,
        "bridge": "ip link add b0 type bridge",
        "sch_netem": veth + "tc qdisc add dev v0 root netem delay 1ms",
        "clsact, u32, mirred": clsact + "protocol all u32 match u32 0 0" + redirect,
        "cls_matchall": clsact + "protocol all matchall" + redirect,
    }.items():
        assert (checks[name].state == "ok") == works(script), name


def test_nothing_is_left_behind() -> None:
    def state() -> tuple[set[str], set[str], Path]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        interfaces = {path.name for path in Path("/sys/class/net").iterdir()}
        return interfaces, set(children), Path("/proc/self/ns/net").readlink()

    def descriptors() -> int:
        gc.collect()  # earlier tests leave descriptors to it, which may close them at any moment
        return len(open_files())

    before, open_before = state(), descriptors()
    doctor.examine()
    assert state() == before
    assert descriptors() <= open_before


def test_folders_are_looked_at_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "c"))
    results = examined()
    assert str(tmp_path / "a" / "b") in results["state folder"].detail
    assert results["runs folder"].state in ("ok", "limited")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, used=10**9, free=1000))
    folder = examined()["state folder"]
    assert folder.state == "missing"
    assert "TESTBED_STATE" in folder.fix


def test_without_fiberd_there_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fix = "apt-get install gcc libc6-dev && make demo"
    monkeypatch.setattr(fiberd, "find_binary", Mock(side_effect=MissingTool("fiberd", fix)))
    results = examined()
    assert (results["fiberd"].state, results["fiberd"].fix) == ("missing", fix)
    assert not can_run([*results.values()])


def test_torch_is_asked_for_without_importing_it(checks: dict[str, Check], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.metadata, "version", Mock(side_effect=programs.metadata.PackageNotFoundError("torch")))
    torch = programs.torch()
    results = [*{**checks, "torch": torch}.values()]
    assert torch.state == "missing"
    assert "fibers come up" in torch.detail
    assert "pip install" in torch.fix
    assert can_run(results) == can_run([*checks.values()]), "fibers need no torch"
    assert not doctor.can_train(results)


def test_without_nsenter_or_setpriv_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "setpriv" else which(name, **more))
    results = {check.name: check for check in programs.tools()}
    check = results["nsenter, setpriv"]
    assert (check.state, check.fix) == ("missing", "apt-get install util-linux")
    assert "setpriv not found" in check.detail
    assert not can_run([*results.values()])


def test_limits_are_those_of_the_host(checks: dict[str, Check]) -> None:
    """The oracles are sysctl(8) and the shell's ulimit."""

    for key in ("net.core.netdev_max_backlog", "net.core.rmem_max", "kernel.pid_max"):
        name = key.rpartition(".")[2]
        assert checks[name].detail.startswith(Path("/proc/sys", *key.split(".")).read_text().strip())
    assert checks["open files"].detail.startswith(oracle.run("sh", "-c", "ulimit -Hn").strip())


@table(
    "value, state, fix, detail",
    {
        "below it": (100, "limited", "ulimit -Hn 4096", "100, below 4096: a reason"),
        "at it": (4096, "ok", "", "4096: a reason"),
        "without a limit": (-1, "ok", "", "unlimited: a reason"),
    },
)
def test_a_limit_that_is_too_low_is_said_with_its_cure(value: int, state: str, fix: str, detail: str) -> None:
    check = limits.limit("open files", value, 4096, "a reason", "ulimit -Hn 4096")
    assert (check.state, check.fix, check.detail) == (state, fix, detail)


def test_the_clock_is_the_kernels(checks: dict[str, Check]) -> None:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text().strip()
    assert checks["clock source"].detail.startswith(source)
    assert "us late at minimum" in checks["timers"].detail


def test_a_slow_clock_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_read_cost_s", lambda: 2e-6)
    assert next(iter(machine.clock())).state == "limited"


def test_a_machine_without_headroom_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter(([0] * 8, [90, 0, 0, 10, 0, 0, 0, 0], [0] * 8, [0, 0, 0, 80, 0, 0, 0, 20]))
    monkeypatch.setattr(machine, "_cpu_ticks", lambda: next(busy))
    for text in ("10 % idle", "20 % stolen"):
        (check,) = machine.headroom()
        assert (check.state, text in check.detail) == ("limited", True)


@needs_root
def test_without_capabilities_what_is_lacking_is_named() -> None:
    """In a process that is root without capabilities, by util-linux's setpriv."""
    lacking = "(check.name for check in doctor.examine() if check.needed and check.state == 'missing')"
    code = f"from testbed.host import doctor; print(*{lacking})"
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "env", "PYTHONDONTWRITEBYTECODE=1"]
    output = oracle.run(*drop, sys.executable, "-c", code, timeout_s=60)
    for name in ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "network namespaces"):
        assert name in output
    assert "veth" not in output, "what could not be tried is not said to be missing"


def test_a_child_that_hangs_is_given_up() -> None:
    began = time.monotonic()
    assert trial.in_child(lambda: time.sleep(60) or "", timeout_s=0.2) is None  # type: ignore[func-returns-value]
    assert host_stalls.elapsed_s(began) < 10


@table("work, result", {"it dies": (lambda: os._exit(9), None), "a text": (lambda: "x", "x"), "none": (lambda: "", "")})
def test_a_child_returns_its_result_if_any(work: Callable[[], str], result: str | None) -> None:
    assert trial.in_child(work, timeout_s=5.0) == result


def test_only_what_is_needed_decides() -> None:
    needless = Check("docker", "missing", "not there")
    limited = Check("sch_netem", "limited", "not there", needed=True)
    assert can_run([needless, limited])
    assert not can_run([needless, Check("fiberd", "missing", "not there", "build it", needed=True)])


def test_congestion_controls_are_those_of_the_kernel(
    checks: dict[str, Check], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    assert all(congestion.has(name) for name in loaded)
    assert not congestion.has("nothing")
    assert {"cubic", "bbr", "reno"} & {*loaded} <= {*checks["TCP over fibers"].detail.replace(",", "").split()}
    listed = tmp_path / "available"
    listed.write_text("reno cubic\n")
    monkeypatch.setattr(congestion, "_LOADED", listed)
    monkeypatch.setattr(congestion, "_MODULES", tmp_path)
    monkeypatch.setattr(machine, "_MEMORY_PER_HOST_BYTES", 0)
    check = {check.name: check for check in machine.resources()}["TCP over fibers"]
    assert (check.state, "bbr use the kernel's default" in check.detail) == ("limited", True)
    assert check.fix.endswith("modprobe -a tcp_bbr")
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nworkload: {steps: 10}\nset: {congestion: bbr}\n")
    (mistake,) = catalog.examine_experiment(str(file))
    assert mistake.warning
    assert "this kernel lacks the TCP congestion control bbr" in str(mistake)
    modules = tmp_path / os.uname().release
    modules.mkdir()
    (modules / "modules.dep").write_text("kernel/net/ipv4/tcp_bbr.ko.xz:\nkernel/net/ipv4/tcp_yeah.ko: x\n")
    assert congestion.has("bbr"), "a route that names it loads it"
    assert catalog.examine_experiment(str(file)) == ()
