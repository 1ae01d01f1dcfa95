"""The validation of collective libraries, step by step.

1. Read the request: libraries, topology, baseline. Every mistake is reported before anything is built, and so is a run
   directory that cannot be written. A library that lacks something on this machine is *skipped*, with the command that
   installs it.
2. Bring a lab up without training agents, measuring every fiber, or take one that is up.
3. For each library, one after the other (``library_validation.py``): start its rank programs on the nodes
   (``worker_set.py``), exchange lines with them (``rank_channel.py``, ``library_session.py``), and

   - run every operation of the catalogue and judge the answers (``correctness.py``),
   - time operations that all ranks begin together, and count their bytes on the fibers (``performance.py``,
     ``traffic_meter.py``),
   - let a fault begin in the middle of an operation (``fault_cells.py``, ``disturbance.py``, ``fault_injection.py``).

4. Write validate.json and the report after each library, and on an interruption: no result is lost.
5. Take the lab down, whatever happened.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Unpack

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.certification import admission
from testbed.core.topology.model import Topology, topology_to_dict
from testbed.core.validation import verdict
from testbed.core.validation.baseline import BaselineComparison
from testbed.core.validation.cases import Suite
from testbed.core.validation.library import CollectiveLibrary
from testbed.core.validation.result import LibraryResult, Validation, Verdict
from testbed.errors import (
    HostError,
    Interrupted,
    LabError,
    StorageError,
    TestbedError,
    UserError,
)
from testbed.host import collective_libraries, lab_folder, lab_nodes, lab_owner
from testbed.host.drivers import images
from testbed.host.files import catalog, runs_folder, store, validations
from testbed.host.files.store import RunDirectory
from testbed.host.lab_nodes import Driver
from testbed.host.linux import invocation
from testbed.keeper import client
from testbed.lab import deploy, program_rights
from testbed.lab.interruption import defer_interrupts, interruptible
from testbed.lab.jobs import run_metadata
from testbed.lab.jobs.recorder import StallRecorder
from testbed.lab.lab import Lab
from testbed.lab.own_lab import LabOptions, held, own_lab
from testbed.lab.progress import Progress, Silent, Unbreakable
from testbed.lab.validation.fault_injection import FiberFaults
from testbed.lab.validation.library_validation import PARTS, Bench, LibraryValidation, Part
from testbed.lab.validation.traffic_meter import Wire, certified
from testbed.version import __version__

__all__ = ["Part", "Suite", "ValidationOutcome", "Watching", "validate"]

DEFAULT_TOPOLOGY = "metro-40km"
NEEDED_BYTES = 100_000_000
"""Free space for logs and the report, and once more for each rank: an output of the largest operation."""


class Watching(Progress, Protocol):
    """Receives the progress of a validation."""

    def doing(self, text: str) -> None: ...


@dataclass(frozen=True)
class ValidationOutcome:
    """``exit_code``: 0 holds; 1 does not hold, or worse than the baseline; 3 unknown."""

    validation: Validation
    comparison: BaselineComparison | None
    directory: Path
    exit_code: int

    @property
    def page(self) -> Path:
        return self.directory / "index.html"


def validate(
    names: Sequence[str],
    *,
    topology: str | Topology | None = None,
    set: Mapping[str, object] | None = None,
    suite: Suite = "quick",
    only: Sequence[Part] = (),
    baseline: Path | None = None,
    lab: str | None = None,
    runs: Path | None = None,
    keep: bool = False,
    wait: bool = False,
    progress: Watching | None = None,
    **options: Unpack[LabOptions],
) -> ValidationOutcome:
    """Validate libraries, by name or by the path of a rank program; see the module.

    ``lab`` names a lab that is up, which stays up. ``only`` limits the parts. ``keep`` leaves a new lab up.
    ``wait``: until no other measurement holds this host; otherwise HostBusy is raised. ``options``: ``name``,
    ``driver``, ``emulator``, ``strict`` and ``allow_uncertified``, as of :func:`testbed.up`.

    Raises UserError, UnknownName and what :func:`testbed.lab.deploy.up` raises, before there is anything to report; a
    lab that fails later is in the result. Raises Interrupted after everything was undone and written.
    """
    admission.refuse_both(options.get("strict", False), options.get("allow_uncertified", False))
    reporter = _Unbreakable(progress or _Silent())
    chosen = _chosen(names)
    before = _read_baseline(baseline)
    if lab is not None:
        _refuse_beside_lab(
            topology=topology is not None, set=bool(set), name=options.get("name") is not None, keep=keep
        )
    wanted = _topology(topology or DEFAULT_TOPOLOGY, set) if lab is None else None
    root = runs_folder.ready(runs, 0)
    if wanted is not None:
        _check_room(root, wanted)
    parts = tuple(part for part in PARTS if not only or part in only)
    what = f"validate {' '.join(library.name for library in chosen)}"
    with contextlib.ExitStack() as stack:
        if wanted is None:
            stack.enter_context(interruptible())
            stack.enter_context(held(what, str(lab), reporter, wait=wait))
            of_lab = _borrowed(lab, options)
            _check_room(root, of_lab.topology)
            _refuse_barred(lab_nodes.driver(lab_folder.folder(of_lab.name)), root, _own_files(chosen))
        else:
            access = deploy.Access(root, _own_files(chosen))
            of_lab = stack.enter_context(
                own_lab(what, wanted, reporter, access, agents=False, keep=keep, wait=wait, **options)
            )
        with _claimed(of_lab, chosen):
            return _Validating(of_lab, chosen, suite, parts, root, before, reporter).run(runs)


class _Validating:
    """Steps 3 and 4, in a lab that is up."""

    def __init__(
        self,
        lab: Lab,
        chosen: Sequence[CollectiveLibrary],
        suite: Suite,
        parts: tuple[Part, ...],
        root: Path,
        baseline: Validation | None,
        reporter: Watching,
    ) -> None:
        self._lab, self._chosen, self._suite, self._parts = lab, chosen, suite, parts
        self._baseline, self._reporter = baseline, reporter
        self._folder = lab_folder.folder(lab.name)
        self._began_t, self._began_unix_s = time.monotonic(), time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self._run = RunDirectory.create(root, f"validate-{lab.topology.name}-{stamp}")
        lab_nodes.pin(self._folder, lab.topology.node_names, self._run.path)
        self._run.write_json("topology.json", topology_to_dict(lab.topology))
        if lab.certificate is not None:
            self._run.write_json("certificate.json", lab.certificate.to_dict())
        self._links = certified(lab.topology, lab.certificate)
        self._results: list[LibraryResult] = []
        self._stalls = StallRecorder(self._run)

    def run(self, runs: Path | None = None) -> ValidationOutcome:
        """Run all libraries; ``runs`` is the folder that was asked for. Raises Interrupted after everything was
        written."""
        self._reporter.note(runs_folder.note(self._run.path, runs))
        failed: TestbedError | None = None
        try:
            topology = self._lab.topology
            with Wire(self._folder, topology) as wire, FiberFaults(self._folder, topology) as faults:
                work = (self._run.ranks, self._suite, self._parts)
                bench = Bench(self._folder, topology, self._links, wire, faults, *work, noise=self._noise)
                for library in self._chosen:
                    if failed is not None:
                        self._results.append(_untried(library, "unknown", f"not tried: {failed}"))
                        continue
                    failed = self._validate(bench, library)
                    self._write()
        except (KeyboardInterrupt, Interrupted) as error:
            with defer_interrupts():
                self._reporter.ended("interrupted")
                self._write(interrupted=True)
                self._give("interrupted")
            raise Interrupted(f"interrupted; the results so far are in {self._run.path}") from error
        except BaseException:
            with contextlib.suppress(StorageError):
                self._run.record_end("failed")
            raise
        validation, comparison = self._write()
        self._give("finished")
        code = verdict.exit_code(validation.verdict, len(comparison.regressions) if comparison else 0)
        return ValidationOutcome(validation, comparison, self._run.path, code)

    def _noise(self) -> StallLog:
        """Return the stalls of the host since the validation began. Raises StorageError."""
        with contextlib.suppress(LabError), client.Connection(self._folder) as connection:
            self._stalls.sample(connection)
        return StallLog(tuple(self._stalls.stalls), (), bool(self._stalls.watching))

    def _validate(self, bench: Bench, library: CollectiveLibrary) -> TestbedError | None:
        """Validate one library; return the error if it was the lab that failed."""
        self._reporter.phase("validate", f"{library.name}: {library.title}")
        if why := self._lacking(library):
            self._reporter.note(f"{library.name} is skipped: {why}")
            self._results.append(_untried(library, "skipped", why))
            return None
        library_validation = LibraryValidation(bench, library, self._reporter.doing)
        try:
            library_validation.run()
        except (LabError, HostError) as error:
            self._reporter.ended("failed")
            self._reporter.note(str(error))
            return error
        except BaseException:
            library_validation.add_not_tried("the validation was interrupted")
            raise
        finally:
            self._results.append(library_validation.result())
            self._reporter.note(f"{library.name}: {self._results[-1].verdict}")
        return None

    def _lacking(self, library: CollectiveLibrary) -> str:
        """Return why a library cannot be validated in this lab, and the fix; empty if it can."""
        if not lab_nodes.driver(self._folder).contained:
            return collective_libraries.why_not(library)
        if library.needs_gpu and (why := collective_libraries.gpu_missing()):
            return why
        place = lab_nodes.place(self._folder, self._lab.topology.node_names[0], job=True)
        missing = collective_libraries.lacking_inside(library, place.speak)
        build = images.build_command("--with", "validate")
        fix = f"build an image that has them with: {build}, or use --driver netns"
        return f"the containers' image lacks {', '.join(missing)}; {fix}" if missing else ""

    def _write(self, *, interrupted: bool = False) -> tuple[Validation, BaselineComparison | None]:
        done = {result.name for result in self._results}
        left = [library for library in self._chosen if library.name not in done] if interrupted else []
        results = (
            *self._results,
            *(_untried(library, "unknown", "not tried: the validation was interrupted") for library in left),
        )
        sure = self._lab.certificate is not None and self._lab.certificate.certified
        emulator = "unknown"
        with contextlib.suppress(LabError):  # write the results even if the keeper is gone
            emulator = client.keeper(self._folder).hello()["emulator"]
        validation = Validation(
            suite=self._suite,
            topology=self._lab.topology.name,
            driver=lab_nodes.driver(self._folder).name,
            emulator=emulator,
            certified=sure,
            started_unix_s=self._began_unix_s,
            took_s=time.monotonic() - self._began_t,
            machine=f"{run_metadata.cpu_model()}, {os.cpu_count()} cores, Linux {platform.release()}",
            versions={"testbed": __version__, "python": platform.python_version()},
            links=self._links,
            libraries=results,
            verdict=verdict.of_validation(results, certified=sure, interrupted=interrupted),
            interrupted=interrupted,
            scale=self._lab.topology.scale,
            noisy=self._lab.certificate is not None and self._lab.certificate.noisy,
            noise=self._noise().summary(self._began_t, time.monotonic()),
        )
        return validation, validations.write_validation(self._run, validation, self._baseline)

    def _give(self, state: str) -> None:
        """Record the end, and give the run to the user who called sudo, once no library runs any more."""
        with contextlib.suppress(StorageError):  # the results are written
            self._run.record_end(state)
            self._run.give_to_caller()


def _untried(library: CollectiveLibrary, word: Verdict, why: str) -> LibraryResult:
    return LibraryResult(library.name, library.title, "", word, (why,), {})


def _chosen(names: Sequence[str]) -> tuple[CollectiveLibrary, ...]:
    """Raises UserError, UnknownName."""
    if not names:
        raise UserError("name at least one library (available: " + ", ".join(collective_libraries.registry()) + ")")
    libraries = tuple(collective_libraries.find(name) for name in names)
    twice = sorted(name for name, count in Counter(library.name for library in libraries).items() if count > 1)
    if twice:
        raise UserError(f"{', '.join(twice)}: named twice; a run validates each library once")
    return libraries


def _topology(topology: str | Topology, overrides: Mapping[str, object] | None) -> Topology:
    """Raises UserError, FileMistakes, UnknownName."""
    return _with_fibers(catalog.load_topology(topology, overrides) if isinstance(topology, str) else topology)


def _check_room(root: Path, topology: Topology) -> None:
    """Raises StorageError."""
    store.check_writable(root, NEEDED_BYTES * (1 + len(topology.node_names)))


def _own_files(libraries: Sequence[CollectiveLibrary]) -> tuple[Path, ...]:
    """Return the users' own rank programs."""
    paths = (Path(library.argv[-1]) for library in libraries)
    return tuple(path for path in paths if path.is_absolute() and path.is_file())


def _refuse_barred(driver: Driver, root: Path, files: Sequence[Path]) -> None:
    """Raise UserError for what the libraries' user cannot read or write."""
    if (user := driver.own_user()) is not None:
        program_rights.refuse_python(user)
        program_rights.refuse_folder(user, root)
        program_rights.refuse_files(user, files)


def _with_fibers(topology: Topology) -> Topology:
    """Raises UserError."""
    if not topology.links:
        raise UserError(f"topology {topology.name} has no links; validation needs at least one fiber")
    return topology


def _refuse_beside_lab(**given: bool) -> None:
    """Raises UserError if an option of a new lab is given together with a lab that is up."""
    if listed := [f"--{option}" for option, is_given in given.items() if is_given]:
        raise UserError(f"--lab uses a lab that is up, as it is: omit {' and '.join(listed)}, or --lab")


@contextlib.contextmanager
def _claimed(lab: Lab, chosen: Sequence[CollectiveLibrary]) -> Iterator[None]:
    """Hold the lab's job slot; who stops the job interrupts the validation, as Ctrl-C does. Raises LabBusy."""
    with lab.claimed("validate", ", ".join(library.name for library in chosen)) as claim:
        main = threading.main_thread()
        if threading.current_thread() is main and main.ident is not None:
            thread = main.ident
            claim.on_stop(lambda why: signal.pthread_kill(thread, signal.SIGTERM))
        yield


def _borrowed(name: str | None, options: LabOptions) -> Lab:
    """Return a lab that is up and healthy. Raises UserError, UnknownName, FidelityError, NoisyHost, LabError."""
    lab = Lab(lab_owner.chosen(name, changes=True))
    _with_fibers(lab.topology)
    status = lab.status()
    driver, emulator = options.get("driver", "auto"), options.get("emulator", "auto")
    for option, wanted, has in (("driver", driver, status.driver), ("emulator", emulator, status.emulator)):
        if wanted not in ("auto", has):
            raise UserError(f"--{option} {wanted}: lab {lab.name} uses {has}; omit --{option}, or --lab")
    if active := [fault for fault in lab.faults() if fault.ended is None]:
        listed = ", ".join(f"{fault.type} {fault.target}" for fault in active)
        heal = invocation.command("heal", "-l", lab.name)
        raise LabError(f"lab {lab.name} has active faults ({listed}); heal them first: {heal}")
    if status.training and not status.jobs:  # of an older lab, which has no slot for a job
        raise LabError(
            f"lab {lab.name} is running a training job; its traffic would be counted as the library's. "
            "Wait until it finishes."
        )
    admission.refuse(
        lab.certificate,
        lab.topology.scale,
        strict=options.get("strict", False),
        allow_uncertified=options.get("allow_uncertified", False),
        measure_again=invocation.command("certify", "-l", lab.name),
    )
    return lab


def _read_baseline(path: Path | None) -> Validation | None:
    """Raises UserError."""
    if path is None:
        return None
    try:
        return validations.read_validation(path)
    except StorageError as error:
        raise UserError(f"--baseline: {error}") from error


class _Silent(Silent):
    def doing(self, text: str) -> None:
        return None


class _Unbreakable(Unbreakable):
    """As its base: a closed terminal or pipe does not end a validation."""

    def __init__(self, progress: Watching) -> None:
        super().__init__(progress)
        self._watching: Watching = progress

    def doing(self, text: str) -> None:
        try:
            self._watching.doing(text)
        except OSError:
            self._watching = _Silent()
