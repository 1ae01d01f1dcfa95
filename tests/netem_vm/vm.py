"""A kernel with sch_netem for tests, over this machine's root as copy-on-write.

Debian's User-Mode Linux, an ordinary process, boots in about two seconds and runs programs at native speed on one CPU.
Where it does not boot, as on processors with AMX, QEMU emulates a machine for Debian's kernel: about 20 times slower.

Nothing is installed and no image is built: packages are downloaded and unpacked below ``build/netem-vm``, once. Inside,
/ is this machine's root; changes are kept in memory and discarded at the end. The machine has a network of its own.
It is not a sandbox: root in User-Mode Linux can change the host.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "netem-vm"
TOOLS = ("busybox-static", "kmod")
PACKAGES = {"uml": ("user-mode-linux", *TOOLS), "qemu": ("linux-image-amd64", "qemu-system-x86", *TOOLS)}
MODULES = {"uml": ("overlay",), "qemu": ("overlay", "virtio_pci", "9pnet_virtio", "9p")}
"""Modules to load before / is mounted, by backend."""
BOOT_TIMEOUT_S = {"uml": 120.0, "qemu": 240.0}
FETCH_TIMEOUT_S = 300

# The first process: this machine's root below, memory above it, then pid 1 is the requested command.
INIT = r"""#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for word in $(cat /proc/cmdline); do case $word in vm_*=*) export "$word";; esac; done
for module in /modules/*; do insmod $module; done
share=trans=virtio,version=9p2000.L,msize=512000
case $vm_backend in
uml) mount -t hostfs -o / none /host;;
qemu) mount -t 9p -o ro,$share,cache=loose root /host;;
esac
mount -t tmpfs -o size=75% t /upper; mkdir /upper/u /upper/w
mount -t overlay -o lowerdir=/host,upperdir=/upper/u,workdir=/upper/w o /new || poweroff -f
for d in proc sys dev; do mkdir -p /new/$d; mount --move /$d /new/$d; done
mkdir -p /new/mnt /new/lib/modules
for d in mnt lib/modules run; do mount -t tmpfs t /new/$d; done
mkdir -p /new/mnt/out /new/dev/pts /new/dev/shm
case $vm_backend in
uml) mount -t hostfs -o $vm_out none /new/mnt/out;;
qemu) mount -t 9p -o $share,cache=none out /new/mnt/out;;
esac
ln -s $vm_unpacked/lib/modules/$(uname -r) /new/lib/modules/$(uname -r)
mount -t devpts d /new/dev/pts; mount -t tmpfs t /new/dev/shm; mount -t cgroup2 c /new/sys/fs/cgroup
ln -sfn /proc/self/fd /new/dev/fd
ip link set lo up
echo $vm_unpacked/bin/modprobe > /new/proc/sys/kernel/modprobe
cp /bin/busybox /new/run/busybox
exec switch_root /new /run/busybox sh /mnt/out/first.sh
"""


class Unavailable(Exception):
    """This machine lacks a prerequisite that cannot be installed."""


class BootError(Exception):
    """No kernel could be fetched or booted, although the prerequisites exist."""


def stamp(backend: str) -> str:
    """Return the name of a backend's unpacked folder, which changes with its packages and its first process."""
    recipe = "\0".join([*PACKAGES[backend], *MODULES[backend], INIT])
    return f"{backend}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def fetch(backend: str) -> Path:
    """Return the folder of a backend's unpacked packages; fetch it the first time, and when it is out of date.

    Raises:
        Unavailable: Debian packages for this machine do not exist.
        BootError: The packages cannot be fetched.
    """
    unpacked = CACHE / stamp(backend)
    if unpacked.is_dir():
        return unpacked
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        raise Unavailable(f"expected Linux x86_64, found {machine}")
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise Unavailable(
                f"{tool} is missing: the kernel comes in Debian packages ({', '.join(PACKAGES[backend])})"
            )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        try:
            _download(backend, Path(scratch))
        except BootError:
            if os.geteuid() != 0:
                raise
            _output(["apt-get", "-q", "update"], Path(scratch))  # the package lists may be missing, or too old
            _download(backend, Path(scratch))
        for package in Path(scratch).glob("*.deb"):
            _output(["dpkg", "-x", str(package), "root"], Path(scratch))
        _initramfs(backend, Path(scratch) / "root")
        with contextlib.suppress(OSError):  # another process was faster
            (Path(scratch) / "root").rename(unpacked)
    current = {stamp(name) for name in PACKAGES}
    for old in CACHE.iterdir():
        if old.name not in current and not old.name.startswith("tmp"):  # tmp…: another process may fetch now
            shutil.rmtree(old, ignore_errors=True)
    return unpacked


def _download(backend: str, folder: Path) -> None:
    packages = set(PACKAGES[backend])
    if backend == "qemu":
        # Its libraries too, unless they are installed; linux-image-amd64 is empty and depends on the newest kernel.
        plan = _output(["apt-get", "install", "--simulate", "--no-install-recommends", "qemu-system-x86"], folder)
        kernel = _output(["apt-cache", "depends", "linux-image-amd64"], folder)
        packages |= set(re.findall(r"^Inst (\S+)", plan, re.MULTILINE))
        packages |= set(re.findall(r"Depends: (linux-image-\S+)", kernel))
    _output(["apt-get", "-q", "-o", "Acquire::Retries=2", "download", *sorted(packages)], folder)


def _output(argv: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BootError(f"{shlex.join(argv)} did not end within {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise BootError(f"{shlex.join(argv)}: {lines[-1]}")
    return done.stdout


def _modules(unpacked: Path) -> Path:
    """Return the folder of the unpacked kernel's modules."""
    folders = list((unpacked / "lib" / "modules").iterdir())
    if len(folders) != 1:
        raise BootError(f"expected modules of one kernel in {unpacked}, found {len(folders)}; remove that folder")
    return folders[0]


def _initramfs(backend: str, unpacked: Path) -> None:
    (unpacked / "bin" / "modprobe").symlink_to("kmod")
    (unpacked / "bin" / "depmod").symlink_to("kmod")
    if backend == "uml":
        (of_uml,) = (unpacked / "usr" / "lib" / "uml" / "modules").iterdir()
        (unpacked / "lib" / "modules").mkdir(exist_ok=True)
        (unpacked / "lib" / "modules" / of_uml.name).symlink_to(f"../../usr/lib/uml/modules/{of_uml.name}")
    version = _modules(unpacked).name
    _output([str(unpacked / "bin" / "depmod"), "-b", str(unpacked), version], unpacked)
    tree = unpacked / "initramfs"
    for folder in ("bin", "proc", "sys", "dev", "host", "upper", "new", "modules"):
        (tree / folder).mkdir(parents=True)
    busybox = unpacked / "bin" / "busybox"
    shutil.copy(busybox, tree / "bin" / "busybox")
    (tree / "bin" / "sh").symlink_to("busybox")
    needed: dict[str, None] = {}
    for module in MODULES[backend]:
        modprobe = [str(unpacked / "bin" / "modprobe"), "-d", str(unpacked), "-S", version, "--show-depends", module]
        needed |= dict.fromkeys(re.findall(r"^insmod (\S+)", _output(modprobe, unpacked), re.MULTILINE))
    for number, file in enumerate(needed):
        shutil.copy(file, tree / "modules" / f"{number:02}-{Path(file).name}")
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    archive = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"], cwd=tree, input=names.encode(), capture_output=True, check=True
    )
    (unpacked / "initramfs.cpio").write_bytes(archive.stdout)


@functools.cache
def choose_backend() -> str:
    """Return "uml" if User-Mode Linux boots here, else "qemu"; $TESTBED_NETEM_VM_BACKEND overrides the choice.

    Raises:
        Unavailable: A prerequisite of both is missing.
        BootError: Neither boots; the message has the last lines of both consoles.
    """
    if forced := os.environ.get("TESTBED_NETEM_VM_BACKEND"):
        if forced not in PACKAGES:
            raise BootError(f"expected TESTBED_NETEM_VM_BACKEND to be one of {', '.join(PACKAGES)}, found {forced!r}")
        return forced
    failures = []
    for name in PACKAGES:
        try:
            with tempfile.TemporaryDirectory() as out:
                status, output = boot(name, ["true"], Path(out), BOOT_TIMEOUT_S[name], "512M")
        except (BootError, OSError) as error:
            failures.append(f"{name}: {error}")
            continue
        if status == 0:
            return name
        end = " / ".join(output.strip().splitlines()[-3:])
        failures.append(f"{name}: status {status} after at most {BOOT_TIMEOUT_S[name]:g} s: {end}")
    raise BootError("; ".join(failures))


def run(argv: Sequence[str], out: Path, *, timeout_s: float, memory: str = "3G") -> tuple[int, str]:
    """Run ``argv`` as root in this folder on the kernel of :func:`choose_backend`; return its exit status and output.

    Files that it writes to /mnt/out are in ``out`` afterwards. The status is 125 if the machine did not boot, 124 if
    it was stopped after ``timeout_s``.

    Raises:
        Unavailable: A prerequisite is missing on this machine.
        BootError: No kernel boots.
    """
    return boot(choose_backend(), argv, out, timeout_s, memory)


def boot(backend: str, argv: Sequence[str], out: Path, timeout_s: float, memory: str) -> tuple[int, str]:
    unpacked = fetch(backend).resolve()
    path = f"{Path('/usr/sbin')}:/sbin:{os.environ.get('PATH', '')}"
    environment = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "TESTBED_NETEM_VM": backend}
    if "TESTBED_THOROUGH" in os.environ and backend == "uml":  # too slow under QEMU
        environment["TESTBED_THOROUGH"] = os.environ["TESTBED_THOROUGH"]
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
    (out / "first.sh").write_text(
        f"{exports}\n{unpacked / 'bin' / 'modprobe'} ipv6\n"
        f"cd {shlex.quote(str(ROOT))}\n{shlex.join(argv)} >/mnt/out/output 2>&1\n"
        "echo $? >/mnt/out/status\nsync\n/run/busybox poweroff -f\n"
    )
    # What is inside has its own; and a machine that runs beside tests must not look like something of one of them.
    outer = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_")}
    machine = subprocess.Popen(
        _kernel(backend, unpacked, out, memory), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**outer, **_settings(backend, unpacked)}, start_new_session=True,
    )  # fmt: skip
    try:
        console, _ = machine.communicate(timeout=timeout_s)
        status = 125
    except subprocess.TimeoutExpired:
        os.killpg(machine.pid, signal.SIGKILL)  # our own session: the kernel's threads are processes of this group
        console, _ = machine.communicate()
        status = 124
    output = (out / "output").read_text(errors="replace") if (out / "output").exists() else ""
    if (out / "status").exists():
        status = int((out / "status").read_text())
    else:
        output += console.decode(errors="replace")
    return status, output


def _kernel(backend: str, unpacked: Path, out: Path, memory: str) -> list[str]:
    """Return the command that boots a kernel."""
    words = [f"vm_backend={backend}", f"vm_unpacked={unpacked}", f"vm_out={out}", "quiet"]
    initramfs = unpacked / "initramfs.cpio"
    if backend == "uml":
        console = ["con=null", "con0=null,fd:1", "console=tty0", "panic=1"]
        return [str(unpacked / "usr" / "bin" / "linux.uml"), f"mem={memory}", f"initrd={initramfs}", *console, *words]
    qemu = shutil.which("qemu-system-x86_64", path=f"{unpacked / 'usr' / 'bin'}:{os.environ.get('PATH', '')}")
    if qemu is None:
        raise BootError(f"expected qemu-system-x86_64 in {unpacked} or PATH; remove that folder")
    words += ["console=ttyS0", "panic=-1", "mitigations=off", "tsc=reliable", "no_timer_check"]
    command = [qemu, "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-m", memory]
    command += ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]
    for firmware in ("qemu", "seabios"):
        command += ["-L", str(unpacked / "usr" / "share" / firmware)]
    for tag, options in (("root", "path=/,readonly=on"), ("out", f"path={str(out).replace(',', ',,')}")):
        command += ["-fsdev", f"local,id={tag},{options},security_model=none,multidevs=remap"]
        command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    kernel = unpacked / "boot" / f"vmlinuz-{_modules(unpacked).name}"
    return [*command, "-kernel", str(kernel), "-initrd", str(initramfs), "-append", " ".join(words)]


def _settings(backend: str, unpacked: Path) -> dict[str, str]:
    """Return environment variables of the process that is the machine."""
    if backend == "qemu":
        folders = [unpacked / parent / "lib" / "x86_64-linux-gnu" for parent in ("usr", "")]
        return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    # Its memory is a file in TMPDIR: on a disk it would be written back all the time.
    return {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
