"""What this host can do, and for what it cannot: why, and the command that mends it. The facts of ``testbed doctor``.

What has to be tried to be known is tried in a child process inside a network namespace of its own, which the kernel
removes when the child ends, however it ends: nothing is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from testbed.errors import MissingTool, TestbedError
from testbed.host import containerlab, docker_client, fiberd, images, store

__all__ = ["Check", "can_run", "can_train", "probe"]

State = Literal["ok", "missing", "limited"]

_CAPABILITIES: Final = {
    "CAP_NET_ADMIN": (12, "makes interfaces, routes and queueing disciplines"),
    "CAP_SYS_ADMIN": (21, "makes and enters namespaces"),
    "CAP_NET_RAW": (13, "fiberd's packet sockets"),
}
_CAP_SYS_NICE: Final = 23
_FREE_BYTES: Final = 500_000_000
_MEMORY_PER_HOST_BYTES: Final = 2_000_000_000
_TRIAL_TIMEOUT_S: Final = 20.0
BRIDGE_PORTS: Final = 1023
"""BR_MAX_PORTS is 1 << BR_PORT_BITS, 1024, and port 0 is not used (net/bridge/br_private.h)."""
_FILES, _PIDS = 4096, 1024
_SYSCTLS: Final = (
    ("net.core.netdev_max_backlog", 1000, "larger labs than of 100 nodes want 10000, or lose ARP"),
    ("net.core.rmem_max", 212_992, "bytes of receive buffers"),
    ("kernel.pid_max", 32_768, "a process and its threads per rank"),
)
_QUICK_CLOCKS: Final = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
_CLOCK_COST_S: Final = 500e-9
"""A clock that is read by a system call (hpet, acpi_pm) costs a microsecond and more; by the vDSO 30 to 100 ns."""
_CLOCK_RESOLUTION_S: Final = 1e-6
_SLEEPS: Final = 40
_LATE_S: Final = 300e-6
_WATCH_S: Final = 0.1
_IDLE_SHARE: Final = 0.25
_STOLEN_SHARE: Final = 0.05
NO_TRAINING: Final = "fibers come up without it, training does not"
_AS_ROOT: Final = "run as root: sudo testbed doctor"


@dataclass(frozen=True)
class Check:
    """One fact about the host.

    ``state``: ok; missing: it is not there; limited: something else does its work, or results suffer. ``detail`` says
    what was found, ``fix`` is one command (or one step) that mends it, empty when there is none. Without what is
    ``needed``, no lab can come up.
    """

    name: str
    state: State
    detail: str
    fix: str = ""
    needed: bool = False


def can_run(checks: Sequence[Check]) -> bool:
    """Whether a lab can come up here with its fibers certified: ``testbed up metro-40km``."""
    return not any(check.needed and check.state == "missing" for check in checks)


def can_train(checks: Sequence[Check]) -> bool:
    """Whether agents can train on it too: ``testbed run metro-40km``."""
    return can_run(checks) and not any(check.name == "torch" and check.state == "missing" for check in checks)


def probe() -> tuple[Check, ...]:
    """All facts, in the order in which they are shown. Takes about a second; never raises for what a host lacks."""
    tried = _try_in_namespace()
    return (
        _kernel(),
        *_capabilities(),
        *_kernel_parts(tried),
        *_emulators(tried),
        *_tools(),
        _torch(),
        *_machine(),
        *_clock(),
        *_headroom(),
        *_limits(),
        *_folders(),
        *_containers(),
    )


# ---- the kernel, and what we may do


def _kernel() -> Check:
    python = platform.python_version()
    return Check("Linux and Python", "ok", f"kernel {platform.release()}, Python {python}, {platform.machine()}")


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _capabilities() -> Iterator[Check]:
    effective = _effective_capabilities()
    for name, (number, purpose) in _CAPABILITIES.items():
        held = bool(effective >> number & 1)
        yield Check(name, "ok" if held else "missing", purpose, "" if held else _AS_ROOT, needed=True)
    fifo = _fifo_problem()
    if not fifo:
        yield Check("SCHED_FIFO", "ok", "fiberd runs ahead of the ranks: fibers hold while they load the machine")
    else:
        held = bool(effective >> _CAP_SYS_NICE & 1)
        yield Check(
            "SCHED_FIFO",
            "limited",
            f"{fifo}; fiberd runs as an ordinary process, and fidelity suffers under load",
            "" if held else "give CAP_SYS_NICE, or run as root",
        )


def _fifo_problem() -> str:
    """Why a process of ours may not have SCHED_FIFO; empty when it may. Tried in a child."""
    problem = _in_child(_take_fifo, timeout_s=5.0)
    return "the trial did not end" if problem is None else problem


def _take_fifo() -> str:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError as error:
        return f"not allowed ({(error.strerror or 'refused').lower()})"
    return ""


_PARTS: Final = {
    "veth": ("veth", "wires between namespaces", "modprobe veth"),
    "bridge": ("bridge", "fabrics and the management network", "modprobe bridge"),
    "clsact, u32, mirred": (
        "redirect",
        "the zero-delay path that certificates compare with",
        "modprobe -a act_mirred cls_u32",
    ),
}
_UNTRIED: Final = "cannot be told without a namespace to try it in"


def _kernel_parts(tried: dict[str, str]) -> Iterator[Check]:
    problem, purpose = tried["unshare"], "nodes, gateways and the plant are made of them"
    if problem:
        yield Check("network namespaces", "missing", f"{purpose}: {problem}", _AS_ROOT, needed=True)
    else:
        yield Check("network namespaces", "ok", purpose, needed=True)
    for name, (trial, purpose, fix) in _PARTS.items():
        if trial not in tried:
            yield Check(name, "limited", f"{purpose}: {_UNTRIED}", needed=True)
        elif tried[trial]:
            yield Check(name, "missing", f"{purpose}: {tried[trial]}", fix, needed=True)
        else:
            yield Check(name, "ok", purpose, needed=True)
    problem = tried.get("matchall", _UNTRIED)
    yield Check(
        "cls_matchall", "limited" if problem else "ok", f"{problem}; u32 does its work" if problem else "redirects"
    )


# ---- trials in a namespace of their own


def _in_child(work: Callable[[], str], timeout_s: float) -> str | None:
    """What ``work`` returned in a forked child; None when it died or took longer than ``timeout_s``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of the parent's may run here: no handlers, no flushing of its buffers.
        try:
            os.write(writer, work().encode() or b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    try:
        text = b""
        while select.select([reader], [], [], timeout_s)[0]:
            piece = os.read(reader, 65536)
            if not piece:
                return text.decode().strip("\n") if text else None
            text += piece
        return None
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _try_in_namespace() -> dict[str, str]:
    """For each trial why it failed; empty when it did not."""
    answer = _in_child(lambda: json.dumps(_trials()), _TRIAL_TIMEOUT_S)
    found: dict[str, str] = json.loads(answer) if answer else {"unshare": "the trial did not end"}
    return found


def _trials() -> dict[str, str]:
    clone_newnet = 0x40000000  # sched.h; os.unshare came with Python 3.12
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newnet) != 0:
        return {"unshare": f"not permitted ({os.strerror(ctypes.get_errno()).lower()})"}
    from pyroute2 import IPRoute

    found = {"unshare": ""}
    with IPRoute() as ip:

        def attempt(name: str, work: Callable[[], object]) -> None:
            try:
                work()
                found[name] = ""
            except Exception as error:  # pyroute2's NetlinkError, or whatever else a strange kernel makes of it
                found[name] = f"not in this kernel ({_name(error)})"

        def index(name: str) -> int:
            return int(ip.link_lookup(ifname=name)[0])

        def redirect(kind: str, **words: object) -> None:
            mirred = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": index("trial-b")}
            clsact_ingress = 0xFFFFFFF2
            ip.tc(
                "add-filter",
                kind,
                index("trial-a"),
                parent=clsact_ingress,
                prio=1,
                protocol=3,
                action=[mirred],
                **words,
            )

        attempt("veth", lambda: ip.link("add", ifname="trial-a", kind="veth", peer={"ifname": "trial-b"}))
        attempt("bridge", lambda: ip.link("add", ifname="trial-br", kind="bridge"))
        attempt("netem", lambda: ip.tc("add", "netem", index("trial-a"), handle="1:", delay=1000))
        attempt("clsact", lambda: ip.tc("add", "clsact", index("trial-a")))
        attempt("redirect", lambda: redirect("u32", target=0, keys=["0x0/0x0+0"]))
        attempt(
            "clsact again", lambda: (ip.tc("del", "clsact", index("trial-a")), ip.tc("add", "clsact", index("trial-a")))
        )
        attempt("matchall", lambda: redirect("matchall"))
    return found


def _name(error: Exception) -> str:
    """``ENOENT`` of pyroute2's NetlinkError, which carries an errno; else what the exception is called."""
    return errno.errorcode.get(getattr(error, "code", 0), type(error).__name__)


# ---- emulators


def _emulators(tried: dict[str, str]) -> Iterator[Check]:
    problem = tried.get("netem", _UNTRIED)
    yield Check(
        "sch_netem",
        "limited" if problem else "ok",
        f"{problem}; fiberd emulates the fibers instead"
        if problem
        else "the kernel's own emulator: what --emulator auto takes",
    )
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")
    try:
        binary = fiberd.find_binary()
    except MissingTool as error:
        why = "not compiled" + ("" if compiler else ", and there is no C compiler")
        yield Check("fiberd", "missing", why, error.install, needed=True)
    else:
        yield Check("fiberd", "ok", str(binary), needed=True)
    yield Check(
        "C compiler",
        "ok" if compiler else "limited",
        compiler or "none: fiberd cannot be built here",
        "" if compiler else "apt-get install gcc libc6-dev",
    )


# ---- programs and packages


def _tools() -> Iterator[Check]:
    for name, programs, purpose, package, needed in (
        ("nsenter, setpriv", ("nsenter", "setpriv"), "exec and launch run programs by them", "util-linux", True),
        ("iproute2", ("ip", "tc"), "looking at a lab by hand, and the tests", "iproute2", False),
    ):
        lacking = [program for program in programs if shutil.which(program) is None]
        state: State = "ok" if not lacking else "missing"
        detail = f"{purpose}: {', '.join(lacking)} not found" if lacking else purpose
        yield Check(name, state, detail, f"apt-get install {package}" if lacking else "", needed)


def _torch() -> Check:
    # The version is asked of the package's metadata: importing it takes two seconds and 220 MB.
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check(
            "torch",
            "missing",
            NO_TRAINING,
            "pip install 'scale-across-testbed[agents]'",
        )
    return Check("torch", "ok", f"version {version} in {sys.prefix}")


def _containers() -> Iterator[Check]:
    """What the driver containerlab needs, each with the command that brings it; labs of namespaces do without."""
    install, make_image = "sudo tools/install-containerlab.sh", "sudo testbed image build"
    without = "labs are made of namespaces instead"
    if docker_lacks := docker_client.why_not():
        permitted = "no permission" not in docker_lacks
        fix = install if permitted else _AS_ROOT
        yield Check("docker", "limited", f"{_short(docker_lacks)}; {without}", fix)
    else:
        yield Check("docker", "ok", f"version {docker_client.client().version()['Version']} answers")
    if containerlab_lacks := containerlab.missing():
        yield Check("containerlab", "limited", f"{_short(containerlab_lacks)}; {without}", install)
    else:
        yield Check("containerlab", "ok", "new enough: it deploys what testbed render prints")
    if docker_lacks:
        return
    try:
        image_lacks = images.missing()
    except TestbedError as error:
        image_lacks = str(error)
    if image_lacks:
        yield Check("container image", "limited", f"{_short(image_lacks)}; {without}", make_image)
    else:
        yield Check("container image", "ok", f"{images.reference()}: --driver containerlab can be used, auto takes it")


def _short(why: str) -> str:
    """The first sentence, without the name that the table says anyway."""
    return (
        why.partition("; ")[0].removeprefix("docker is missing: ").replace("containerlab is missing", "not installed")
    )


# ---- the machine


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    yield Check(
        "cores",
        "ok" if cores >= 2 else "limited",
        f"{cores} usable of {os.cpu_count()}" + ("" if cores >= 2 else ": ranks and fibers share it, fidelity suffers"),
    )
    memory = _available_memory_bytes()
    enough = memory >= _MEMORY_PER_HOST_BYTES
    yield Check(
        "memory",
        "ok" if enough else "limited",
        f"{memory / 1e9:.1f} GB available" + ("" if enough else "; four ranks with torch take about 1.5 GB"),
    )
    control = _read("/proc/sys/net/ipv4/tcp_congestion_control") or "unknown"
    yield Check("congestion control", "ok", f"{control}: what a lab's namespaces begin with; runs record it")


def _clock() -> Iterator[Check]:
    """What delays are measured with: the clock, and how late a sleeping process wakes."""
    name = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    others = _read("/sys/devices/system/clocksource/clocksource0/available_clocksource").split()
    cost_s = _least(_read_cost_s, 5)
    resolution_s = time.clock_getres(time.CLOCK_MONOTONIC)
    good = cost_s < _CLOCK_COST_S and resolution_s <= _CLOCK_RESOLUTION_S
    better = next((it for it in _QUICK_CLOCKS if it in others and it != name), "")
    yield Check(
        "clock source",
        "ok" if good else "limited",
        f"{name}, {resolution_s * 1e9:.0f} ns fine, {cost_s * 1e9:.0f} ns to read"
        + ("" if good else ": delays are measured less exactly"),
        f"echo {better} > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        if better and not good
        else "",
    )
    late = sorted(_overshoot_s() for _ in range(_SLEEPS))
    least, median = late[0], late[len(late) // 2]
    slack_ns = _read("/proc/self/timerslack_ns")
    prompt = median < _LATE_S
    yield Check(
        "timers",
        "ok" if prompt else "limited",
        f"a sleep of 1 ms ends {least * 1e6:.0f} us late at least, {median * 1e6:.0f} us by the median"
        + (f"; slack {int(slack_ns) / 1e3:g} us" if slack_ns.isdigit() else ""),
        "" if prompt else "stop what loads this machine, or give it cores of its own",
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


def _headroom() -> Iterator[Check]:
    """CPU that others leave, over a tenth of a second, and what a hypervisor takes."""
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
        + ("" if calm else ": fibers may be late"),
        "" if calm else "stop what loads this machine; certify again when it is calm",
    )


def _cpu_ticks() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all cores (proc_stat(5))."""
    return [int(word) for word in _read("/proc/stat").splitlines()[0].split()[1:9]]


def _limits() -> Iterator[Check]:
    yield Check("ports of a bridge", "ok", f"{BRIDGE_PORTS}: most nodes of a site, and most of a lab")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield _limit("open files", files, _FILES, "keeper and fiberd hold some per link", f"ulimit -Hn {_FILES}")
    for key, least, purpose in _SYSCTLS:
        value = _read("/proc/sys/" + key.replace(".", "/"))
        if value.isdigit():
            yield _limit(key.rpartition(".")[2], int(value), least, purpose, f"sysctl -w {key}={least}")
    pids = _read("/sys/fs/cgroup/pids.max") or _read("/sys/fs/cgroup/pids/pids.max") or "max"
    yield _limit(
        "pids of the cgroup",
        int(pids) if pids.isdigit() else resource.RLIM_INFINITY,
        _PIDS,
        "a process and its threads per rank",
        "raise pids.max of the cgroup (docker run --pids-limit)",
    )
    groups = _read("/sys/fs/cgroup/cgroup.controllers")
    version = "v2" if groups else "v1" if Path("/sys/fs/cgroup/cpu").is_dir() else ""
    yield Check("cgroup", "ok" if version else "limited", version or "none mounted; nothing of a lab depends on it")


def _limit(name: str, value: int, least: int, purpose: str, fix: str) -> Check:
    enough = value == resource.RLIM_INFINITY or value >= least
    shown = "unlimited" if value == resource.RLIM_INFINITY else str(value)
    return Check(
        name,
        "ok" if enough else "limited",
        shown + (f": {purpose}" if enough else f", less than {least}: {purpose}"),
        "" if enough else fix,
    )


def _available_memory_bytes() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _folders() -> Iterator[Check]:
    state = Path(os.environ.get("TESTBED_STATE") or "/var/lib/testbed")
    runs = Path(os.environ.get("TESTBED_RUNS") or "runs").absolute()
    yield _folder("state folder", state, "TESTBED_STATE")
    yield _folder("runs folder", runs, "TESTBED_RUNS")


def _folder(name: str, folder: Path, variable: str) -> Check:
    """Whether ``folder``, or where it will be made, can be written and has room. Nothing is made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    fix = f"export {variable}=/another/folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(name, "missing", f"{folder}: {existing} may not be written", fix, needed=True)
    free = shutil.disk_usage(existing).free
    if free < store.NEEDED_BYTES:
        return Check(name, "missing", f"{folder}: {free / 1e6:.0f} MB free", fix, needed=True)
    roomy = free >= _FREE_BYTES
    return Check(
        name, "ok" if roomy else "limited", f"{folder}: {free / 1e9:.1f} GB free", "" if roomy else fix, needed=True
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
