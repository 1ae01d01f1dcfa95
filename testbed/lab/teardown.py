"""Taking a lab down and healing it, with its keeper or, when that is dead, from the journal alone.

Works after a crash or SIGKILL of any process at any point, and after a reboot. What carries
another mark is never touched.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping
from typing import cast

from testbed.core.plan.addressing import namespace_name
from testbed.core.plan.properties import Carrier
from testbed.core.plan.resources import Containers, Fibers, Namespace
from testbed.core.plan.step import Step
from testbed.errors import HostError, LabError, StorageError, TestbedError
from testbed.host import lab_nodes
from testbed.host.drivers.containerlab import DESTROY_BOUND_S, Containerlab
from testbed.host.drivers.driver import Handler
from testbed.host.drivers.netns import NetnsDriver, nowhere
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.host.linux.file_lock import FileLock
from testbed.host.linux.namespace import NETNS_FOLDER
from testbed.host.metrics import prometheus_server
from testbed.keeper import client, handlers, protocol
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.journal import EMULATOR_DIED, PROTECTED, Journal
from testbed.keeper.protocol import FaultRecord
from testbed.keeper.throttle import Throttle

KEEPER_BOUND_S = 20.0
HEAL_BOUND_S = 5.0
REMOVAL_BOUND_S = 2.0


class ActiveFault(FaultRecord):
    """A fault that the journal has begun and not ended, and the Steps that are in force for it."""

    steps: list[Step]


def down(lab: LabFolder) -> bool:
    """Remove everything that the lab made; False if there was nothing. Raises HostError when something will not go."""
    if not lab.exists():
        return False
    lab.refuse_foreign()
    keeper = _keeper(lab)
    # containerlab takes its time on a busy machine: a keeper that waits for it is not stuck.
    destroy_s = DESTROY_BOUND_S if lab_nodes.driver(lab) == "containerlab" else 0.0
    if keeper is not None:
        try:
            with (
                contextlib.suppress(HostError),  # something did not go: it ends, and that is tried once more below
                client.Connection(lab, client.PATIENCE_S + destroy_s) as connection,
            ):
                connection.ask(protocol.Down())
            if not process.wait_gone(*keeper, KEEPER_BOUND_S):
                raise LabError("the keeper does not end")
        except LabError:
            # It is stuck or died of it: its journal knows the rest.
            process.end(*keeper)
    try:
        _from_journal(lab)
    except HostError as error:
        raise HostError(f"{error}; what is left of the lab goes with: testbed down {lab.name}") from error
    return True


def _locked(lab: LabFolder, timeout_s: float) -> FileLock | None:
    """Acquire the lab's lock; None if another process kept it for so long. Raises LabError if the lab was removed."""
    try:
        return FileLock(lab.lock, timeout_s)
    except FileNotFoundError as error:
        raise lab.gone() from error
    except TimeoutError:
        return None


def _remove(lab: LabFolder) -> None:
    """Remove a lab's folder; somebody else who takes it down at the same time is no trouble.

    The journal goes first: whoever waits for the lock gets a fresh one when the file is gone that we have locked, and
    must not find a journal then, lest it writes into a lab that goes.
    """
    until = time.monotonic() + REMOVAL_BOUND_S
    while lab.path.exists():
        try:
            lab.journal.unlink(missing_ok=True)
            shutil.rmtree(lab.path)
            return  # whatever is there from now on is another lab of that name
        except OSError as error:
            if time.monotonic() > until:
                raise StorageError(f"could not remove {lab.path}: {error.strerror or error}") from error
            time.sleep(0.02)


def heal(lab: LabFolder, what: str | None) -> list[ActiveFault]:
    """Undo faults of a lab without a keeper: one by its id, those of a target or link, or all; records of those undone.

    Without a keeper nobody emulates the fibers, or watches the kernel that does: they are darkened and stay dark,
    whatever is healed. After a reboot nothing is there to be touched: faults are only said to be over. Raises LabError.
    """
    lock = _locked(lab, HEAL_BOUND_S)
    if lock is None:
        if keeper_alive(lab):
            raise LabError(f"the keeper of lab {lab.name} is stuck; take it down with: testbed down {lab.name}")
        raise LabError(f"somebody else is healing lab {lab.name}, or taking it down; try again")
    try:
        journal = _journal_to_heal_by(lab)
        chosen = [
            it
            for it in active_faults(journal)
            if what in (None, it["id"], it["target"], *it["links"], *it.get("nodes", ()))
        ]
        if journal.boot != process.boot_id():
            # Nothing of it stands, and whoever has the names, pids and inodes of then is somebody else.
            for fault in chosen:
                fault["ended_t"] = time.monotonic()
                journal.undone(journal.owned(fault["id"]))
                journal.note("fault-ended", id=fault["id"], t=fault["ended_t"])
            journal.close()
            return chosen
        driver, makers = _makers(lab, journal)
        engine = Engine(journal, makers)
        _darken(journal, engine)
        failures: list[TestbedError] = []
        for fault in chosen:
            try:
                engine.undo(fault["id"])
            except TestbedError as error:
                failures.append(error)
                continue
            fault["ended_t"] = time.monotonic()
            journal.note("fault-ended", id=fault["id"], t=fault["ended_t"])
        if what is None:
            for name in {entry.owner for entry in journal.entries.values() if entry.owner.startswith(PROTECTED)}:
                engine.undo(name)
        try:
            engine.settle()  # of a fault whose keeper died while it undid it, and of which nothing stands any more
        except TestbedError as error:
            failures.append(error)
        driver.close()
        journal.close()
        if failures:
            raise failures[0]
    finally:
        lock.release()
    return chosen


def _journal_to_heal_by(lab: LabFolder) -> Journal:
    """Raises LabError where the lab goes, or where its journal tells nothing: then it is not known which faults
    stand."""
    until = time.monotonic() + REMOVAL_BOUND_S
    while lab.exists() and not lab.journal.exists() and time.monotonic() < until:
        time.sleep(0.02)  # whoever takes it down removes its journal first
    lab.refuse_gone()
    try:
        journal = Journal.read(lab.journal)
        if journal.empty:
            raise LabError(f"{lab.journal} is empty")
    except LabError as error:
        without = f"testbed down {lab.name} takes it down without its journal"
        raise LabError(f"nothing of lab {lab.name} can be healed: {error}; {without}") from error
    return journal


def active_faults(journal: Journal) -> list[ActiveFault]:
    """Faults that were begun and not ended, as they were written down, each with the Steps that stand for it."""
    over = {note["id"] for note in journal.notes if note["note"] == "fault-ended"}
    return [
        cast(ActiveFault, {**note, "steps": [it.step for it in journal.owned(note["id"])]})
        for note in journal.notes
        if note["note"] == "fault" and note["id"] not in over
    ]


def faults_ever(lab: LabFolder) -> set[str]:
    """Ids and targets of all faults that a lab's journal tells of, those that are over too. Raises LabError."""
    notes = _journal_to_heal_by(lab).notes
    return {it[key] for it in notes if it["note"] == "fault" for key in ("id", "target")}


def keeper_alive(lab: LabFolder) -> bool:
    return _keeper(lab) is not None


def _keeper(lab: LabFolder) -> tuple[int, int] | None:
    """(pid, start time) of the lab's keeper, if it lives: from itself if it answers, else from the journal."""
    with contextlib.suppress(LabError):
        pid = client.ask(lab, protocol.Hello())["pid"]
        return pid, process.started(pid)
    try:
        journal = Journal.read(lab.journal)
    except LabError:
        return None
    if journal.boot != process.boot_id() or not process.is_same(*journal.keeper):
        return None
    return journal.keeper


def _from_journal(lab: LabFolder) -> None:
    """Undo whatever a journal still says is there, once nobody else holds the lab's lock; then the folder goes too."""
    try:
        lock = _locked(lab, KEEPER_BOUND_S)
    except LabError:
        return  # somebody else has taken it down by now
    if lock is None:
        raise LabError(f"somebody else is taking lab {lab.name} down")
    try:
        try:
            journal = Journal.read(lab.journal)
        except LabError:
            _by_mark(lab)
        else:
            _undo(lab, journal)
        _remove(lab)
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
    """Containers: docker keeps them, stopped. All else went with the kernel that had it, and who has the pids and
    inodes of then is somebody else: no facts are passed on."""
    for entry in list(journal.entries.values()):
        if isinstance(entry.step, Containers):
            makers[Containers].unmake(entry.step, {})


def _makers(lab: LabFolder, journal: Journal) -> tuple[NetnsDriver, dict[type[Step], Handler]]:
    """The drivers of a lab without a keeper. Raises LabError where it is of containers and its docker is not known."""
    containers = None
    if any(isinstance(it.step, Containers) for it in journal.entries.values()):
        containers = Containerlab(journal.lab, lab.path, lab_nodes.docker(lab))
    driver = NetnsDriver(journal.lab, lab.handles, containers.path if containers else nowhere)
    return driver, handlers.without_keeper(lab, driver, containers)


def _by_mark(lab: LabFolder) -> None:
    """Without a journal that tells anything: remove what carries the lab's mark. Namespaces have its name; where
    somebody removed that, what else holds them is mounted in the lab's folder, which cannot go before."""
    prometheus_server.end_left_in(lab.prometheus)
    if lab_nodes.driver(lab) == "containerlab":
        Containerlab(lab.name, lab.path, lab_nodes.docker(lab)).unmake(Containers((), ""), {})
    driver = NetnsDriver(lab.name, lab.handles)
    _sweep_groups(lab.name, driver)
    prefix = namespace_name(lab.name, "")
    isolated = {path.name for path in lab.handles.glob("*") if path.is_dir() and not path.is_symlink()}
    named = {path.name.removeprefix(prefix) for path in NETNS_FOLDER.glob(f"{prefix}*")}
    for node in sorted(isolated | named):
        driver.unmake(Namespace(node, isolated=node in isolated), {})


def _sweep_groups(lab: str, driver: NetnsDriver) -> None:
    """Remove control groups that no journal tells of: of version 1, they lost sight of one before it was gone."""
    with contextlib.suppress(HostError):  # where there are no control groups, none is ours
        Throttle(lab, driver.path).sweep()


def lit_by_the_kernel(journal: Journal) -> bool:
    """Whether fibers go on without a keeper: the kernel's netem outlives it, fiberd does not."""
    return not journal.owned(EMULATOR_DIED) and any(
        isinstance(it.step, Fibers) and it.step.emulator == "netem" for it in journal.owned(LAB)
    )


def _darken(journal: Journal, engine: Engine) -> None:
    """Take both ends of every fiber down: without fiberd packets would vanish without a sign, and netem would go on as
    it was, unwatched, with what no fault stands for any more."""
    if journal.owned(EMULATOR_DIED):
        engine.reconcile()
        return
    fibers = next((it.step for it in journal.owned(LAB) if isinstance(it.step, Fibers)), None)
    if fibers is not None:
        ends = sorted({it.ingress for it in fibers.directions})
        engine.apply(EMULATOR_DIED, tuple(Carrier(fibers.plant, end, False) for end in ends))
