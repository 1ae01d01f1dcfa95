"""A launched program that tries what a program must not be able to do, and prints what came of it as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, PR_GET_PDEATHSIG = 16, 2


def tried(work: Callable[[], object]) -> str:
    """Return how it failed; "done" if it did not."""
    try:
        work()
    except (OSError, subprocess.SubprocessError) as error:
        return type(error).__name__
    return "done"


def called(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def run_set_uid(program: str) -> None:
    if subprocess.run([program, "-u"], capture_output=True, text=True, check=True).stdout.strip() != "0":
        raise PermissionError("it did not become root")


def write(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("forged\n")


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.connect(str(path))


def raw(family: int, protocol: int) -> None:
    socket.socket(family, socket.SOCK_RAW, protocol).close()


def status() -> dict[str, str]:
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {key: value.strip() for key, _, value in lines}


def pdeathsig() -> int:
    found = ctypes.c_int()
    LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(found), 0, 0, 0)
    return found.value


def main() -> None:
    state, keeper, above, set_uid = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    own = Path(os.environ["TESTBED_FOLDER"])
    run = own.parent.parent
    refused = {
        "read the journal": lambda: (state / "journal.jsonl").read_bytes(),
        "write the journal": lambda: write(state / "journal.jsonl"),
        "list the lab's folder": lambda: list(state.iterdir()),
        "ask the keeper": lambda: connect(state / "keeper.sock"),
        "write run.json": lambda: write(run / "run.json"),
        "rename run.json": lambda: (run / "run.json").rename(run / "before.json"),
        "make a file in the run's folder": lambda: write(run / "forged.json"),
        "write events": lambda: write(run / "events.jsonl"),
        "write metrics": lambda: write(run / "metrics.jsonl"),
        "rename the run's folder": lambda: run.rename(run.with_name("moved")),
        "rename the folder of ranks": lambda: (run / "ranks").rename(run / "moved"),
        "write a rank's log": lambda: write(run / "ranks" / "rank-0.log"),
        "make a file among the ranks'": lambda: write(run / "ranks" / "attempt"),
        "rename its own folder": lambda: own.rename(own.with_name("moved")),
        "kill the keeper": lambda: os.kill(keeper, signal.SIGKILL),
        "kill the command": lambda: os.kill(above, signal.SIGKILL),
        "trace the keeper": lambda: called("ptrace", PTRACE_ATTACH, keeper, None, None),
        "read the keeper's memory": lambda: Path(f"/proc/{keeper}/mem").read_bytes(),
        "enter the keeper's root": lambda: list(Path(f"/proc/{keeper}/root").iterdir()),
        "mount": lambda: called("mount", b"none", b"/mnt", b"tmpfs", 0, None),
        "open a packet socket": lambda: raw(socket.AF_PACKET, socket.htons(3)),
        "open a raw socket": lambda: raw(socket.AF_INET, socket.IPPROTO_ICMP),
        "set a sysctl": lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"),
        "become root": lambda: os.setuid(0),
        "run a set-user-ID program": lambda: run_set_uid(set_uid),
        "change the host's files": lambda: write(Path("/etc/hostname")),
        "enter another node": lambda: called("setns", os.open("/run/netns", os.O_RDONLY), 0),
    }
    allowed = {
        "write its own folder": lambda: write(own / "notes"),
        "write its home": lambda: write(Path(os.environ["HOME"]) / "notes"),
        "write its temporary folder": lambda: write(Path(os.environ["TMPDIR"]) / "notes"),
        "ping": lambda: subprocess.run(["ping", "-c", "1", "-W", "5", "west-1"], capture_output=True, check=True),
        "ping by IPv6": lambda: subprocess.run(
            ["ping", "-6", "-c", "1", "-W", "5", "west-1"], capture_output=True, check=True
        ),
    }
    with_links = {
        "link to the host": lambda: (own / "link").symlink_to("/etc/hostname"),
        "second name of a file of its own": lambda: os.link(own / "notes", own / "notes-too"),
    }
    descriptors = {
        it.name: str(it.readlink())
        for it in list(Path("/proc/self/fd").iterdir())
        if it.is_symlink()  # not that of the listing itself
    }
    answer = {
        "refused": {name: tried(work) for name, work in refused.items()},
        "allowed": {name: tried(work) for name, work in {**allowed, **with_links}.items()},
        "second name of run.json": tried(lambda: os.link(run / "run.json", own / "run.json")),
        "status": status(),
        "pdeathsig": pdeathsig(),
        "descriptors": descriptors,
        "environment": {key: os.environ.get(key, "") for key in ("HOME", "USER", "TMPDIR")},
        "user": [os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()],
        "folder": str(Path.cwd()),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
