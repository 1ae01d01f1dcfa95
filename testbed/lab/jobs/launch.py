"""Run a user's program once per rank, inside the rank's node, with torchrun's environment."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from testbed.core.faults.power import NO_POWER
from testbed.core.plan import build
from testbed.core.plan.addressing import FABRIC_INTERFACE, MASTER_PORT, Addressing
from testbed.core.plan.resources import Rank
from testbed.core.topology.model import Topology
from testbed.errors import StorageError, TestbedError
from testbed.host import runner
from testbed.host.drivers.container_place import ContainerPlace
from testbed.host.drivers.containerlab import IMAGE_USER
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import driver, netns, place
from testbed.host.linux.cgroup import OomWatch
from testbed.host.linux.program_user import ProgramUser
from testbed.keeper import client, protocol
from testbed.lab.jobs import run_metadata

GRACE_S = 5.0
"""How long ranks may take to exit by themselves after another has failed, and again after SIGTERM."""

NOTICED_S = 1.0
"""How much later than it happened the end of a process may be noticed."""

Echo = Callable[[str], None]


def environment(topology: Topology, rank: Rank, extra: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables (https://pytorch.org/docs/stable/elastic/run.html) and the names of site and node."""
    ranks = build.ranks(topology)
    site_number = [site.name for site in topology.sites].index(rank.site)
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank.rank),
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(len(ranks)),
        "MASTER_ADDR": str(Addressing(topology).node(ranks[0].node)[0]),
        "MASTER_PORT": str(MASTER_PORT),
        "TORCHELASTIC_RUN_ID": topology.name,
        "GLOO_SOCKET_IFNAME": FABRIC_INTERFACE,
        "NCCL_SOCKET_IFNAME": FABRIC_INTERFACE,
        "TESTBED_SITE": rank.site,
        "TESTBED_SITE_RANK": str(site_number),
        "TESTBED_NODE": rank.node,
        **extra,
    }


def nodes_without_power(lab: LabFolder) -> frozenset[str]:
    """Return the nodes whose power an active fault has cut. Raises LabError."""
    active = [it for it in client.ask(lab, protocol.Faults()) if it["ended_t"] is None]
    return frozenset(node for it in active if it["phase"] == NO_POWER for node in it["nodes"])


def launch(
    lab: LabFolder,
    topology: Topology,
    argv: Sequence[str],
    run: RunDirectory,
    extra: Mapping[str, str],
    echo: Echo,
    stop: threading.Event | None = None,
    user: ProgramUser | None = None,
) -> int:
    """Run ``argv`` once per rank until all have ended; return the worst status of those that ended by themselves
    (128 + n for signal n).

    Each line of output goes to ``echo``, prefixed with its rank, and into ``ranks/rank-<r>.log``. When one rank fails,
    the others are ended after :data:`GRACE_S`, as with torchrun. All ranks are also ended on KeyboardInterrupt, when
    ``stop`` is set, and when ``echo`` raises, as in ``testbed launch -- yes | head``; that error is raised here.
    It runs as ``user``, without one as root. ``TESTBED_FOLDER`` is a folder that each rank can write.
    run.json records the command, the status of each rank (None: ended by the testbed), who ended it, and when its
    process began and ended.
    """
    folder = Path.cwd()
    client.ask(lab, protocol.ShareFolder(folder=str(folder)))
    command = shlex.join(argv)
    run_metadata.amend(run, workload={"command": command})
    _give_folders(lab, run, members := build.ranks(topology), user)
    broken: list[Exception] = []

    def tell(line: str) -> None:
        try:
            if not broken:
                echo(line)
        except Exception as error:
            broken.append(error)

    ends = _Ends(lab)
    children: dict[int, subprocess.Popen[bytes]] = {}
    readers: list[threading.Thread] = []
    began_t: dict[int, float] = {}
    try:
        for rank in members:
            where = place(lab, rank.node, isolated=True, job=True, user=user)
            own = {"TESTBED_FOLDER": str(run.ranks / f"rank-{rank.rank}")}
            own |= _account(user) if user and isinstance(where, ContainerPlace) else {}
            own |= extra
            variables = environment(topology, rank, own)
            line = where.enter(argv, folder, variables)
            began_t[rank.rank] = time.monotonic()
            child = runner.spawn(line, {**os.environ, **variables}, watched=where.watched)
            children[rank.rank] = child
            first = Path(*netns(lab, rank.node).readlink().parts[:3]) if where.watched else Path(f"/proc/{child.pid}")
            ends.watch(rank, first, where.watched)
            reader = threading.Thread(target=_copy, args=(rank.rank, child, run, tell), daemon=True)
            reader.start()
            readers.append(reader)
        # Ranks that are ended here because another failed have no status of their own.
        _wait(children, ends, broken, stop or threading.Event())
        if len(ends.codes) < len(children):
            _end(children)
        all_ended_t = time.monotonic()
        for reader in readers:
            reader.join(GRACE_S)  # a grandchild may keep the pipe open forever
    finally:
        _end(children)
    codes = {rank: runner.shell_status(code) for rank, code in ends.codes.items()}
    ranks, told = sorted(children), ends.told()
    ended_t = {end["rank"]: end["t"] for end in told}
    run_metadata.amend(
        run,
        workload={
            "command": command,
            "statuses": [codes.get(rank) for rank in ranks],
            "ends": told,
            "began_t": [began_t[rank] for rank in ranks],
            "ended_t": [ended_t.get(rank, all_ended_t) for rank in ranks],
        },
    )
    if broken:
        run_metadata.end(
            run, run_metadata.Ending("interrupted", f"the output could not be shown any more: {broken[0]}")
        )
        raise broken[0]
    return max(codes.values(), default=0)


def _give_folders(lab: LabFolder, run: RunDirectory, ranks: Sequence[Rank], user: ProgramUser | None) -> None:
    """Make a folder for the files of each rank, which its program can write."""
    run.admit((user.uid, user.gid) if user else (0, 0), len(ranks), records=False)
    if driver(lab) == "containerlab":
        client.ask(lab, protocol.ShareFolder(folder=str(run.ranks)))


def _account(user: ProgramUser) -> dict[str, str]:
    """Return the variables of a user who may have no account in the image: docker would set HOME to /."""
    name = {"USER": user.name, "LOGNAME": user.name}
    return name if f"{user.uid}:{user.gid}" == IMAGE_USER else {"HOME": "/tmp", **name}


def _copy(rank: int, child: subprocess.Popen[bytes], run: RunDirectory, echo: Echo) -> None:
    """Copy a rank's output until it ends, even if the log cannot be written: a full pipe would block the rank."""
    assert child.stdout is not None
    with contextlib.ExitStack() as stack:
        log: IO[bytes] | None = None
        with contextlib.suppress(StorageError):
            log = stack.enter_context(run.open_log(rank))
        for line in child.stdout:
            with contextlib.suppress(OSError):
                if log is not None:
                    log.write(line)
            echo(f"[rank {rank}] {line.decode(errors='replace').rstrip()}")


class _Ends:
    """Notes how each rank's process ended by itself, when, and who ended it."""

    def __init__(self, lab: LabFolder) -> None:
        self._lab, self._memory = lab, OomWatch()
        self._watched: dict[int, bool] = {}
        self._nodes: dict[int, str] = {}
        self.codes: dict[int, int] = {}
        """By rank, the returncode of its process."""
        self._ends: list[dict[str, Any]] = []

    def watch(self, rank: Rank, process: Path, watched: bool) -> None:
        """Watch a rank's process, or in a container its first one, whose control group is the same.

        ``watched``: a watchdog reports its signals as a shell does, 128 + n.
        """
        self._watched[rank.rank], self._nodes[rank.rank] = watched, rank.node
        self._memory.watch(rank.rank, process)

    def note(self, rank: int, code: int) -> None:
        if rank in self.codes:
            return
        self.codes[rank] = code
        number = -code if code < 0 else code - 128 if self._watched[rank] and code > 128 else 0
        no_memory = number == signal.SIGKILL and self._memory.killed(rank)
        end = {"signal": number} if number else {"code": code}
        self._ends.append({"rank": rank, "t": time.monotonic(), **end, "out_of_memory": no_memory})

    def told(self) -> list[dict[str, Any]]:
        """Return the ends in the format of run.json, which :mod:`testbed.core.records.process_end` reads.

        A fault is listed only once it is in force, when the processes of its nodes have ended already: so whether the
        testbed ended them is asked after all have ended.
        """
        outages: list[protocol.FaultRecord] = []
        with contextlib.suppress(TestbedError):
            outages = [it for it in client.ask(self._lab, protocol.Faults()) if it["phase"] == NO_POWER]

        def by_testbed(end: Mapping[str, Any]) -> bool:
            return end.get("signal") == signal.SIGKILL and any(
                self._nodes[end["rank"]] in it["nodes"]
                and it["command_t"] <= end["t"] <= (it["ended_t"] or end["t"]) + NOTICED_S
                for it in outages
            )

        return [{**it, "by_testbed": by_testbed(it)} for it in self._ends]


def _wait(
    children: Mapping[int, subprocess.Popen[bytes]], ends: _Ends, broken: Sequence[Exception], stop: threading.Event
) -> None:
    """Wait until all have ended, or the grace period after a failure is over, or ``broken`` has an entry, or ``stop``
    is set."""
    failed_at: float | None = None
    while True:
        for rank, child in children.items():  # poll every child: any of them may fail
            if (code := child.poll()) is not None:
                ends.note(rank, code)
        if len(ends.codes) == len(children) or broken or stop.is_set():
            return
        if failed_at is None and any(ends.codes.values()):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE_S:
            return
        time.sleep(0.02)


def _end(children: Mapping[int, subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to whole sessions, then SIGKILL; return when all are reaped."""
    for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, 10.0)):
        alive = [child for child in children.values() if child.poll() is None]
        if not alive:
            return
        for child in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)
        until = time.monotonic() + patience
        for child in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
