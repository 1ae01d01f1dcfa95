"""A lab that is up, as a Python object: every verb of the command line is a method here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from testbed.core.certification.certificate import Certificate
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.faults.fault_target import all_targets
from testbed.core.faults.power import NO_POWER
from testbed.core.plan.addressing import MANAGEMENT, PLANT, PROMETHEUS_PORT
from testbed.core.report.document import Report
from testbed.core.topology.model import Topology, topology_from_dict
from testbed.errors import FidelityError, LabError, StorageError, TestbedError, UnknownName, UserError
from testbed.host import lab_nodes
from testbed.host.files import store
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.metrics.port_forward import Forwarder
from testbed.keeper import client, protocol
from testbed.lab import certify as certification
from testbed.lab import status, teardown
from testbed.lab.injected_fault import Fault
from testbed.lab.jobs import launch, run_metadata
from testbed.lab.jobs.job import Job, Workload
from testbed.lab.jobs.recorder import Recorder


def runs_root() -> Path:
    """``$TESTBED_RUNS``, else ./runs. Absolute, because agents live elsewhere."""
    return Path(os.environ.get("TESTBED_RUNS") or "runs").absolute()


@dataclass(frozen=True)
class SavableReport(Report):
    """A report that a user's program can write where it likes; core, where reports are built, writes nothing."""

    @classmethod
    def of(cls, report: Report) -> SavableReport:
        return cls(**{it.name: getattr(report, it.name) for it in fields(report)})

    def save(self, folder: Path | str) -> None:
        """Write index.html, report.json and report.md into ``folder``; made if it is not there. Raises StorageError."""
        store.save_report(self, Path(folder))


class Lab:
    """See the module. As a context manager it is taken down on exit, whatever happened inside."""

    def __init__(self, folder: LabFolder) -> None:
        self._folder = folder
        self.name = folder.name
        self.topology = _read_topology(folder)
        self.certificate: Certificate | None = _read_certificate(folder)
        self.allow_uncertified = False
        """Whether jobs may run although fibers are outside tolerance; their reports say so on every page."""
        self.run_directory: RunDirectory | None = None
        self.recorder: Recorder | None = None
        self._jobs = 0
        self._used = False

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    # ---- faults

    def inject(
        self, fault: str, target: str, /, *, for_s: float | None = None, wait: bool = False, **parameters: str | float
    ) -> Fault:
        """Apply a fault; the keeper ends it after ``for_s`` seconds even if we are gone. ``wait`` returns after that,
        or when a fault is over that has an end of its own. ``parameters`` as in a command: ``down="200ms", times=5``;
        a name that Python keeps for itself takes a line below: ``from_="1%"``.

        Raises UserError or UnknownName before anything is touched.
        """
        if for_s is not None and not 0 < for_s < float("inf"):
            raise UserError(f"a fault lasts longer than 0 s, not {for_s:g} s")
        written = {key.removesuffix("_"): str(value) for key, value in parameters.items()}
        compile_fault(self.topology, fault, target, written)  # the keeper does it again, and acts on it
        record = client.ask(
            self._folder,
            protocol.Inject(fault={"type": fault, "target": target, "for_s": for_s, "parameters": written}),
        )
        mine = Fault.of(record, self)
        if wait and mine.lasts_s is not None:
            until = time.monotonic() + mine.lasts_s + 5.0
            while mine.ended is None and time.monotonic() < until:
                time.sleep(min(0.05, mine.lasts_s))
                mine.refresh()
        return mine

    def cut(self, target: str, *, for_s: float | None = None, carrier: str | None = None) -> Fault:
        """Cut a link, one direction of it, or every link in a duct; ``carrier`` as in ``inject cut``."""
        if carrier is None:
            return self.inject("cut", target, for_s=for_s)
        return self.inject("cut", target, for_s=for_s, carrier=carrier)

    def heal(self, what: str | None = None) -> tuple[Fault, ...]:
        """End one fault (by id), all faults of one target, link or node, or all; those that ended now.

        Without its keeper the lab is healed from its journal. Raises UnknownName.
        """
        if not client.answers(self._folder):
            left = teardown.heal(self._folder, what)
            if what is not None and not left:
                self._refuse_unknown(what, teardown.faults_ever(self._folder))
            return tuple(Fault.of(it, self) for it in left)
        standing = [it for it in self.faults() if it.ended is None]
        chosen = [it for it in standing if what in (None, it.id, it.target, *it.links, *it.nodes)]
        if what is not None and not chosen:
            self._refuse_unknown(what, {name for it in self.faults() for name in (it.id, it.target)})
        ended = client.ask(self._folder, protocol.Heal(ids=[it.id for it in chosen], everything=what is None))
        return tuple(Fault.of(it, self) for it in ended)

    def _refuse_unknown(self, what: str, faults: Set[str]) -> None:
        """``faults``: ids and targets of all that there ever were. Raises UnknownName."""
        if what.partition(":")[0] not in (known := faults | all_targets(self.topology)):
            raise UnknownName("fault, link, node or site", what, sorted(known))

    def faults(self) -> tuple[Fault, ...]:
        """All faults since the lab is up, those that ended included."""
        return tuple(Fault.of(it, self) for it in client.ask(self._folder, protocol.Faults()))

    # ---- looking

    def status(self) -> status.LabStatus:
        return status.status(self._folder, self.topology, self.certificate)

    def certify(self, thorough: bool = False, tell: Callable[[str], None] | None = None) -> Certificate:
        """Measure all fibers now; the certificate is kept with the lab, whatever it says.

        ``tell`` is told what is being measured, and how long that takes.
        """
        self.certificate = certification.certify(self._folder, self.topology, thorough=thorough, tell=tell)
        try:
            store.write_whole(self._folder.certificate, json.dumps(self.certificate.to_dict(), indent=1))
        except OSError as error:
            raise StorageError(f"cannot write {self._folder.certificate}: {error.strerror}") from error
        return self.certificate

    @property
    def prometheus(self) -> str:
        """``address:port`` of its Prometheus in its management network; empty where there is none, or none any more."""
        return str(client.ask(self._folder, protocol.Hello())["prometheus"])

    def observe(self, port: int = PROMETHEUS_PORT) -> Forwarder:
        """Have ``port`` of 127.0.0.1 lead to the lab's Prometheus, until the forwarder is closed.

        Raises UserError when the lab was brought up without ``observe``, or the port cannot be had; LabError when its
        Prometheus has ended.
        """
        hello = client.ask(self._folder, protocol.Hello())
        if hello["prometheus_ended"]:
            raise LabError(f"the prometheus of lab {self.name} {hello['prometheus_ended']}; `testbed logs` says more")
        if not hello["prometheus"]:
            raise UserError(
                f"lab {self.name} is not observed; take it down, and bring it up with: testbed up --observe"
            )
        address, _, there = hello["prometheus"].rpartition(":")
        return Forwarder(lab_nodes.netns(self._folder, MANAGEMENT), (address, int(there)), port)

    def logs(self, what: str | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of the logs: of keeper, emulator, agents and Prometheus; of one rank or node those that name it.

        ``follow`` ends with LabError when the lab is taken down.
        """
        folder = self._folder
        places = [folder.keeper_log, folder.emulator_log, folder.agents_log, folder.prometheus_log]
        if what is not None:
            number = what.removeprefix("rank-").removeprefix("rank ")
            nodes = self.topology.node_names
            if what in nodes:
                number = str(nodes.index(what))
            elif not (number.isdecimal() and int(number) < len(nodes)):
                raise UnknownName("node or rank", what, [*nodes, *(str(rank) for rank in range(len(nodes)))])
            latest = self._latest_run()
            places = [latest.ranks / f"rank-{number}.log"] if latest else []
        offsets = dict.fromkeys(places, 0)
        while True:
            for path in places:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
                    stream.seek(offsets[path])
                    data = stream.read()
                    whole = data if not follow else data[: data.rfind(b"\n") + 1]
                    offsets[path] += len(whole)
                    yield from whole.decode(errors="replace").splitlines()
            if not follow:
                return
            self._folder.refuse_gone()
            time.sleep(0.2)

    # ---- working

    def exec(self, node: str, argv: Sequence[str]) -> int:
        """Run a program inside a node, gateway (``east-gw``), ``plant`` or ``mgmt`` with our terminal; its status."""
        nodes = set(self.topology.node_names)
        others = {site.gateway for site in self.topology.sites} | {PLANT, MANAGEMENT}
        if node not in nodes | others:
            raise UnknownName("node", node, sorted(nodes | others))
        return lab_nodes.place(self._folder, node, isolated=node in nodes).visit(argv)

    def launch(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        echo: Callable[[str], None] | None = None,
        stop: threading.Event | None = None,
    ) -> int:
        """A user's program once per rank with torchrun's environment; status of the worst rank.

        Its output is kept in a run directory (``directory`` is where that is made, default :func:`runs_root`). Another
        thread may end the ranks by setting ``stop``. Raises FidelityError as :meth:`train` does, LabError where a node
        has no power, or while a job trains.
        """
        if not argv:
            raise UserError("nothing to launch; write: testbed launch -- python train.py")
        self._refuse_uncertified()
        self._refuse_powerless()
        if self.status().training:
            raise LabError(f"lab {self.name} is training, and its bytes would count for yours; wait for its end")
        run = self._unused_run(directory)
        how = run_metadata.Ending("interrupted", "interrupted by the user")
        recorder = Recorder(self._folder, self.topology, run)
        recorder.start()
        try:
            status = launch.launch(
                self._folder, self.topology, argv, run, environment or {}, echo or (lambda line: None), stop
            )
            if stop is None or not stop.is_set():
                how = run_metadata.Ending()
                how.fail(f"the worst rank ended with status {status}" if status else "", tells_nothing=False)
            return status
        except TestbedError as error:
            how = run_metadata.Ending("failed", str(error), unknown_because=str(error))
            raise
        finally:
            recorder.stop()
            how.fail(recorder.lab_failure, tells_nothing=True)
            run_metadata.end(run, how)
            run.give_to_caller()

    def train(self, steps: int = 500, **workload: Any) -> Job:
        """Begin the testbed's own training job; see :class:`Workload`. Follow it by the Job that is returned.

        Raises FidelityError where the lab is not certified, unless :attr:`allow_uncertified`.
        """
        if steps < 1:
            raise UserError(f"a job has at least one step, not {steps}")
        self._refuse_uncertified()
        if not client.ask(self._folder, protocol.Ranks()):
            raise LabError("this lab has no training agents (it was brought up without, or torch is not installed)")
        run = self._unused_run()
        self.recorder = Recorder(self._folder, self.topology, run)
        self.recorder.start()
        self._jobs += 1
        return Job(
            self._folder,
            self.topology,
            Workload(steps, **workload),
            run.ranks,
            self._jobs,
            note=lambda attempts: run_metadata.amend(run, attempts=attempts),
        )

    def _refuse_powerless(self) -> None:
        """A node without power runs nothing; the namespace that stands for it would."""
        standing = [it for it in client.ask(self._folder, protocol.Faults()) if it["ended_t"] is None]
        dark = sorted({node for it in standing if it["phase"] == NO_POWER for node in it["nodes"]})
        if dark:
            raise LabError(f"{', '.join(dark)}: no power, by a fault; heal it first: testbed heal -l {self.name}")

    def _refuse_uncertified(self) -> None:
        if self.allow_uncertified or (self.certificate is not None and self.certificate.certified):
            return
        why = "; ".join(self.certificate.why) if self.certificate else "its fibers were not measured"
        raise FidelityError(
            f"lab {self.name} is not certified: {why}; heal what is wrong and run: testbed certify -l {self.name},"
            " or go on with --allow-uncertified"
        )

    def open_run(self, root: Path | None = None) -> RunDirectory:
        """A new run directory, which the next job will use."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.run_directory = RunDirectory.create(root or runs_root(), f"{self.name}-{stamp}")
        self._used = False
        run_metadata.begin(self.run_directory, self._folder, self.topology, self.certificate)
        return self.run_directory

    def _unused_run(self, root: Path | None = None) -> RunDirectory:
        """One run directory holds one job: records of two would mix."""
        self._end_run()
        run = self.open_run(root) if self.run_directory is None or self._used else self.run_directory
        self._used = True
        return run

    def _end_run(self) -> None:
        how = run_metadata.Ending()
        if self.recorder is not None:
            self.recorder.stop()
            how.fail(self.recorder.lab_failure, tells_nothing=True)
            self.recorder = None
        if self.run_directory is not None and self._used:
            run_metadata.end(self.run_directory, how)

    def report(self) -> SavableReport:
        """The report of the last job of this lab object, also written into its run directory."""
        if self.run_directory is None:
            raise UserError("nothing was run in this lab yet: train or launch something first")
        self._end_run()
        return SavableReport.of(store.write_report(self.run_directory))

    def down(self) -> None:
        """Remove the lab; nothing happens if it is down already."""
        try:
            self._end_run()
        finally:  # a full disk keeps no lab from going
            teardown.down(self._folder)

    def _latest_run(self) -> RunDirectory | None:
        if self.run_directory is not None:
            return self.run_directory
        # As open_run and RunDirectory.create name it: that of a lab called metro-40km is none of one called metro.
        name = re.compile(re.escape(self.name) + r"-\d{8}-\d{6}(-\d+)?")
        mine = [run for run in store.list_runs(runs_root()) if name.fullmatch(run.name)]
        return mine[0] if mine else None


def _read_topology(folder: LabFolder) -> Topology:
    try:
        return topology_from_dict(json.loads(folder.topology.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise LabError(f"lab {folder.name} is not whole; take it down with: testbed down {folder.name}") from error


def _read_certificate(folder: LabFolder) -> Certificate | None:
    try:
        return Certificate.from_dict(json.loads(folder.certificate.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None
