"""fiberd without memory, its own or the kernel's: it drops packets and counts them, and does not keep the core busy."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.conditions import LABS
from builders.proc import state_of, status_of
from fiberd_lab import Lab, cpu_s, lab_up, run, until

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.errors import LabError
from testbed.host.emulators import fiberd as client
from testbed.host.emulators.fiberd import Fiberd

pytestmark = LABS

SOURCES = Path(client.__file__).resolve().parents[2] / "fiberd"

ENOMEM = ("Cannot allocate memory", "Out of memory")
"""In the words of glibc and of musl, of which fiberd is made where there is no compiler."""

PRELOAD = r"""
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int refuses(const char *what) { return access(what, F_OK) == 0; }

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags) {
    int (*real)(int, struct mmsghdr *, unsigned, int) = dlsym(RTLD_NEXT, "sendmmsg");
    if (!refuses(getenv("NO_BUFFERS")))
        return real(fd, messages, count, flags);
    errno = ENOBUFS;
    return -1;
}

void *realloc(void *old, size_t bytes) {
    void *(*real)(void *, size_t) = dlsym(RTLD_NEXT, "realloc");
    const char *what = getenv("NO_MEMORY");
    return what && refuses(what) ? NULL : real(old, bytes);
}
"""


Starter = Callable[..., Fiberd]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with lab_up("fm") as made:
        yield made


@pytest.fixture
def start(tmp_path: Path, lab: Lab) -> Iterator[Starter]:
    running: list[Fiberd] = []

    def start(impairment: Impairment, priority: int = client.DEFAULT_PRIORITY) -> Fiberd:
        near, far = lab.ends()
        directions = [
            EmulatedDirection("l0:b", near, far, impairment),
            EmulatedDirection("l0:a", far, near, impairment),
        ]
        running.append(Fiberd.start(lab.plant, directions, 4, tmp_path / "fiberd.log", priority))
        return running[-1]

    yield start
    for emulator in running:
        emulator.stop()


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fiberd whose kernel has no buffers while ``no-buffers`` is there, and whose C library no memory while
    ``no-memory`` is; returns their folder."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    binary, library = tmp_path / "fiberd", tmp_path / "refuses.so"
    sources = sorted(SOURCES.glob("*.c"))
    run(compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", "-fno-builtin", "-o", binary, *sources, "-lm")
    (tmp_path / "refuses.c").write_text(PRELOAD)
    run(compiler, "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, tmp_path / "refuses.c", "-ldl")
    monkeypatch.setattr(client, "_BINARY", binary)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("NO_BUFFERS", str(tmp_path / "no-buffers"))
    monkeypatch.setenv("NO_MEMORY", str(tmp_path / "no-memory"))
    return tmp_path


def status(pid: int, key: str) -> int:
    return int(status_of(pid)[key].split()[0])


def flood(lab: Lab, packets: int, size: int = 1000) -> None:
    """Datagrams from a to b, without ARP."""
    hardware = lab.links_of(lab.b)["fib0"]["address"]
    run(f"ip -n {lab.a} neigh replace 10.77.0.2 lladdr", hardware, "dev", "fib0", "nud", "permanent")
    with lab.socket(lab.a, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(packets):
            sender.sendto(b"x" * size, ("10.77.0.2", 9))


@pytest.mark.parametrize("before", [True, False], ids=["from the first packet on", "later"])
def test_without_memory_packets_are_dropped_and_the_core_is_left_to_others(
    lab: Lab, start: Starter, before: bool
) -> None:
    """At normal priority here: one that spins under SCHED_FIFO would take the test's core too."""
    emulator = start(Impairment(delay_s=30.0), priority=0)
    pid = emulator.pid
    if not before:
        flood(lab, 10)
        until(lambda: emulator.stats()[0].in_flight_packets == 10, 5, "these are in flight")
    held = 0 if before else 10
    hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
    resource.prlimit(pid, resource.RLIMIT_AS, (status(pid, "VmSize") << 10, hard))
    flood(lab, 3000)
    found = until(
        lambda: (it := emulator.stats()[0]).in_flight_packets + sum(it.drops.values()) >= 3000 + held and it,
        10,
        "each packet is in flight or counted as lost",
    )
    assert found.drops["memory"] + found.drops["receive"] > 100, "else there was memory"
    until(lambda: state_of(pid) == "S", 5, "it waits for the next packet")
    # Enough again: it goes on.
    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
    emulator.set({"l0:b": Impairment(), "l0:a": Impairment()})
    emulator.set({}, flush=["l0:b", "l0:a"])
    assert len(lab.rtts_s(5)) == 5


@pytest.mark.alone
def test_while_the_kernel_has_no_buffers_it_sleeps_between_its_tries(lab: Lab, start: Starter, refusing: Path) -> None:
    emulator = start(Impairment(delay_s=0.02))
    if "SCHED_FIFO" not in emulator.info.scheduling:
        pytest.skip("needs SCHED_FIFO, without which it never spins")
    (refusing / "no-buffers").touch()
    flood(lab, 500)
    time.sleep(0.05)  # all are due; each is tried for a millisecond
    before_s, asked_t = cpu_s(emulator.pid), time.monotonic()
    slept = status(emulator.pid, "voluntary_ctxt_switches")
    before = emulator.stats()[0].drops["transmit"]
    found = until(lambda: (it := emulator.stats()[0]).drops["transmit"] > before + 200 and it, 10, "these are given up")
    dropped = found.drops["transmit"] - before
    slept = status(emulator.pid, "voluntary_ctxt_switches") - slept
    print(dropped, slept, cpu_s(emulator.pid) - before_s, time.monotonic() - asked_t)
    assert slept > 5 * dropped, "of 20 tries a packet most are slept for"
    (refusing / "no-buffers").unlink()
    until(lambda: emulator.stats()[0].in_flight_packets == 0, 10, "the rest has gone")
    assert len(lab.rtts_s(5)) == 5


def test_an_answer_that_there_is_no_memory_for_is_an_error_and_not_half_of_one(
    lab: Lab, start: Starter, refusing: Path
) -> None:
    emulator = start(Impairment(delay_s=0.001))
    (refusing / "no-memory").touch()
    for _ in range(3):
        try:
            assert [it.direction for it in emulator.stats()] == ["l0:b", "l0:a"]
        except LabError as error:
            assert "out of memory" in str(error)
    (refusing / "no-memory").unlink()
    assert [it.direction for it in emulator.stats()] == ["l0:b", "l0:a"]
    assert len(lab.rtts_s(5)) == 5


def test_one_that_has_no_memory_to_begin_with_says_so(lab: Lab, tmp_path: Path) -> None:
    """Rather than start, and be readable for ever without anywhere to read to."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near, far = lab.ends()
    binary, netns = client.find_binary(), f"/run/netns/{lab.plant}"
    with (
        ours,
        subprocess.Popen(
            [binary, "--netns", netns, "--parent", str(os.getpid())],
            stdin=theirs.fileno(),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, 1 << 20)),
        ) as child,
    ):
        theirs.close()
        ours.sendall(f"add l0:b {near} {far}\n".encode())
        ours.settimeout(5)
        try:
            answer = ours.recv(1000).decode()
            assert answer in [f"error {near}: cannot allocate memory: {words}\n" for words in ENOMEM]
            ours.shutdown(socket.SHUT_RDWR)
            assert child.wait(5) == 0
        finally:
            child.kill()
