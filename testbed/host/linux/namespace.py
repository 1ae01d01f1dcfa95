"""Create, hold and enter Linux namespaces: setns(2), unshare(2), mount(2).

In Linux a namespace is a property of a *thread*. All functions act on the calling thread only, so multi-threaded
programs can use them; none of them forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from testbed.errors import HostError, NameTaken, NotAllowed
from testbed.host.linux import invocation

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWNET = 0x40000000
CLONE_FS = 0x00000200

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
MNT_DETACH = 2

_MOUNT_SETATTR, _MOUNT_ATTR_NOSUID = 442, 2  # Documentation/process/adding-syscalls.rst; include/uapi/linux/mount.h
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

NETNS_FOLDER = Path("/run/netns")
"""Where iproute2 looks for named network namespaces (ip-netns(8))."""

NO_NAME_SERVER = "# names are in /etc/hosts\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
"""resolv.conf of a node, which reaches no name server. With the host's file, each reverse lookup (torch's store does
one per rank) would time out after ten seconds; loopback refuses at once."""

_NS_GET_MNTNS_ID = 0x8008B705
"""ioctl(2) of a mount namespace's handle: its number, 64 bits (include/uapi/linux/nsfs.h; Linux 6.11)."""

_NUMBERS_OF_A_CPU, _TIMES_NUMBERED = 4096, 4
"""Since Linux 6.18 each CPU numbers new namespaces of all kinds from its own batch (include/linux/cookie.h)."""

_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        if number in (1, 13):
            raise NotAllowed(f"{name} is not permitted: {invocation.again('CAP_SYS_ADMIN and CAP_NET_ADMIN')}")
        raise HostError(f"{name} failed: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2). Raises HostError."""
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def unmount(target: Path) -> None:
    """umount2(2) with MNT_DETACH, which succeeds despite processes inside. A path that is not mounted is no error."""
    with contextlib.suppress(HostError):
        _call("umount2", str(target).encode(), MNT_DETACH)


@contextlib.contextmanager
def entered(path: str | Path) -> Iterator[None]:
    """Run the body with the calling thread inside the network namespace at ``path``; always returns to its own."""
    with _handle("net") as home:
        enter(path)
        try:
            yield
        finally:
            _call("setns", home, CLONE_NEWNET)


def enter(path: str | Path) -> None:
    """Move the calling thread into the network namespace at ``path``, permanently."""
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(f"no network namespace at {path}: {error.strerror}") from error
    try:
        _call("setns", there, CLONE_NEWNET)
    finally:
        os.close(there)


def inside(path: str | Path, work: Callable[[], T]) -> T:
    """Run ``work`` in a short-lived thread inside the namespace and return its result.

    The calling thread never leaves its own namespace, whatever fails: safe for library code in a user's process.
    """

    def entered_first() -> T:
        enter(path)
        return work()

    return in_a_thread(entered_first)


def in_a_fresh_one(work: Callable[[], T]) -> T:
    """Run ``work`` in a temporary network namespace, which is removed when it returns: for probing."""

    def unshared_first() -> T:
        _call("unshare", CLONE_NEWNET)
        return work()

    return in_a_thread(unshared_first)


def in_a_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own; namespaces that it enters or unshares end with the thread."""
    outcome: list[T] = []
    trouble: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=body, name="namespace", daemon=True)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return outcome[0]


def netns_path(name: str) -> Path:
    return NETNS_FOLDER / name


class CleanMounts:
    """A mount namespace without handles of other namespaces, from which those of nodes are copied. Must be closed.

    A new mount namespace is a copy of its creator's, including the handles of all other namespaces. Each copy would
    keep those alive long after their lab is gone, and in large labs copying them takes most of the time.
    """

    def __init__(self) -> None:
        self.handle = in_a_thread(self._make)

    @staticmethod
    def _make() -> int:
        _call("unshare", CLONE_NEWNS)
        _refuse_chroot()
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        unmount(NETNS_FOLDER)
        for place, kind in list(_mounts()):
            if kind == "nsfs":
                unmount(place)
        _ignore_file_privileges()
        return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.handle)


def _ignore_file_privileges() -> None:
    """Make every mount of the calling thread's namespace nosuid: set-user-ID bits and file capabilities mean nothing.

    Otherwise execve(2) refuses programs like Debian's ping, whose file has a capability, with EPERM to a process whose
    bounding set is empty. Programs that root runs keep root's capabilities. Before Linux 5.12 nothing is changed.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_NOSUID, 0, 0, 0)
    if _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes)) != 0:
        number = ctypes.get_errno()
        if number != errno.ENOSYS:
            raise HostError(f"mount_setattr failed: {os.strerror(number)}")


def _refuse_chroot() -> None:
    """Raise HostError inside a chroot: setns(2) changes the thread's root to that of the mount namespace."""
    before = Path("/").stat()
    with _handle("mnt") as own:
        _call("setns", own, CLONE_NEWNS)
    after = Path("/").stat()
    if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
        raise HostError("labs cannot be created inside a chroot, which setns(2) leaves; use a container instead")


def create(
    name: str,
    handles: Path | None = None,
    *,
    hostname: str = "",
    hosts: str = "",
    mounts: CleanMounts | None = None,
) -> None:
    """Create the named network namespace; with ``handles`` also mount, IPC and UTS namespaces, held as files there.

    The mount namespace is a copy of ``mounts``. Bind mounts of the nsfs files keep the namespaces alive, without a
    process. ``hosts`` becomes /etc/hosts inside; /sys and /dev/shm are the namespace's own. Raises NameTaken, or
    HostError after removing what was created so far.
    """
    _prepare_folder(NETNS_FOLDER)
    try:
        # Unsharing the mount namespace cannot be undone, so the thread ends afterwards.
        in_a_thread(lambda: _create(name, handles, hostname, hosts, mounts))
    except NameTaken:
        raise  # created by another program meanwhile, so it must not be removed
    except BaseException:
        remove(name, handles)
        raise


def _prepare_folder(folder: Path) -> None:
    """Make ``folder`` a shared mount point, as `ip netns add` does, for interoperability."""
    if any(place == folder for place, _ in _mounts()):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise NotAllowed(f"cannot write {folder}: {invocation.again()}") from error
    mount(str(folder), str(folder), None, MS_BIND | MS_REC)
    mount("none", str(folder), None, MS_SHARED | MS_REC)


def _mounts() -> Iterator[tuple[Path, str]]:
    """Yield (mount point, file system type) of every mount that the calling thread sees, in order; proc(5), mountinfo.

    os.path.ismount cannot see a bind mount of a folder onto itself.
    """
    for line in Path("/proc/thread-self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        yield Path(before.split()[4].encode().decode("unicode_escape")), after.split()[0]


def _create(name: str, handles: Path | None, hostname: str, hosts: str, mounts: CleanMounts | None) -> None:
    with _handle("mnt") as home_mounts:
        _call("unshare", CLONE_NEWNET | ((CLONE_NEWUTS | CLONE_NEWIPC | CLONE_FS) if handles else 0))
        _hold("net", NETNS_FOLDER / name)
        if handles is None or mounts is None:
            return
        handles.mkdir(parents=True, exist_ok=True)
        files = {"hosts": hosts, "resolv.conf": NO_NAME_SERVER}
        for file, content in files.items():
            (handles / file).write_text(content)
        socket.sethostname(hostname)
        _hold("uts", handles / "uts")
        _hold("ipc", handles / "ipc")
        _call("setns", mounts.handle, CLONE_NEWNS)
        _unshare_mounts_younger_than(home_mounts)
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
        for file in files:
            if Path("/etc", file).exists():
                mount(str(handles / file), f"/etc/{file}", None, MS_BIND)
        with _handle("mnt") as inner:
            _call("setns", home_mounts, CLONE_NEWNS)
            target = handles / "mnt"
            target.touch()
            mount(f"/proc/thread-self/fd/{inner}", str(target), None, MS_BIND)


def _unshare_mounts_younger_than(home: int) -> None:
    """Give the calling thread a mount namespace that can be held in the mount namespace ``home`` (a file descriptor).

    To prevent reference cycles, mount(2) binds only handles of mount namespaces with a higher number than its own, and
    fails with EINVAL for others (fs/namespace.c, mnt_ns_loop). Since Linux 6.18 numbers do not follow age: each CPU has
    a batch of them. In a container, whose mount namespace is young, half of the nodes would fail on two CPUs. A CPU
    that has used up its batch takes the next one, which is above all earlier ones. Creating UTS namespaces, the
    cheapest kind, uses it up: 10 ms, once per CPU. The calling thread loses its own UTS namespace, and is pinned to one
    CPU.
    """
    floor = _number_of_mounts(home)
    for _ in range(_TIMES_NUMBERED):
        _call("unshare", CLONE_NEWNS)
        with _handle("mnt") as own:
            if not floor or _number_of_mounts(own) > floor:
                return
        os.sched_setaffinity(0, {_libc.sched_getcpu()})
        for _ in range(_NUMBERS_OF_A_CPU):
            _call("unshare", CLONE_NEWUTS)
    raise HostError("this kernel does not number new mount namespaces above older ones, so none can be bind-mounted")


def _number_of_mounts(handle: int) -> int:
    """Return the number of a mount namespace; 0 on kernels that do not report it, where numbers follow age."""
    try:
        return int(struct.unpack("Q", fcntl.ioctl(handle, _NS_GET_MNTNS_ID, bytes(8)))[0])
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise HostError(f"cannot read the number of a mount namespace: {error.strerror}") from error
        return 0


@contextlib.contextmanager
def _handle(kind: str) -> Iterator[int]:
    """Yield a file descriptor of the calling thread's own namespace of ``kind``."""
    descriptor = os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _hold(kind: str, target: Path) -> None:
    """Keep the calling thread's namespace of ``kind`` alive by a bind mount at ``target``, which must not exist."""
    try:
        os.close(os.open(target, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    except FileExistsError as error:
        raise NameTaken(f"{target} exists") from error
    mount(f"/proc/thread-self/ns/{kind}", str(target), None, MS_BIND)


def remove(name: str, handles: Path | None = None) -> None:
    """Release what :func:`create` holds. Missing handles are no error; processes inside keep a namespace alive."""
    places = [NETNS_FOLDER / name]
    if handles is not None:
        places += [handles / kind for kind in ("net", "mnt", "uts", "ipc")]
    for place in places:
        if place.exists():
            unmount(place)
            with contextlib.suppress(OSError):
                place.unlink()
    if handles is not None:
        for file in ("hosts", "resolv.conf"):
            (handles / file).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            handles.rmdir()


def inode(path: str | Path) -> int:
    """Return the inode of the namespace at ``path``, which identifies it unlike a name; 0 if there is none."""
    try:
        return Path(path).stat().st_ino
    except OSError:
        return 0
