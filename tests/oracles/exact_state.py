"""Capture the whole state of a lab that a fault may change, from the kernel, to compare before and after.

Of every network namespace of a lab: ``ip -j -d`` of links, addresses, routes and rules, permanent neighbours, ``tc -j``
of qdiscs, classes and filters, ``nft -j`` if installed, all of /proc/sys/net, and the control groups of the processes
inside. Imports nothing from ``testbed``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from oracles import oracle

Picture = dict[str, Any]

PASSING = {
    # Timers of a bridge (ip-link(8)), which run continuously.
    *("gc_timer", "hello_timer", "tcn_timer", "topology_change_timer", "message_age_timer", "forward_delay_timer"),
    "hold_timer",
    # Counters.
    *("carrier_changes", "carrier_up_count", "carrier_down_count"),
    # netem's seed: drawn again at each change, so that two faults do not lose the same packets.
    "seed",
}
"""Fields that change by themselves, such as timers and counters; omitted at any depth."""

CGROUP_FILES = ("cpu.max", "cpu.weight", "cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "memory.max", "freezer.state")

_IP = ("link show", "addr show", "route show table all", "rule show", "neigh show nud permanent")
_FILTERS = ("filter show", "filter show ingress", "filter show egress")


def picture(lab: str, *, nodes: Collection[str] = (), sysctls: bool = True) -> Picture:
    """Return {"NODE: WHAT": value} of some or all namespaces of a lab. ``sysctls`` are a thousand files each."""
    found: Picture = {}
    chosen = sorted(nodes or oracle.namespaces(lab))
    inside = _inside([oracle.netns(lab, node) for node in chosen])
    for node in chosen:
        name = oracle.netns(lab, node)
        found |= {f"{node}: {what}": value for what, value in of_namespace(name).items()}
        found[f"{node}: control groups"] = sorted({line for pid in inside[name] for line in _cgroup(pid)})
        if sysctls:
            found[f"{node}: /proc/sys/net"] = oracle.inside(name, lambda: dict(_sysctls()))
    return found


def at_rest(lab: str, nodes: Collection[str] = ()) -> Picture:
    """Return the state of a lab that has just come up, after the kernel has confirmed its automatic addresses."""
    found: list[Picture] = [{}]

    def same() -> bool:
        found.append(picture(lab, nodes=nodes))
        return "tentative" not in json.dumps(found[-1]) and found[-1] == found[-2]

    try:
        oracle.until(same, 20.0, "")
    except AssertionError as error:
        raise AssertionError(f"state of {lab} keeps changing: {differences(found[-2], found[-1])}") from error
    return found[-1]


def of_namespace(name: str) -> Picture:
    found: Picture = {"ip": _answers(("ip", "-d"), name, _IP), "ip -6": _answers(("ip", "-6", "-d"), name, _IP[2:])}
    found |= traffic_control(name, [link["ifname"] for link in found["ip"][0]])
    if shutil.which("nft"):
        ruleset = json.loads(oracle.run("ip", "netns", "exec", name, "nft", "-j", "list", "ruleset"))
        found["nft"] = _plain(ruleset)
    return found


def traffic_control(name: str, devices: Sequence[str]) -> Picture:
    asked = ["qdisc show", *(f"{it} dev {device}" for device in devices for it in _FILTERS)]
    return {
        "tc qdisc, filter": _answers(("tc",), name, asked),
        # As text, because the output of `tc -j` for some classes (tbf) is not JSON.
        "tc class": sorted(_batch(("tc", "-n", name), [f"class show dev {it}" for it in devices]).splitlines()),
    }


def differences(before: Picture, after: Picture) -> list[str]:
    """Return a line for each difference, with both values."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        one, other = before.get(key), after.get(key)
        if one == other:
            continue
        if isinstance(one, list) and isinstance(other, list):
            one, other = [it for it in one if it not in other], [it for it in other if it not in one]
        elif isinstance(one, dict) and isinstance(other, dict):
            changed = {it for it in one.keys() | other.keys() if one.get(it) != other.get(it)}
            one, other = ({it: value.get(it) for it in sorted(changed)} for value in (one, other))
        found.append(f"{key}: before {json.dumps(one)}, after {json.dumps(other)}")
    return found


def _answers(program: tuple[str, ...], name: str, asked: Sequence[str]) -> list[Any]:
    """Return the answers of one `ip -j` or `tc -j` process to ``asked``; some commands have no answer at all."""
    answers, rest, decoder = [], _batch((*program, "-n", name, "-j"), asked).lstrip(), json.JSONDecoder()
    while rest:
        answer, end = decoder.raw_decode(rest)
        answers.append(_plain(answer))
        rest = rest[end:].lstrip()
    return answers


def _batch(program: Sequence[str], asked: Sequence[str]) -> str:
    argv = [*program, "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(asked), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr, f"{argv}: {done.stderr}"
    return done.stdout


def _sysctls() -> Iterator[tuple[str, str]]:
    """Yield everything below /proc/sys/net, of the calling thread's network namespace."""
    for path in sorted(Path("/proc/sys/net").rglob("*")):
        with contextlib.suppress(OSError):  # some are write-only
            if path.is_file():
                yield str(path), path.read_text()


def _cgroup(pid: int) -> Iterator[str]:
    """Yield the control groups of a process and their settings (cgroups(7))."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            yield line
            _, controllers, path = line.split(":", 2)
            folder = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
            for file in CGROUP_FILES:
                with contextlib.suppress(OSError):
                    yield f"{folder / file}: {(folder / file).read_text().strip()}"


def _inside(names: list[str]) -> dict[str, list[int]]:
    """Return the processes in each of these network namespaces, by one scan of /proc."""
    inodes = {Path("/run/netns", name).stat().st_ino: name for name in names}
    found: dict[str, list[int]] = {name: [] for name in names}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if name := inodes.get((entry / "ns" / "net").stat().st_ino):
                    found[name].append(int(entry.name))
    return found


def _plain(value: Any) -> Any:
    """Return a value without :data:`PASSING` and with lists sorted."""
    if isinstance(value, dict):
        return {key: _plain(it) for key, it in value.items() if key not in PASSING}
    if isinstance(value, list):
        return sorted((_plain(it) for it in value), key=lambda it: json.dumps(it, sort_keys=True))
    return value
