"""Namespaces are created and held in any mount environment: a container, a service, a CI runner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders.commands import piped, run_line
from builders.conditions import ALONE
from oracles import oracle

pytestmark = ALONE

CPUS = sorted(os.sched_getaffinity(0))[:2]

MAKE = """
import os, sys
from pathlib import Path
from testbed.host.linux import namespace
name, handles, cpus = sys.argv[1], Path(sys.argv[2]), [int(it) for it in sys.argv[3:]]
mounts = namespace.CleanMounts()
for cpu in cpus:
    os.sched_setaffinity(0, {cpu})
    node = handles / f"n{cpu}"
    namespace.create(f"{name}-{cpu}", node, hostname=f"n{cpu}", hosts=f"10.9.9.9 on-{cpu}\\n", mounts=mounts)
    print(f"made on {cpu}", flush=True)
sys.stdin.readline()
for cpu in cpus:
    namespace.remove(f"{name}-{cpu}", handles / f"n{cpu}")
"""


@pytest.mark.parametrize("propagation", ["private", "slave", "shared"])
@pytest.mark.parametrize("cpu", CPUS)
def test_in_a_mount_namespace_of_any_propagation_made_on_any_cpu(propagation: str, cpu: int, tmp_path: Path) -> None:
    """On Linux 6.18 with two CPUs one of ``cpu`` failed: "mount failed: Invalid argument"."""
    name = oracle.unused_name()
    outer = ["taskset", "--cpu-list", str(cpu), "unshare", "--mount", f"--propagation={propagation}"]
    inner = ["taskset", "--cpu-list", ",".join(map(str, CPUS)), sys.executable, "-c", MAKE, name, str(tmp_path / "h")]
    child = piped([*outer, *inner, *map(str, CPUS)], stdin=subprocess.PIPE)  # fmt: skip
    try:
        for at in CPUS:
            assert child.stdout.readline() == f"made on {at}\n", child.stderr.read()
        for at in CPUS:
            node = tmp_path / "h" / f"n{at}"
            enter = [
                "nsenter",
                f"--target={child.pid}",
                "--mount",
                "nsenter",
                f"--mount={node}/mnt",
                f"--uts={node}/uts",
            ]
            assert oracle.run(*enter, "hostname") == f"n{at}\n"
            assert oracle.run(*enter, "cat", "/etc/hosts") == f"10.9.9.9 on-{at}\n"
            # Its mounts hold no other node's namespaces, and the host's go on without its own.
            assert "nsfs" not in oracle.run(*enter, "cat", "/proc/self/mountinfo")
        child.communicate("\n", timeout=20)
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()
        left = sorted(it.name for it in Path("/run/netns").glob(f"{name}*"))
        for it in left:
            run_line("ip netns del", it)
    assert left == []


def test_a_chroot_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Bound into a chroot that is no mount of its own, as debootstrap leaves it."""
    root = tmp_path / "root"
    make = "try:\n namespace.CleanMounts()\nexcept Exception as error:\n print(error)"
    code = f"from testbed.host.linux import namespace\n{make}"
    script = f"mkdir {root} && cd / && for it in *; do mkdir -p {root}/$it && mount --rbind /$it {root}/$it; done"
    words = ["unshare", "--mount", "--propagation=private", "sh", "-c"]
    said = oracle.run(*words, f'{script}; exec chroot {root} "$0" -c "$1"', sys.executable, code)
    assert said == "labs cannot be created inside a chroot, which setns(2) leaves; use a container instead\n"
