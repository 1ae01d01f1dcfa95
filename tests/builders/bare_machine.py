"""A bare Debian to run commands on: debootstrap's minimal system and what the README asks for, as a root of its own.

The root is made once, with nothing but the packages named (no compiler, no git, no docker), and kept as a folder below
``build/bare``; every machine is a copy of it as overlay on a tmpfs, entered by pivot_root, because no lab can be made
inside a chroot. Processes, mounts and names are its own. The network is this machine's, so that pip reaches what it
reaches here; labs make network namespaces of their own. When the command ends, nothing of the machine is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from builders import ROOT

CACHE = ROOT / "build" / "bare"
SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "make", "iproute2", "ca-certificates")
"""What the README asks for, and the certificates that every machine with a network has."""

MAKE_BOUND_S = 600
marks = (
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a root file system and namespaces: needs root"),
    pytest.mark.skipif(
        not os.environ.get("TESTBED_BARE"),
        reason="takes minutes, Debian's mirror and the package index; make test-bare runs it",
    ),
)
"""Of every test on a bare machine."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

SSH_HOST = r"""
set -e
mkdir -p /run/sshd /run/systemd
echo lxc >/run/systemd/container
ssh-keygen -q -A
useradd --create-home --shell /bin/bash --password '*' lab
echo 'lab ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/lab
install -d -m 700 -o lab -g lab /home/lab/.ssh
echo "$CLIENT_KEY" >/home/lab/.ssh/authorized_keys
chown lab:lab /home/lab/.ssh/authorized_keys"""
"""Beginning of a script that makes a machine a host: its keys, and a user ``lab`` with sudo who has $CLIENT_KEY."""

# As pid 1 of its own pid namespace; $1: the kept root, $2: an empty folder, $3: the checkout, the rest: the command.
ENTER = r"""
set -euo pipefail
base=$1 place=$2 source=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o size=12g,mode=755 bare "$place"
mkdir "$place"/{upper,work,root}
mount -t overlay -o "lowerdir=$base,upperdir=$place/upper,workdir=$place/work" bare "$place/root"
cd "$place/root"
mount -t proc proc proc
mount -t sysfs sysfs sys 2>/dev/null || mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777,size=3g tmpfs tmp
mkdir -p srv/testbed srv/wheels etc/ssl/certs old
cp -a "$source"/. srv/testbed
cp /etc/resolv.conf etc/resolv.conf
if [ -e "$CERTIFICATES" ]; then cp --remove-destination "$(readlink -f "$CERTIFICATES")" "./$CERTIFICATES"; fi
if [ -n "$WHEELS" ]; then mount --bind "$WHEELS" srv/wheels; fi
hostname bare
echo "127.0.0.1 localhost bare" >etc/hosts
pivot_root . old
cd /
umount -l /old
rmdir /old
cd /srv/testbed
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
"""


class Unavailable(Exception):
    """Why there is no bare machine here."""


def base(packages: Sequence[str] = PACKAGES) -> Path:
    """Return the folder of a bare root with ``packages``; made once (a minute). Raises Unavailable."""
    folder = CACHE / hashlib.sha256("\0".join([SUITE, *packages]).encode()).hexdigest()[:12]
    if folder.is_dir():
        return folder
    tool = shutil.which("debootstrap")
    if tool is None:
        raise Unavailable("debootstrap is not installed: apt-get install debootstrap")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        made = Path(scratch) / "root"
        including = [f"--include={','.join(packages)}"] if packages else []
        words = ["--variant=minbase", *including, SUITE, str(made)]
        # In a mount namespace of its own: what it mounts below the new root is gone when it ends, however it ends.
        apart = ["unshare", "--mount", "--propagation", "private", "--"]
        try:
            done = subprocess.run([*apart, tool, *words], capture_output=True, text=True, timeout=MAKE_BOUND_S)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"debootstrap did not end within {MAKE_BOUND_S} s") from error
        if done.returncode != 0:
            raise Unavailable(f"debootstrap failed: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
        shutil.rmtree(made / "var" / "cache" / "apt" / "archives", ignore_errors=True)
        made.rename(folder)
    return folder


def checkout(folder: Path) -> Path:
    """Copy the tracked files of this checkout, as they are now, to ``folder``: what a clone has."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        raise Unavailable(f"no git checkout to take the files of: {listed.stderr.strip()}")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    folder.chmod(0o755)
    return folder


def wheels() -> Path | None:
    """Return the folder ``TESTBED_WHEELS``, if it has a torch wheel."""
    folder = os.environ.get("TESTBED_WHEELS")
    return Path(folder).resolve() if folder and any(Path(folder).glob("torch-*.whl")) else None


def run(
    argv: Sequence[str], log: Path, *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run ``argv`` as root in a fresh copy of this checkout on a bare machine; return its status and what it said.

    ``log`` receives the output as it comes. Raises Unavailable.
    """
    with started(argv, log, environment=environment) as child:
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = 124
    return status, log.read_text(errors="replace")


@contextlib.contextmanager
def started(
    argv: Sequence[str],
    log: Path,
    *,
    packages: Sequence[str] = PACKAGES,
    environment: Mapping[str, str] | None = None,
    source: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``argv`` as :func:`run` does, on a machine with ``packages``; it ends with the block. Raises Unavailable.

    ``source``: a folder to copy to /srv/testbed in place of this checkout.
    """
    kept = base(packages)
    found = wheels()
    variables = {key: value for key, value in os.environ.items() if key in ("https_proxy", "PIP_INDEX_URL")}
    variables |= {"PIP_CERT": str(CERTIFICATES)} if CERTIFICATES.exists() else {}
    variables |= {"TESTBED_WHEELS": "/srv/wheels"} if found else {}
    variables |= environment or {}
    assignments = [f"{key}={value}" for key, value in variables.items()]
    with tempfile.TemporaryDirectory(prefix="bare-") as scratch:
        place = Path(scratch) / "place"
        place.mkdir()
        if source is None:
            source = Path(scratch) / "source"
            source.mkdir()
            checkout(source)
        apart = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--"]
        words = ["bash", "-c", ENTER, "bare", str(kept), str(place), str(source), *assignments, *argv]
        with log.open("wb") as output:
            child = subprocess.Popen(
                [*apart, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "CERTIFICATES": str(CERTIFICATES), "WHEELS": str(found or "")},
            )  # fmt: skip
            try:
                yield child
            finally:
                child.kill()  # and with it pid 1 inside, and all that it started
                child.wait()
