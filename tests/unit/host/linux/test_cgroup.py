"""Where the cpu controller is and what is written there, on made-up hierarchies; the kernel's own is in tests/netns."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import HostError
from testbed.host.linux import cgroup
from testbed.host.linux.cgroup import CpuGroup, Hierarchy, hierarchy
from testbed.keeper.throttle import Throttle

V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHERS = "23 1 8:1 / / rw - ext4 /dev/sda rw\n33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
CONTROLLERS, GIVEN = "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control"


def test_a_controller_of_v1() -> None:
    where = hierarchy({"/proc/self/mountinfo": OTHERS + V1}.__getitem__)
    assert where == Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), unified=False)


def test_a_controller_of_v2() -> None:
    files = {"/proc/self/mountinfo": OTHERS + V2, CONTROLLERS: "cpuset cpu io\n", GIVEN: "cpu memory\n"}
    assert hierarchy(files.__getitem__) == Hierarchy(Path("/sys/fs/cgroup"), unified=True)


def test_v1_has_it_beside_a_v2_that_has_not() -> None:
    v2 = V2.replace("/sys/fs/cgroup rw", "/sys/fs/cgroup/unified rw")
    files = {"/proc/self/mountinfo": v2 + V1}
    files |= {f"/sys/fs/cgroup/unified/cgroup.{it}": "hugetlb\n" for it in ("controllers", "subtree_control")}
    assert not hierarchy(files.__getitem__).unified


@pytest.mark.parametrize(
    ("mounts", "controllers", "given", "says"),
    [
        (OTHERS, "", "", r"^no control groups are mounted"),
        (
            V2,
            "io memory",
            "",
            r"no cpu controller in /sys/fs/cgroup: this kernel has none, or it belongs to cgroup v1",
        ),
        (V2, "cpu io", "io", r"enable it with: echo \+cpu > /sys/fs/cgroup/cgroup.subtree_control"),
        (V2.replace("rw,nosuid", "ro,nosuid"), "cpu", "cpu", "mounted read-only"),
        (V1.replace("rw,relatime", "ro,relatime"), "", "", "mounted read-only"),
    ],
)
def test_without_one_it_says_why_and_what_helps(mounts: str, controllers: str, given: str, says: str) -> None:
    files = {"/proc/self/mountinfo": mounts, CONTROLLERS: controllers, GIVEN: given}
    with pytest.raises(HostError, match=says):
        hierarchy(files.__getitem__)


@pytest.fixture
def v1(tmp_path: Path) -> CpuGroup:
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    return CpuGroup(tmp_path, unified=False)


@pytest.fixture
def v2(tmp_path: Path) -> CpuGroup:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    return CpuGroup(tmp_path, unified=True)


def files(group: CpuGroup) -> dict[str, str]:
    return {it.name: it.read_text().strip() for it in group.path.iterdir()}


def test_a_limit_of_v1_and_back(v1: CpuGroup) -> None:
    before = files(v1)
    v1.limit(0.3)
    assert files(v1) == {"cpu.cfs_quota_us": "6000", "cpu.cfs_period_us": "20000"}
    assert (v1.limited, v1.is_ours) == ("6000 us in each 20000 us", True)
    v1.limit(None)
    assert files(v1) == before
    assert (v1.limited, v1.is_ours) == ("", False)


def test_a_limit_of_v2_and_back(v2: CpuGroup) -> None:
    before = files(v2)
    v2.limit(0.05)
    assert files(v2) == {"cpu.max": "1000 20000"}
    assert (v2.limited, v2.is_ours) == ("cpu.max 1000 20000", True)
    v2.limit(None)
    assert files(v2) == before
    assert (v2.limited, v2.is_ours) == ("", False)


def test_a_limit_of_somebodys_is_told_from_ours(v2: CpuGroup) -> None:
    (v2.path / "cpu.max").write_text("150000 100000\n")  # docker update --cpus 1.5
    assert (v2.limited, v2.is_ours) == ("cpu.max 150000 100000", False)


def test_what_cannot_be_written_is_said_with_the_group(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=rf"cannot write '6000 20000' to cpu.max of the control group {tmp_path}/gone"):
        CpuGroup(tmp_path / "gone", unified=True).limit(0.3)
    CpuGroup(tmp_path / "gone", unified=True).remove(CpuGroup(tmp_path, unified=True))  # not there: no error


def test_of_a_container_that_is_gone_no_limit_has_to_be_taken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "hierarchy", lambda: Hierarchy(tmp_path, unified=True))
    handle = tmp_path / "west-0"
    handle.symlink_to("/proc/4194305/ns/net")  # more than any pid (proc_sys_kernel(5))
    throttle = Throttle("lab", lambda node: handle)
    throttle.set("west-0", None)
    with pytest.raises(HostError, match="cannot find the control group"):
        throttle.set("west-0", 0.3)
