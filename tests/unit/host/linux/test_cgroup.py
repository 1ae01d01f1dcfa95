"""Control groups: the cpu controller on made-up hierarchies (the kernel's: tests/netns); kills by lack of memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.processes import Child, python
from builders.tables import table

from testbed.errors import HostError
from testbed.host.linux import cgroup
from testbed.host.linux.cgroup import CpuGroup, Hierarchy, OomWatch, hierarchy
from testbed.keeper.throttle import Throttle

V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "41 31 0:38 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHERS = "23 1 8:1 / / rw - ext4 /dev/sda rw\n33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
CONTROLLERS, GIVEN = "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control"


UNIFIED = "/sys/fs/cgroup/unified"


@table(
    "files, expected",
    {
        "of v1": ({"/proc/self/mountinfo": OTHERS + V1}, Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), unified=False)),
        "of v2": (
            {"/proc/self/mountinfo": OTHERS + V2, CONTROLLERS: "cpuset cpu io\n", GIVEN: "cpu memory\n"},
            Hierarchy(Path("/sys/fs/cgroup"), unified=True),
        ),
        "of v1, beside a v2 that has none": (
            {
                "/proc/self/mountinfo": V2.replace("/sys/fs/cgroup rw", f"{UNIFIED} rw") + V1,
                f"{UNIFIED}/cgroup.controllers": "hugetlb\n",
                f"{UNIFIED}/cgroup.subtree_control": "hugetlb\n",
            },
            Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), unified=False),
        ),
    },
)
def test_the_hierarchy_of_the_cpu_controller(files: dict[str, str], expected: Hierarchy) -> None:
    assert hierarchy(files.__getitem__) == expected


@table(
    "mounts, controllers, given, why",
    {
        "none is mounted": (OTHERS, "", "", r"^no control groups are mounted"),
        "this kernel has none": (
            V2,
            "io memory",
            "",
            r"no cpu controller in /sys/fs/cgroup: this kernel has none, or it belongs to cgroup v1",
        ),
        "it is not enabled": (
            V2,
            "cpu io",
            "io",
            r"enable it with: echo \+cpu > /sys/fs/cgroup/cgroup.subtree_control",
        ),
        "v2 is read-only": (V2.replace("rw,nosuid", "ro,nosuid"), "cpu", "cpu", "mounted read-only"),
        "v1 is read-only": (V1.replace("rw,relatime", "ro,relatime"), "", "", "mounted read-only"),
    },
)
def test_without_one_it_says_why_and_what_helps(mounts: str, controllers: str, given: str, why: str) -> None:
    files = {"/proc/self/mountinfo": mounts, CONTROLLERS: controllers, GIVEN: given}
    with pytest.raises(HostError, match=why):
        hierarchy(files.__getitem__)


def group(folder: Path, unified: bool, **files: str) -> CpuGroup:
    """Make a control group with these files of the cpu controller."""
    for name, text in files.items():
        (folder / f"cpu.{name}").write_text(f"{text}\n")
    return CpuGroup(folder, unified=unified)


@table(
    "unified, unlimited, share, limited, text",
    {
        "of v1": (
            False,
            {"cfs_quota_us": "-1", "cfs_period_us": "100000"},
            0.3,
            {"cfs_quota_us": "6000", "cfs_period_us": "20000"},
            "6000 us in each 20000 us",
        ),
        "of v2": (True, {"max": "max 100000"}, 0.05, {"max": "1000 20000"}, "cpu.max 1000 20000"),
    },
)
def test_a_limit_and_back(
    tmp_path: Path, unified: bool, unlimited: dict[str, str], share: float, limited: dict[str, str], text: str
) -> None:
    limits = group(tmp_path, unified, **unlimited)

    def files() -> dict[str, str]:
        return {path.name.removeprefix("cpu."): path.read_text().strip() for path in tmp_path.iterdir()}

    limits.limit(share)
    assert files() == limited
    assert (limits.limited, limits.is_ours) == (text, True)
    limits.limit(None)
    assert files() == unlimited
    assert (limits.limited, limits.is_ours) == ("", False)


def test_a_limit_of_somebodys_is_told_from_ours(tmp_path: Path) -> None:
    limits = group(tmp_path, unified=True, max="150000 100000")  # docker update --cpus 1.5
    assert (limits.limited, limits.is_ours) == ("cpu.max 150000 100000", False)


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


# ---- processes killed for want of memory

HUNGRY = "import sys; sys.stdin.read(); kept = [bytearray(1 << 20) for _ in range(256)]; print(len(kept))"


@pytest.fixture
def small() -> Iterator[Path]:
    """A group that may use 32 MiB, of cgroup v1 or v2, whichever has the memory controller."""
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory" / "memory.limit_in_bytes").exists()
    folder = (root / "memory" if v1 else root) / f"test-oom-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text("33554432")
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no memory controller that this test may use: {error}")
    yield folder
    folder.rmdir()


def hungry(group: Path) -> Child:
    """Start a process in a group. It takes 256 MiB at the end of its input."""
    child = python(HUNGRY, stdout=subprocess.DEVNULL)
    (group / "cgroup.procs").write_text(str(child.pid))
    return child


def test_a_process_killed_for_want_of_memory_is_told_from_one_that_was_shot(small: Path) -> None:
    watch = OomWatch()
    with hungry(small) as starved, hungry(small) as shot:
        for key, child in enumerate((starved, shot)):
            watch.watch(key, Path("/proc", str(child.pid)))
        shot.kill()
        shot.wait(10)
        assert not watch.killed(1)
        starved.communicate(timeout=30)
    assert starved.returncode == shot.returncode == -9
    assert watch.killed(0)
    assert not watch.killed(0), "one kill explains one death"


def test_kills_before_a_job_explain_no_death_in_it(small: Path) -> None:
    """Ranks share their control group with whatever else runs in it."""
    watch = OomWatch()
    with hungry(small) as foreign, hungry(small) as rank:
        watch.watch(0, Path("/proc", str(rank.pid)))
        foreign.communicate(timeout=30)
        assert foreign.returncode == -9
        watch.renew()
    assert not watch.killed(0)


def test_a_process_without_a_group_is_not_watched() -> None:
    watch = OomWatch()
    watch.watch(0, Path("/proc/0"))
    assert not watch.killed(0)
    assert not watch.killed(1)
