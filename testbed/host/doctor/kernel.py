"""Kernel checks: capabilities, the kernel features that labs are built from, and the fiber emulators."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from testbed.errors import MissingTool
from testbed.host.doctor.check import Check
from testbed.host.doctor.trial import in_child
from testbed.host.emulators import fiberd
from testbed.host.linux import invocation

__all__ = ["capabilities", "emulators", "parts", "version"]

_CAPABILITIES: Final = {
    "CAP_NET_ADMIN": (12, "creates interfaces, routes and queueing disciplines"),
    "CAP_SYS_ADMIN": (21, "creates and enters namespaces"),
    "CAP_NET_RAW": (13, "opens fiberd's packet sockets"),
}
_CAP_SYS_NICE: Final = 23


def version() -> Check:
    python = platform.python_version()
    return Check("Linux and Python", "ok", f"kernel {platform.release()}, Python {python}, {platform.machine()}")


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def capabilities() -> Iterator[Check]:
    effective = _effective_capabilities()
    for name, (number, purpose) in _CAPABILITIES.items():
        held = bool(effective >> number & 1)
        yield Check(name, "ok" if held else "missing", purpose, "" if held else invocation.again(name), needed=True)
    fifo = _fifo_problem()
    if not fifo:
        yield Check("SCHED_FIFO", "ok", "fiberd preempts the ranks: fiber delays hold under CPU load")
    else:
        held = bool(effective >> _CAP_SYS_NICE & 1)
        yield Check(
            "SCHED_FIFO",
            "limited",
            f"{fifo}; fiberd runs at normal priority, which reduces fidelity under CPU load",
            "" if held else invocation.again("CAP_SYS_NICE"),
        )


def _fifo_problem() -> str:
    """Return why a process of this user may not use SCHED_FIFO; empty if it may. Attempted in a child process."""
    problem = in_child(_take_fifo, timeout_s=5.0)
    return "the attempt timed out" if problem is None else problem


def _take_fifo() -> str:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError as error:
        return f"not allowed ({(error.strerror or 'refused').lower()})"
    return ""


_PARTS: Final = {
    "veth": ("veth", "links between namespaces", "modprobe veth"),
    "bridge": ("bridge", "site fabrics and the management network", "modprobe bridge"),
    "clsact, u32, mirred": (
        "redirect",
        "zero-delay baseline path of certificates",
        "modprobe -a act_mirred cls_u32",
    ),
}
_UNTRIED: Final = "unknown: the attempt needs a network namespace"


def parts(tried: Mapping[str, str]) -> Iterator[Check]:
    problem, purpose = tried["unshare"], "hold nodes, gateways and the plant"
    if problem:
        yield Check(
            "network namespaces", "missing", f"{purpose}: {problem}", invocation.again("CAP_SYS_ADMIN"), needed=True
        )
    else:
        yield Check("network namespaces", "ok", purpose, needed=True)
    for name, (trial, purpose, fix) in _PARTS.items():
        if trial not in tried:
            yield Check(name, "limited", f"{purpose}: {_UNTRIED}", needed=True)
        elif tried[trial]:
            yield Check(name, "missing", f"{purpose}: {tried[trial]}", invocation.as_root(fix), needed=True)
        else:
            yield Check(name, "ok", purpose, needed=True)
    problem = tried.get("matchall", _UNTRIED)
    yield Check(
        "cls_matchall",
        "limited" if problem else "ok",
        f"{problem}; u32 is used instead" if problem else "redirects packets",
    )
    problem = tried.get("altname", _UNTRIED)
    yield Check(
        "alternative names",
        "limited" if problem else "ok",
        f"{problem}; interfaces of long names have only their short one, see {invocation.command('show', 'TOPOLOGY')}"
        if problem
        else "interfaces of names above 15 characters have the full one as well",
    )


def emulators(tried: Mapping[str, str]) -> Iterator[Check]:
    problem = tried.get("netem", _UNTRIED)
    yield Check(
        "sch_netem",
        "limited" if problem else "ok",
        f"{problem}; fiberd emulates the fibers instead"
        if problem
        else "the kernel's network emulator; --emulator auto selects it",
    )
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")
    try:
        binary = fiberd.find_binary()
    except MissingTool as error:
        yield Check("fiberd", "missing", "not compiled when the testbed was installed", error.install, needed=True)
    else:
        yield Check("fiberd", "ok", str(binary), needed=True)
    yield Check("C compiler", "ok", compiler or "none, and none is needed: an install gets one to compile fiberd")
