"""doctor's checks against the host as other tools see it; and that probing leaves nothing behind."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import host_stalls
import pytest

from testbed.errors import MissingTool
from testbed.host import doctor
from testbed.host.doctor import Check, can_run, limits, machine, programs, trial
from testbed.host.emulators import fiberd
from testbed.host.files import catalog
from testbed.host.linux import congestion

IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def checks() -> dict[str, Check]:
    found = doctor.examine()
    assert len({check.name for check in found}) == len(found), "each name is told once"
    return {check.name: check for check in found}


def test_every_check_is_whole(checks: dict[str, Check]) -> None:
    for check in checks.values():
        assert check.state in ("ok", "missing", "limited")
        assert check.detail
        assert "\n" not in check.detail + check.fix
        assert check.state != "ok" or not check.fix, "what is well needs no mending"
        if check.needed and check.state == "missing":
            assert check.fix


@pytest.mark.skipif(not IS_ROOT, reason="needs root")
@pytest.mark.netns
def test_kernel_parts_agree_with_ip_and_tc(checks: dict[str, Check]) -> None:
    """The oracle is `ip` and `tc` in a namespace of their own, made by `unshare`."""

    def works(script: str) -> bool:
        return subprocess.run(["unshare", "-n", "sh", "-ec", script], capture_output=True, timeout=20).returncode == 0

    veth = "ip link add v0 type veth peer name v1; "
    assert (checks["network namespaces"].state == "ok") == works("true")
    assert (checks["veth"].state == "ok") == works(veth)
    assert (checks["bridge"].state == "ok") == works("ip link add b0 type bridge")
    assert (checks["sch_netem"].state == "ok") == works(veth + "tc qdisc add dev v0 root netem delay 1ms")
    clsact = veth + "tc qdisc add dev v0 clsact; tc filter add dev v0 ingress "
    redirect = " action mirred egress redirect dev v1"
    assert (checks["clsact, u32, mirred"].state == "ok") == works(clsact + "protocol all u32 match u32 0 0" + redirect)
    assert (checks["cls_matchall"].state == "ok") == works(clsact + "protocol all matchall" + redirect)


def test_nothing_is_left_behind() -> None:
    def interfaces_and_children() -> tuple[set[str], set[str]]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return {path.name for path in Path("/sys/class/net").iterdir()}, set(children)

    def descriptors() -> int:
        # Earlier tests leave descriptors to the garbage collector, which may close them at any moment.
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before, open_before = interfaces_and_children(), descriptors()
    home = Path("/proc/self/ns/net").readlink()
    doctor.examine()
    assert interfaces_and_children() == before
    assert descriptors() <= open_before
    assert Path("/proc/self/ns/net").readlink() == home


def test_folders_are_looked_at_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("TESTBED_RUNS", str(tmp_path / "c"))
    found = {check.name: check for check in doctor.examine()}
    assert str(tmp_path / "a" / "b") in found["state folder"].detail
    assert found["runs folder"].state in ("ok", "limited")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    folder = next(check for check in doctor.examine() if check.name == "state folder")
    assert folder.state == "missing"
    assert "TESTBED_STATE" in folder.fix


def test_without_fiberd_there_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> Path:
        raise MissingTool("fiberd", "apt-get install gcc libc6-dev && make demo")

    monkeypatch.setattr(fiberd, "find_binary", lacking)
    found = doctor.examine()
    told = next(check for check in found if check.name == "fiberd")
    assert (told.state, told.fix) == ("missing", "apt-get install gcc libc6-dev && make demo")
    assert not can_run(found)


def test_torch_is_asked_for_without_importing_it(checks: dict[str, Check], monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise programs.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(programs.metadata, "version", absent)
    found = [*(check for check in checks.values() if check.name != "torch"), programs.torch()]
    told = found[-1]
    assert told.state == "missing"
    assert "fibers come up" in told.detail
    assert "pip install" in told.fix
    assert can_run(found) == can_run([*checks.values()]), "fibers need no torch"
    assert not doctor.can_train(found)


def test_without_nsenter_or_setpriv_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "setpriv" else which(name, **more))
    found = tuple(programs.tools())
    told = next(check for check in found if check.name == "nsenter, setpriv")
    assert (told.state, told.fix) == ("missing", "apt-get install util-linux")
    assert "setpriv not found" in told.detail
    assert not can_run(found)


def test_limits_are_those_of_the_host(checks: dict[str, Check]) -> None:
    """The oracles are sysctl(8) and the shell's ulimit."""

    def said(*argv: str) -> str:
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    for key in ("net.core.netdev_max_backlog", "net.core.rmem_max", "kernel.pid_max"):
        name = key.rpartition(".")[2]
        assert checks[name].detail.startswith(Path("/proc/sys", *key.split(".")).read_text().strip())
    assert checks["open files"].detail.startswith(said("sh", "-c", "ulimit -Hn"))


def test_a_limit_that_is_too_low_is_said_with_its_cure() -> None:
    low = limits._limit("open files", 100, 4096, "a reason", "ulimit -Hn 4096")
    assert (low.state, low.fix) == ("limited", "ulimit -Hn 4096")
    assert limits._limit("open files", 4096, 4096, "a reason", "ulimit -Hn 4096").state == "ok"
    assert limits._limit("open files", -1, 4096, "a reason", "ulimit -Hn 4096").detail.startswith("unlimited")


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
    (told,) = machine.headroom()
    assert (told.state, "10 % idle" in told.detail) == ("limited", True)
    (told,) = machine.headroom()
    assert (told.state, "20 % stolen" in told.detail) == ("limited", True)


@pytest.mark.skipif(not IS_ROOT, reason="drops capabilities")
def test_without_capabilities_what_is_lacking_is_named() -> None:
    """In a process that is root without capabilities, by util-linux's setpriv."""
    lacking = "(check.name for check in doctor.examine() if check.needed and check.state == 'missing')"
    code = f"from testbed.host import doctor; print(*{lacking})"
    argv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [*argv, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for name in ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "network namespaces"):
        assert name in done.stdout
    assert "veth" not in done.stdout, "what could not be tried is not said to be missing"


def test_a_child_that_hangs_is_given_up() -> None:
    began = time.monotonic()
    assert trial.in_child(lambda: time.sleep(60) or "", timeout_s=0.2) is None  # type: ignore[func-returns-value]
    assert host_stalls.elapsed_s(began) < 10


def test_a_child_that_dies_says_nothing() -> None:
    assert trial.in_child(lambda: os._exit(9), timeout_s=5.0) is None
    assert trial.in_child(lambda: "said", timeout_s=5.0) == "said"
    assert trial.in_child(lambda: "", timeout_s=5.0) == ""


def test_only_what_is_needed_decides() -> None:
    needless = Check("docker", "missing", "not there")
    needed = Check("fiberd", "missing", "not there", "build it", needed=True)
    limited = Check("sch_netem", "limited", "not there", needed=True)
    assert can_run([needless, limited])
    assert not can_run([needless, needed])


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
    told = {check.name: check for check in machine.resources()}["TCP over fibers"]
    assert (told.state, "bbr use the kernel's default" in told.detail) == ("limited", True)
    assert told.fix.endswith("modprobe -a tcp_bbr")
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nworkload: {steps: 10}\nset: {congestion: bbr}\n")
    (found,) = catalog.examine_experiment(str(file))
    assert found.warning
    assert "this kernel lacks the TCP congestion control bbr" in str(found)
    modules = tmp_path / os.uname().release
    modules.mkdir()
    (modules / "modules.dep").write_text("kernel/net/ipv4/tcp_bbr.ko.xz:\nkernel/net/ipv4/tcp_yeah.ko: x\n")
    assert congestion.has("bbr"), "a route that names it loads it"
    assert catalog.examine_experiment(str(file)) == ()
