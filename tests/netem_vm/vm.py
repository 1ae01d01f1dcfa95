"""A kernel with sch_netem for tests: Debian's User-Mode Linux, over this machine's root as copy-on-write.

Nothing is installed and no image is built: three packages are downloaded and unpacked below ``build/netem-vm`` (42 MB,
once), and User-Mode Linux, an ordinary process, boots in about two seconds. Inside, / is this machine's root; changes
are kept in memory and discarded at the end. It has a network of its own and runs programs at native speed on one CPU.
It is not a sandbox: what it does as root, it can do to the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "netem-vm"
PACKAGES = ("user-mode-linux", "busybox-static", "kmod")
FETCH_BOUND_S = 120

# The first process: this machine's root below, memory above it, then pid 1 is the command that was asked for.
INIT = r"""#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for word in $(cat /proc/cmdline); do case $word in vm_*=*) export "$word";; esac; done
insmod /overlay.ko
mount -t hostfs -o / none /host
mount -t tmpfs -o size=75% t /upper; mkdir /upper/u /upper/w
mount -t overlay -o lowerdir=/host,upperdir=/upper/u,workdir=/upper/w o /new || poweroff -f
for d in proc sys dev; do mkdir -p /new/$d; mount --move /$d /new/$d; done
mkdir -p /new/mnt /new/lib/modules
for d in mnt lib/modules run; do mount -t tmpfs t /new/$d; done
mkdir -p /new/mnt/out /new/dev/pts /new/dev/shm
mount -t hostfs -o $vm_out none /new/mnt/out
ln -s $vm_modules /new/lib/modules/$(uname -r)
mount -t devpts d /new/dev/pts; mount -t tmpfs t /new/dev/shm; mount -t cgroup2 c /new/sys/fs/cgroup
ln -sfn /proc/self/fd /new/dev/fd
ip link set lo up
echo $vm_modprobe > /new/proc/sys/kernel/modprobe
cp /bin/busybox /new/run/busybox
exec switch_root /new /run/busybox sh /mnt/out/first.sh
"""


class Unavailable(Exception):
    """Why there is no such kernel here."""


def stamp(packages: Sequence[str] = PACKAGES, init: str = INIT) -> str:
    """Names what the unpacked folder was made of: another list of packages, or another first process, is another."""
    return hashlib.sha256("\0".join([*packages, init]).encode()).hexdigest()[:12]


def fetch() -> Path:
    """The folder of the unpacked packages; fetched the first time, and when it is out of date. Raises Unavailable."""
    unpacked = CACHE / stamp()
    if unpacked.is_dir():
        return unpacked
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is missing: the kernel comes in Debian packages ({', '.join(PACKAGES)})")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        _bounded(["apt-get", "-q", "-o", "Acquire::Retries=2", "download", *PACKAGES], Path(scratch))
        for package in Path(scratch).glob("*.deb"):
            _bounded(["dpkg", "-x", str(package), "root"], Path(scratch))
        (Path(scratch) / "root" / "bin" / "modprobe").symlink_to("kmod")
        _initramfs(Path(scratch) / "root")
        with contextlib.suppress(OSError):  # somebody else was quicker
            (Path(scratch) / "root").rename(unpacked)
    for old in CACHE.iterdir():
        # A scratch folder may be another's who fetches at this moment, and has a name like tmp….
        if old != unpacked and (old.name == "root" or len(old.name) == len(unpacked.name)):
            shutil.rmtree(old, ignore_errors=True)
    return unpacked


def _bounded(argv: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=FETCH_BOUND_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{argv[0]} did not end within {FETCH_BOUND_S} s") from error
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no words"]
        raise Unavailable(f"{shlex.join(argv)}: {words[-1]}")


def _modules(unpacked: Path) -> Path:
    found = list((unpacked / "usr" / "lib" / "uml" / "modules").iterdir())
    if len(found) != 1:
        raise Unavailable(f"{unpacked}: not the package that was expected; remove it")
    return found[0]


def _initramfs(unpacked: Path) -> None:
    busybox = unpacked / "bin" / "busybox"
    tree = unpacked / "initramfs"
    for folder in ("bin", "proc", "sys", "dev", "host", "upper", "new"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin" / "busybox")
    (tree / "bin" / "sh").symlink_to("busybox")
    shutil.copy(_modules(unpacked) / "kernel" / "fs" / "overlayfs" / "overlay.ko", tree / "overlay.ko")
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    archive = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"], cwd=tree, input=names.encode(), capture_output=True, check=True
    )
    (unpacked / "initramfs.cpio").write_bytes(archive.stdout)


def run(argv: Sequence[str], out: Path, *, timeout_s: float, memory: str = "3G") -> tuple[int, str]:
    """Run ``argv`` as root in this folder on that kernel; (its exit status, what it and the kernel printed).

    What it writes into /mnt/out lies in ``out`` afterwards. The status is 125 when the machine never came so far, 124
    when it took longer than ``timeout_s`` and was ended. Raises Unavailable.
    """
    unpacked = fetch().resolve()
    path = f"{Path('/usr/sbin')}:/sbin:{os.environ.get('PATH', '')}"
    environment = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "TESTBED_NETEM_VM": "1"}
    environment |= {key: os.environ[key] for key in ("TESTBED_THOROUGH",) if key in os.environ}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
    (out / "first.sh").write_text(
        f"{exports}\n{unpacked / 'bin' / 'modprobe'} ipv6\n"
        f"cd {shlex.quote(str(ROOT))}\n{shlex.join(argv)} >/mnt/out/said 2>&1\n"
        "echo $? >/mnt/out/status\nsync\n/run/busybox poweroff -f\n"
    )
    kernel = [
        *(str(unpacked / "usr" / "bin" / "linux.uml"), f"mem={memory}", f"initrd={unpacked / 'initramfs.cpio'}"),
        *("con=null", "con0=null,fd:1", "console=tty0", "quiet", "panic=1"),
        *(f"vm_out={out}", f"vm_modules={_modules(unpacked)}", f"vm_modprobe={unpacked / 'bin' / 'modprobe'}"),
    ]
    # What is inside has its own; and a machine that runs beside tests must not look like something of one of them.
    outer = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
    # Its memory is a file in TMPDIR: on a disk it would be written back all the time.
    shared = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    machine = subprocess.Popen(
        kernel, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**outer, **shared}, start_new_session=True,
    )  # fmt: skip
    try:
        console, _ = machine.communicate(timeout=timeout_s)
        status = 125
    except subprocess.TimeoutExpired:
        os.killpg(machine.pid, signal.SIGKILL)  # our own session: the kernel's threads are processes of this group
        console, _ = machine.communicate()
        status = 124
    said = (out / "said").read_text(errors="replace") if (out / "said").exists() else ""
    if (out / "status").exists():
        status = int((out / "status").read_text())
    else:
        said += console.decode(errors="replace")
    return status, said
