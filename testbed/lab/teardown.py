"""Take a lab down or heal it, through its keeper or, if the keeper is dead, from the journal alone.

Works after a crash or SIGKILL of any process at any point, and after a reboot. Never touches anything that does not
carry the lab's mark.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from testbed.core.plan.addressing import namespace_name
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Containers, Fibers, Namespace
from testbed.core.plan.step import Step
from testbed.errors import HostError, LabError, StorageError, raise_all
from testbed.host import lab_nodes, lab_owner, scratch
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.driver import Handler
from testbed.host.drivers.netns import NetnsDriver, nowhere
from testbed.host.emulators.emulator import outlives_keeper
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation, process
from testbed.host.linux.file_lock import FileLock
from testbed.host.linux.namespace import NETNS_FOLDER
from testbed.host.metrics import prometheus_server
from testbed.keeper import client, handlers
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.journal import EMULATOR_DIED, PROTECTED, Journal
from testbed.keeper.protocol import FaultRecord
from testbed.keeper.throttle import Throttle

KEEPER_BOUND_S = 20.0
HEAL_BOUND_S = 5.0
REMOVAL_BOUND_S = 2.0


def down(lab: LabFolder) -> bool:
    """Remove everything that the lab created; False if there was nothing. Raises HostError if something remains."""
    if not lab.exists():
        return False
    lab.refuse_foreign()
    keeper = _keeper(lab)
    # containerlab is slow on a busy machine: a keeper that waits for it is not stuck.
    destroy_s = lab_nodes.driver(lab).removal_s
    if keeper is not None:
        try:
            with (
                contextlib.suppress(HostError),  # something remained: the removal is retried below
                client.Connection(lab, client.PATIENCE_S + destroy_s) as connection,
            ):
                connection.keeper.down()
            if not process.wait_gone(*keeper, KEEPER_BOUND_S):
                raise LabError("the keeper does not exit")
        except LabError:
            # The keeper is stuck or crashed: continue from its journal.
            process.end(*keeper)
    try:
        _from_journal(lab)
    except HostError as error:
        down = invocation.command("down", lab.name)
        raise HostError(f"{error}; remove the rest of the lab with: {down}") from error
    return True


def _locked(lab: LabFolder, timeout_s: float) -> FileLock | None:
    """Acquire the lab's lock; None if another process kept it for so long. Raises LabError if the lab was removed."""
    try:
        return FileLock(lab.lock, timeout_s)
    except FileNotFoundError as error:
        raise lab.gone() from error
    except TimeoutError:
        return None


def remove_folder(lab: LabFolder) -> None:
    """Remove a lab's folder, even if another process takes the lab down at the same time.

    The journal goes first: once the locked file is gone, a waiting process can lock a fresh one. It must not find a
    journal then, or it would write into a lab that is being removed.
    """
    until = time.monotonic() + REMOVAL_BOUND_S
    while lab.path.exists():
        try:
            scratch.remove(lab)
            lab.journal.unlink(missing_ok=True)
            shutil.rmtree(lab.path)
            return  # anything there from now on is another lab of that name
        except OSError as error:
            if time.monotonic() > until:
                raise StorageError(f"could not remove {lab.path}: {error.strerror or error}") from error
            time.sleep(0.02)


def heal(lab: LabFolder, what: str | None) -> list[FaultRecord]:
    """Undo faults of a lab without a keeper: one by id, those of a target, link or node, or all; return their records.

    Without a keeper the fibers are not emulated, or the kernel emulates them unsupervised: they are taken down and stay
    dark, whatever is healed. After a reboot nothing is left to undo, and faults are only recorded as ended. Raises
    LabError.
    """
    lock = _locked(lab, HEAL_BOUND_S)
    if lock is None:
        if keeper_alive(lab):
            raise LabError(f"the keeper of lab {lab.name} is stuck; {lab_owner.or_down(lab)}")
        raise LabError(f"another process is healing lab {lab.name} or taking it down; try again")
    try:
        journal = _journal_to_heal_by(lab)
        chosen = [
            fault
            for fault in active_faults(journal)
            if what in (None, fault["id"], fault["target"], *fault["links"], *fault.get("nodes", ()))
        ]
        if journal.boot != process.boot_id():
            # Nothing of the lab is left, and its names, pids and inodes may belong to others now.
            for fault in chosen:
                fault["ended_t"] = time.monotonic()
                journal.undone(journal.owned(fault["id"]))
                journal.note("fault-ended", id=fault["id"], t=fault["ended_t"])
            journal.close()
            return chosen
        driver, makers = _makers(lab, journal)
        engine = Engine(journal, makers)
        protected = sorted(
            {
                journal_entry.owner
                for journal_entry in journal.entries.values()
                if journal_entry.owner.startswith(PROTECTED)
            }
        )
        works: list[Callable[[], None]] = [
            partial(_darken, journal, engine),
            *(partial(_end, journal, engine, fault) for fault in chosen),
            *(partial(engine.undo, name) for name in protected if what is None),
            engine.settle,  # withdrawn by a keeper that died before it reset the host
        ]
        failures: list[Exception] = []
        for work in works:  # all of them: what one cannot do must not keep the others from it
            try:
                work()
            except Exception as error:
                failures.append(error)
        driver.close()
        journal.close()
        raise_all(failures)
    finally:
        lock.release()
    return chosen


def _end(journal: Journal, engine: Engine, fault: FaultRecord) -> None:
    engine.undo(fault["id"])
    fault["ended_t"] = time.monotonic()
    journal.note("fault-ended", id=fault["id"], t=fault["ended_t"])


def _journal_to_heal_by(lab: LabFolder) -> Journal:
    """Read the journal. Raises LabError if the lab is being removed, or the journal does not tell which faults are
    active."""
    until = time.monotonic() + REMOVAL_BOUND_S
    while lab.exists() and not lab.journal.exists() and time.monotonic() < until:
        time.sleep(0.02)  # a removal deletes the journal first
    lab.refuse_gone()
    try:
        journal = Journal.read(lab.journal)
        if journal.empty:
            raise LabError(f"{lab.journal} is empty")
    except LabError as error:
        raise LabError(f"cannot heal lab {lab.name}: {error}; {lab_owner.or_down(lab)}") from error
    return journal


def active_faults(journal: Journal) -> list[FaultRecord]:
    """Return the journal's records of faults that began and have not ended."""
    over = {note["id"] for note in journal.notes if note["note"] == "fault-ended"}
    return [
        cast(FaultRecord, dict(note)) for note in journal.notes if note["note"] == "fault" and note["id"] not in over
    ]


def faults_ever(lab: LabFolder) -> set[str]:
    """Return the ids of all faults that began in a lab, and the targets that its journal has. Raises LabError."""
    journal = _journal_to_heal_by(lab)
    targets = {note["target"] for note in journal.notes if note["note"] == "fault"}
    return targets | {f"f{number}" for number in range(1, 1 + journal.faults_begun)}


def keeper_alive(lab: LabFolder, patience_s: float = client.PATIENCE_S) -> bool:
    return _keeper(lab, patience_s) is not None


def _keeper(lab: LabFolder, patience_s: float = client.PATIENCE_S) -> tuple[int, int] | None:
    """Return (pid, start time) of the lab's keeper if it is alive: from itself if it answers, else from the journal."""
    with contextlib.suppress(LabError), client.Connection(lab, patience_s) as connection:
        pid = connection.keeper.hello()["pid"]
        return pid, process.started(pid)
    try:
        journal = Journal.read(lab.journal)
    except LabError:
        return None
    if journal.boot != process.boot_id() or not process.is_same(*journal.keeper):
        return None
    return journal.keeper


def _from_journal(lab: LabFolder) -> None:
    """Undo whatever the journal still lists, once the lab's lock is free; then remove the folder."""
    try:
        lock = _locked(lab, KEEPER_BOUND_S)
    except LabError:
        return  # another process has taken it down
    if lock is None:
        raise LabError(f"another process is taking lab {lab.name} down")
    try:
        try:
            journal = Journal.read(lab.journal)
        except LabError:
            _by_mark(lab)
        else:
            _undo(lab, journal)
        remove_folder(lab)
    finally:
        lock.release()


def _undo(lab: LabFolder, journal: Journal) -> None:
    if journal.empty:
        _by_mark(lab)
    elif journal.state != "down":
        driver, makers = _makers(lab, journal)
        if journal.boot == process.boot_id():
            Engine(journal, makers).undo_all()
            _sweep_groups(lab.name, driver)
        else:
            _undo_what_outlives_a_reboot(journal, makers)
        driver.close()
    journal.close()


def _undo_what_outlives_a_reboot(journal: Journal, makers: Mapping[type[Step], Handler]) -> None:
    """Remove containers, which docker keeps stopped. Everything else ended with the old kernel. Its pids and inodes may
    belong to others now, so no recorded facts are passed on."""
    for entry in list(journal.entries.values()):
        if isinstance(entry.step, Containers):
            makers[Containers].unmake(entry.step, {})


def _makers(lab: LabFolder, journal: Journal) -> tuple[NetnsDriver, dict[type[Step], Handler]]:
    """Return driver and handlers of a lab without a keeper. Raises LabError if its containers' docker is unknown."""
    containers = None
    if any(isinstance(journal_entry.step, Containers) for journal_entry in journal.entries.values()):
        containers = Containerlab(journal.lab, lab.path, lab_nodes.docker(lab))
    driver = NetnsDriver(journal.lab, lab.handles, containers.path if containers else nowhere)
    return driver, handlers.without_keeper(lab, driver, containers)


def _by_mark(lab: LabFolder) -> None:
    """Remove everything that carries the lab's mark, without a usable journal. Namespaces are found by name, and, if
    the name was removed, by their mounts in the lab's folder, which must go before the folder can."""
    prometheus_server.end_left_in(lab.prometheus)
    if lab_nodes.driver(lab).contained:
        Containerlab(lab.name, lab.path, lab_nodes.docker(lab)).unmake(Containers((), ""), {})
    driver = NetnsDriver(lab.name, lab.handles)
    _sweep_groups(lab.name, driver)
    prefix = namespace_name(lab.name, "")
    isolated = {path.name for path in lab.handles.glob("*") if path.is_dir() and not path.is_symlink()}
    named = {path.name.removeprefix(prefix) for path in NETNS_FOLDER.glob(f"{prefix}*")}
    for node in sorted(isolated | named):
        driver.unmake(Namespace(node, isolated=node in isolated), {})


def _sweep_groups(lab: str, driver: NetnsDriver) -> None:
    """Remove control groups that no journal lists: with cgroup v1 one can be forgotten before it is gone."""
    with contextlib.suppress(HostError):  # no control groups on this host
        Throttle(lab, driver.path).sweep()


def lit_by_the_kernel(journal: Journal) -> bool:
    """Whether fibers still forward without a keeper: the kernel's netem outlives the keeper, fiberd does not."""
    return not journal.owned(EMULATOR_DIED) and any(
        isinstance(entry.step, Fibers) and outlives_keeper(entry.step.emulator) for entry in journal.owned(LAB)
    )


def _darken(journal: Journal, engine: Engine) -> None:
    """Take both ends of every fiber down: without fiberd packets would vanish silently, and netem would continue
    unsupervised with impairments that no fault owns any more."""
    if journal.owned(EMULATOR_DIED):
        engine.reconcile()
        return
    fibers = next(
        (journal_entry.step for journal_entry in journal.owned(LAB) if isinstance(journal_entry.step, Fibers)), None
    )
    if fibers is not None:
        ends = sorted({direction.ingress for direction in fibers.directions})
        engine.apply(EMULATOR_DIED, tuple(Carrier(fibers.plant, end, False) for end in ends))
