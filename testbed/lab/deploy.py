"""Bring a lab up: plan, build, deploy agents, certify. A failed bring-up undoes itself."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.core.certification import admission
from testbed.core.plan import build
from testbed.core.plan.addressing import MANAGEMENT, PLANT, namespace_name
from testbed.core.plan.resources import Agents, Containers, Fibers, Namespace, Route, Veth
from testbed.core.plan.step import Plan, Step
from testbed.core.topology.model import Topology, topology_to_dict
from testbed.core.user_text import shown
from testbed.errors import (
    HostError,
    Interrupted,
    LabError,
    NameTaken,
    NotAllowed,
    StorageError,
    UserError,
)
from testbed.host import fork_server as agent_host
from testbed.host import lab_folder, lab_nodes, lab_owner, runner
from testbed.host.drivers import containerlab, docker_client, docker_endpoint
from testbed.host.drivers.docker_endpoint import Endpoint
from testbed.host.drivers.netns import refuse_taken
from testbed.host.emulators import fiberd, netem
from testbed.host.lab_folder import LabFolder
from testbed.host.lab_nodes import Driver
from testbed.host.linux import invocation
from testbed.host.linux.program_user import ProgramUser
from testbed.host.metrics import prometheus_server
from testbed.keeper import client
from testbed.lab import containers, program_rights
from testbed.lab.interruption import defer_interrupts
from testbed.lab.progress import Progress, Silent, Unbreakable

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

KEEPER_READY_S = 20.0
BUILD_BOUND_S = 300.0
TELL_EVERY_S, LONGEST_SILENCE_S = 1.0, 5.0
NEEDED_BYTES = 20_000_000
LONGEST_SOCKET = 107
"""Maximum bytes of a Unix socket's path, unix(7)."""
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21


def up(
    topology: Topology,
    *,
    name: str | None = None,
    agents: bool = True,
    driver: str = "auto",
    emulator: str = "auto",
    observe: bool = False,
    keep: bool = False,
    strict: bool = False,
    allow_uncertified: bool = False,
    progress: Progress | None = None,
    access: Access | None = None,
) -> Lab:
    """Build a lab and measure its fibers; return it, or undo everything and raise. ``access``: of its job.

    ``observe`` runs a Prometheus in the lab; :meth:`Lab.observe` forwards a local port to it. ``keep`` keeps a partial
    lab for inspection if bring-up fails.

    Raises FidelityError when a fiber is outside tolerance, NoisyHost when the fibers are not measurable on this host
    now (both unless ``allow_uncertified``) or the host is noisy (with ``strict``), NameTaken, NotAllowed,
    MissingTool, StorageError, HostError.
    """
    admission.refuse_both(strict, allow_uncertified)
    progress = progress or Silent()
    lab_name = name or topology.name
    choice = choose(topology, lab_name, driver, emulator)
    nodes = lab_nodes.DRIVERS[choice.driver]
    docker = docker_endpoint.endpoint() if nodes.contained else None
    _check(lab_name, topology, docker)
    user = nodes.own_user(None if access is None else access.working)
    if user is not None:
        program_rights.refuse_state(user)
        if access is not None:
            _refuse_barred(user, access, agents)
    if observe:
        prometheus_server.find()
    progress.phase("plan", f"lab {lab_name}, {choice}")
    if agents and not nodes.contained and (why := agent_host.missing()):
        progress.note(f"no training agents: {why}")
        agents = False
    if agents and user is not None and (barred := program_rights.python_barred(user)):
        progress.note(f"no training agents: they run as {user}, who cannot use {barred}, which is part of this Python")
        agents = False
    folder = make_folder(lab_name)
    try:
        if docker is not None:
            lab_nodes.keep_docker(folder, docker)
        with _starting_keeper(folder, agents, nodes, user):  # its imports take as long as the plan of a small lab
            # Imports the measurement code while the keeper builds the lab, which saves 0.1 s.
            threading.Thread(target=importlib.import_module, args=("testbed.lab.lab",), daemon=True).start()
            plan = build.build(topology, agents=agents, emulator=choice.emulator, observe=observe)
            if docker is not None:
                plan = containers.plan_of(topology, plan, lab_name)
        with client.Connection(folder, patience_s=_build_bound_s(plan)) as builder:
            try:
                _write(folder.topology, topology_to_dict(topology))
                _write(folder.about, dataclasses.asdict(choice))
                _build(builder, folder, plan, progress)
                from testbed.lab.lab import Lab

                lab = Lab(folder)
                lab.strict, lab.allow_uncertified = strict, allow_uncertified
                progress.phase("certify", f"{len(topology.links)} links, both directions")
                certificate = lab.certify(calibrate_first=True)
                progress.certificate(certificate)
                used = str(certificate.host.get("congestion_control", ""))
                if used and used != topology.congestion:
                    progress.note(
                        f"connections over the fibers use {used}: this kernel lacks the congestion control"
                        f" {topology.congestion} of the topology"
                    )
                admission.refuse(certificate, topology.scale, strict=strict, allow_uncertified=allow_uncertified)
            except BaseException as error:
                # A dead container is the root cause of any other failure.
                dead = _dead_containers(builder) if isinstance(error, HostError | LabError) else []
                if keep:
                    builder.keeper.open(state="kept")
                if dead:
                    raise HostError(f"the container of {dead[0]} died while the lab came up") from error
                raise
            builder.keeper.open()
    except BaseException as error:
        with defer_interrupts():
            tell = Unbreakable(progress)
            tell.ended("interrupted" if isinstance(error, KeyboardInterrupt | Interrupted) else "failed")
            if not keep:
                tell.phase("down", f"lab {lab_name}: what was built is removed")
                from testbed.lab import teardown  # its imports would delay the start of the keeper

                teardown.down(folder)
                tell.ended("done")
        raise
    return lab


@dataclass(frozen=True)
class Access:
    """What the programs of a lab's job need: ranks or libraries write below ``folder`` and read ``files``, which exist.

    ``program``: a user's program with its arguments, started in ``working`` (None: the caller's working directory)
    and searched for in ``search`` (None: the caller's PATH).
    """

    folder: Path
    files: tuple[Path, ...] = ()
    program: tuple[str, ...] = ()
    working: Path | None = None
    search: str | None = None


def _refuse_barred(user: ProgramUser, access: Access, agents: bool) -> None:
    """Raise UserError for what ``user`` cannot read or write."""
    if agents or not access.program:
        program_rights.refuse_python(user)
    if access.program:
        working = access.working or Path.cwd()
        program_rights.refuse_missing(access.program, working, access.search)
        program_rights.refuse_program(user, access.program, working)
    program_rights.refuse_folder(user, access.folder)
    program_rights.refuse_files(user, access.files)


@dataclass(frozen=True)
class Choice:
    """The driver (nodes) and the emulator (fibers) of a lab, each with a short reason."""

    driver: str
    driver_why: str
    emulator: str
    emulator_why: str

    def __str__(self) -> str:
        return f"driver {self.driver} ({self.driver_why}), emulator {self.emulator} ({self.emulator_why})"


def choose(topology: Topology, name: str, driver: str = "auto", emulator: str = "auto") -> Choice:
    """Return what :func:`up` would use for a lab called ``name``; changes nothing and needs no privileges.

    Raises UserError for an invalid lab name or an unknown driver or emulator, HostError or MissingTool when one that
    was requested by name is not available on this host.
    """
    lab_folder.refuse_bad_name(name)
    if driver not in ("auto", *lab_nodes.DRIVERS):
        raise UserError(f"unknown driver {shown(driver)} (available: containerlab, netns, auto)")
    if emulator not in ("auto", "netem", "fiberd"):
        raise UserError(f"unknown emulator {shown(emulator)} (available: netem, fiberd, auto)")
    chosen, why = choose_emulator(emulator) if topology.links else ("fiberd", "no fibers")
    return Choice(*_driver(driver), chosen, why)


def _check(name: str, topology: Topology, docker: Endpoint | None) -> None:
    """Check platform, capabilities and names before anything is changed. ``docker`` will run the containers, if any."""
    if not sys.platform.startswith("linux"):
        raise NotAllowed("the testbed requires Linux: it creates network namespaces")
    if not _has_capability(CAP_NET_ADMIN) or not _has_capability(CAP_SYS_ADMIN):
        raise NotAllowed("creating namespaces needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN); " + invocation.again())
    if not lab_folder.folder(name).exists():  # otherwise the message about the existing lab is more helpful
        nodes = (PLANT, MANAGEMENT, *(site.gateway for site in topology.sites), *topology.node_names)
        if docker is not None:
            containerlab.refuse_taken(name, nodes, docker)
            return
        for node in nodes:
            refuse_taken(namespace_name(name, node))


def _driver(wanted: str) -> tuple[str, str]:
    """Return (driver, why): ``auto`` is containerlab if it, docker and an image of this version exist, else netns."""
    why = "requested"
    if wanted == "auto" and os.environ.get("TESTBED_DRIVER", "auto") != "auto":
        wanted, why = os.environ["TESTBED_DRIVER"], "set by TESTBED_DRIVER"
        if wanted not in lab_nodes.DRIVERS:
            raise UserError(
                f"TESTBED_DRIVER: unknown driver {shown(wanted)} (available: {', '.join(lab_nodes.DRIVERS)})"
            )
    if wanted == "netns":
        return wanted, why
    short, lacking = containers.why_not()
    if not lacking:
        return "containerlab", why if wanted == "containerlab" else "it, docker and the image are available"
    if wanted == "containerlab":
        with contextlib.suppress(HostError):
            docker_client.refuse_silence()  # NotAllowed is for the user to fix, and netns needs root as well
        raise HostError(f"driver containerlab is not available: {lacking}; use --driver netns instead")
    return "netns", short


def choose_emulator(wanted: str) -> tuple[str, str]:
    """Return (emulator, why): ``auto`` is netem if this kernel has it, else fiberd. Raises HostError, MissingTool."""
    why = "requested"
    if wanted != "fiberd":
        why_not = netem.available()
        if not why_not:
            return "netem", why if wanted == "netem" else "this kernel has it"
        if wanted == "netem":
            raise HostError(f"emulator netem is not available: {why_not}; use --emulator fiberd instead")
        why = f"not netem: {why_not.partition(' (')[0]}"
    fiberd.find_binary()
    return "fiberd", why


def _has_capability(capability: int) -> bool:
    """Whether this process has the capability in its effective set (capabilities(7), proc(5))."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return os.geteuid() == 0


def make_folder(name: str) -> LabFolder:
    folder = lab_folder.folder(name)
    if len(os.fsencode(folder.socket)) > LONGEST_SOCKET:
        raise StorageError(f"the path {folder.path} is too long for a Unix socket; set TESTBED_STATE to a shorter one")
    try:
        folder.path.parent.mkdir(parents=True, exist_ok=True)
        free = os.statvfs(folder.path.parent)
        if free.f_bavail * free.f_frsize < NEEDED_BYTES:
            raise StorageError(f"{folder.path.parent}: less than {NEEDED_BYTES // 1_000_000} MB free; free some space")
        folder.path.mkdir(mode=0o700)
        try:
            lab_owner.record(folder)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)  # no user could remove a lab without an owner
            raise
    except FileExistsError as error:
        if folder.path.is_symlink() or not folder.path.is_dir():
            raise StorageError(f"{folder.path} exists and is not a lab's folder; remove it") from error
        state_now = _state_now(folder)
        raise NameTaken(
            f"lab {name} {state_now}; choose another --name, or: {lab_owner.or_down(folder)}"
            if (owner := lab_owner.owner(folder)) and owner.mine
            else f"lab {name} {state_now}; {lab_owner.or_down(folder)}; choose another --name"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot make {folder.path}: {error.strerror}") from error
    return folder


def _state_now(folder: LabFolder) -> str:
    try:
        state = client.keeper(folder).hello()["state"]
    except LabError:
        return "was left behind, or another process is building it or taking it down"
    return {"building": "is being built", "going": "is being taken down", "down": "is being taken down"}.get(
        state, "is already up"
    )


@contextlib.contextmanager
def _starting_keeper(folder: LabFolder, agents: bool, driver: Driver, user: ProgramUser | None) -> Iterator[None]:
    """Start the keeper while the block runs; on return it is ready. Raises LabError if it did not start."""
    arguments = [sys.executable, "-m", "testbed.keeper.main", str(folder.path)] + ["--agents"] * agents
    arguments += ["--containers"] * driver.contained
    if user is not None:
        arguments.append(f"--user={json.dumps(user.to_dict())}")
    child = runner.start_resident(arguments, folder.keeper_log)
    try:
        yield
        word = runner.first_line(child, KEEPER_READY_S)
    except BaseException:
        # Interrupted, or no plan, while the keeper was starting: do not leave it running.
        child.kill()
        child.wait()
        raise
    if word != "ready":
        with contextlib.suppress(OSError):
            last = folder.keeper_log.read_text(errors="replace").strip().splitlines()[-1:]
            word = word or (last[0] if last else "")
        raise LabError(f"the keeper did not start: {word or 'no output'}")


def _build(builder: client.Connection, folder: LabFolder, plan: Plan, progress: Progress) -> None:
    phases = _phases(plan)
    current, over = "", threading.Event()

    def notice(kind: str) -> None:
        nonlocal current
        phase = {"Agents": "agents", "Fibers": "fibers", "Containers": "containers", "Prometheus": "observe"}.get(
            kind, "namespaces"
        )
        if phase != current:
            current = phase
            progress.phase(phase, phases[phase])
            if phase == "agents":
                threading.Thread(target=_report_ranks, args=(folder, progress, over), daemon=True).start()

    try:
        builder.on_notice = notice
        builder.keeper.build(plan=plan)
    finally:
        over.set()


def _report_ranks(folder: LabFolder, progress: Progress, over: threading.Event) -> None:
    """Report how many ranks are ready, on each change and after a long silence: importing torch takes seconds."""
    reported, reported_t = 0, time.monotonic()
    while not over.wait(TELL_EVERY_S):
        try:
            states = [rank["state"] for rank in client.keeper(folder).ranks()]
        except LabError:
            return  # the thread that builds the lab gets the error
        ready = states.count("waiting")
        if (ready != reported or time.monotonic() - reported_t > LONGEST_SILENCE_S) and not over.is_set():
            reported, reported_t = ready, time.monotonic()
            progress.note(f"{ready} of {len(states)} ranks ready")


def _build_bound_s(plan: Plan) -> float:
    """Return how long the keeper may be silent; longer than containerlab's own timeout, which names the slow node."""
    names = sum(len(step.names) for step in plan if isinstance(step, Containers))
    return max(BUILD_BOUND_S, containerlab.deploy_bound_s(names) + client.PATIENCE_S)


def _dead_containers(builder: client.Connection) -> list[str]:
    try:
        return builder.keeper.hello()["dead_containers"]
    except (LabError, HostError):
        return []


def _phases(plan: Plan) -> dict[str, str]:
    def count(kind: type[Step]) -> int:
        return sum(isinstance(step, kind) for step in plan)

    directions = next((len(step.directions) for step in plan if isinstance(step, Fibers)), 0)
    ranks = next((len(step.ranks) for step in plan if isinstance(step, Agents)), 0)
    return {
        "containers": f"{sum(len(step.names) for step in plan if isinstance(step, Containers))} containers",
        "namespaces": f"{count(Namespace)} namespaces, {count(Veth)} veth pairs, {count(Route)} routes",
        "fibers": f"{directions // 2} fibers",
        "agents": f"{ranks} ranks" + (", each container imports torch" if count(Containers) else ""),
        "observe": "Prometheus",
    }


def _write(path: Path, content: object) -> None:
    try:
        path.write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
