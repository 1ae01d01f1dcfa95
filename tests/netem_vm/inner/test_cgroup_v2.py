"""A CPU limit by cgroup v2, on a kernel with its cpu controller; tests/contract covers v1."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracles import oracle

from testbed.errors import HostError
from testbed.host.linux import cgroup

# It gives and takes the root's controller: on a machine that lives by it, that would not be ours to do.
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif("TESTBED_NETEM_VM" not in os.environ, reason="test_in_vm.py runs this in its own kernel"),
    pytest.mark.alone,
]

ROOT = Path("/sys/fs/cgroup")


@pytest.fixture
def given() -> Iterator[None]:
    """The root gives the controller to groups below it, as systemd has it on most machines."""
    (ROOT / "cgroup.subtree_control").write_text("+cpu")
    yield
    (ROOT / "cgroup.subtree_control").write_text("-cpu")


@pytest.fixture
def busy() -> Iterator[int]:
    child = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    yield child.pid
    child.kill()
    child.wait()


def test_without_the_controller_it_says_what_helps() -> None:
    with pytest.raises(HostError, match=r"enable it with: echo \+cpu > /sys/fs/cgroup/cgroup.subtree_control$"):
        cgroup.hierarchy()


def test_a_process_is_held_back_and_let_go(given: None, busy: int) -> None:
    where = cgroup.hierarchy()
    assert (where.root, where.unified) == (ROOT, True)
    home, group = where.of(busy), where.group("testbed.lab.east-0")
    assert home is not None and home.path.resolve() == ROOT
    group.make()
    group.limit(0.2)
    assert (ROOT / "testbed.lab.east-0" / "cpu.max").read_text() == "4000 20000\n"
    group.add(busy)
    assert Path(f"/proc/{busy}/cgroup").read_text() == "0::/testbed.lab.east-0\n"
    assert 0.1 < oracle.used_cpu(busy, 2.0) < 0.25
    group.limit(None)
    assert (group.limited, group.is_ours) == ("", False)
    group.remove(home)
    assert not group.path.exists()
    assert Path(f"/proc/{busy}/cgroup").read_text() == "0::/\n"
    assert oracle.used_cpu(busy, 1.0) > 0.4
