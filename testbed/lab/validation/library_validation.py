"""The validation of one library; the results so far are available at any moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.topology.model import Topology
from testbed.core.validation import bound, cases, fault_matrix, verdict
from testbed.core.validation import traffic as wires
from testbed.core.validation.bound import Placed
from testbed.core.validation.cases import SpeedSeries, Suite
from testbed.core.validation.fibers import fibers, in_use, routes
from testbed.core.validation.library import CollectiveLibrary
from testbed.core.validation.result import CaseResult, Cell, LibraryResult, Speed
from testbed.errors import LabError, TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.lab.interruption import defer_interrupts
from testbed.lab.validation import correctness, fault_cells, performance
from testbed.lab.validation.fault_injection import FiberFaults
from testbed.lab.validation.library_session import LibraryFailed, Session
from testbed.lab.validation.performance import Measured
from testbed.lab.validation.traffic_meter import Wire
from testbed.lab.validation.worker_set import WorkerSet

__all__ = ["PARTS", "Bench", "LibraryValidation", "Part"]

Part = Literal["correctness", "speed", "faults"]
PARTS: Final[tuple[Part, ...]] = ("correctness", "speed", "faults")

TIMEOUT_S: Final[Mapping[Suite, float]] = {"quick": 10.0, "full": 20.0}
"""The library's own timeout on healthy fibers; faults set their own."""


@dataclass(frozen=True)
class Bench:
    """What the validations of all libraries share. ``links`` as ``Validation.links``."""

    lab: LabFolder
    topology: Topology
    links: Mapping[str, Mapping[str, float]]
    wire: Wire
    faults: FiberFaults
    folder: Path
    suite: Suite
    parts: tuple[Part, ...]
    seed: int = 0
    noise: Callable[[], StallLog] = StallLog
    """Returns the stalls of the host since the validation began."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The site of every rank, in order."""
        return tuple(site.name for site in self.topology.sites for _ in site.node_names)


class LibraryValidation:
    """See the module. ``on_activity`` is called with the current activity as text."""

    def __init__(self, bench: Bench, library: CollectiveLibrary, on_activity: Callable[[str], None]) -> None:
        self._bench, self._library, self._on_activity = bench, library, on_activity
        self._workers = WorkerSet(bench.lab, bench.topology, library, bench.folder / library.name)
        self._cases: list[CaseResult] = []
        self._speeds: list[Speed] = []
        self._cells: list[Cell] = []
        self._why: list[str] = []
        self._not_tried: list[str] = []
        self._began_t = time.monotonic()

    def run(self) -> None:
        """Run all parts. The failure of a lab is recorded as such and raised: LabError, HostError."""
        session = Session(self._workers, timeout_s=TIMEOUT_S[self._bench.suite])
        try:
            self._on_activity("starting its programs")
            session.ready()
            for part in self._bench.parts:
                {"correctness": self._correctness, "speed": self._speed, "faults": self._faults}[part](session)
            self._workers.check_lab()
        except LibraryFailed as error:
            self._cannot(error)
        except TestbedError as error:
            self._not_tried.append(str(error))
            raise
        finally:
            with defer_interrupts():
                self._workers.leave()
                self._bench.faults.heal()

    def result(self) -> LibraryResult:
        """Return the results so far."""
        judged, why = verdict.of_library(
            self._cases, self._speeds, self._cells, troubles=self._why, not_tried=self._not_tried
        )
        return LibraryResult(
            self._library.name,
            self._library.title,
            self._workers.version,
            judged,
            why,
            dict(self._workers.offers),
            tuple(self._cases),
            tuple(self._speeds),
            tuple(self._cells),
            time.monotonic() - self._began_t,
        )

    def _cannot(self, error: LibraryFailed) -> None:
        """Count the failure against the library. Raises LabError if it was the lab that failed."""
        try:
            self._workers.check_lab()
        except LabError as failure:
            self._not_tried.append(str(failure))
            raise
        self._why.append(str(error))

    def add_not_tried(self, why: str) -> None:
        """Record why parts of the validation were not tried."""
        self._not_tried.append(why)

    # ---- parts

    def _correctness(self, session: Session) -> None:
        catalogue = cases.correctness(self._bench.suite, self._bench.sites, self._bench.seed)
        total = sum(len(case.operations) for case in catalogue)

        def on_result(result: CaseResult) -> None:
            self._cases.append(result)
            states = Counter(case.state for case in self._cases)
            bad = len(self._cases) - states["right"] - states["unsupported"]
            self._on_activity(f"correctness {len(self._cases)}/{total}" + (f", {bad} not right" if bad else ""))

        correctness.run_cases(session, catalogue, on_result)

    def _speed(self, session: Session) -> None:
        session.ready()
        catalogue = cases.performance(self._bench.suite, self._bench.sites, session.offers, self._bench.seed)
        for number, series in enumerate(catalogue, 1):
            self._on_activity(f"speed {number}/{len(catalogue)}: {series.do} of {series.size} bytes")
            measured = performance.measure(session, self._bench.wire, series)
            if measured.times_s:
                self._speeds.append(self._judged(series, measured))
            if measured.trouble:
                self._why.append(f"{series.do} of {series.size} bytes: {measured.trouble}")

    def _judged(self, series: SpeedSeries, measured: Measured) -> Speed:
        bench, operation = self._bench, series.calls[0]
        placed = Placed(series.do, series.size, bench.sites, operation.root, operation.to)
        every = fibers(bench.topology, bench.links)
        used = in_use(bench.topology, bench.sites, every)
        interval = bound.median_interval(measured.times_s)
        noise = bench.noise()
        by_s = [
            noise.uncertainty_s(began_t, began_t + time_s)
            for began_t, time_s in zip(measured.began_t, measured.times_s, strict=True)
        ]
        bound_s, latency_s = bound.bound_s(placed, used), bound.latency_s(placed, used)
        return Speed(
            operation=series.do,
            size=series.size,
            times_s=measured.times_s,
            median_s=interval.median,
            low_s=interval.low,
            high_s=interval.high,
            algorithm_rate=bound.algorithm_rate(placed, interval.median),
            bus_rate=bound.bus_rate(placed, interval.median),
            bound_s=bound_s,
            bound_all_s=bound.bound_s(placed, every),
            efficiency=bound_s / interval.median if interval.median > 0 else 0.0,
            one_way_delays=interval.median / latency_s if latency_s > 0 else 0.0,
            crossing=dict(measured.crossing),
            least=round(max(wires.least(placed).values(), default=0.0)),
            uncertainty_s=bound.median_uncertainty_s(measured.times_s, by_s),
            pattern=wires.diagnose_algorithm(placed, wires.toward_sites(measured.crossing), routes(bench.topology)),
        )

    def _faults(self, session: Session) -> None:
        session.ready()
        bench = self._bench
        catalogue = fault_matrix.trials(bench.suite, bench.topology, session.offers, bench.seed)
        if why := fault_matrix.why_no_trials(session.offers):
            self._not_tried.append(f"no faults were tried: {why}")

        def on_cell(cell: Cell) -> None:
            self._cells.append(cell)
            if cell.rebuilt is False and session.offers.get("rebuilds") is True:
                self._why.append(f"{cell.fault}: it offers rebuilds, but cannot be rebuilt: {cell.detail}")
            announce(len(self._cells))

        def announce(number: int) -> None:
            if number < len(catalogue):
                self._on_activity(f"faults {number + 1}/{len(catalogue)}: {catalogue[number].fault.summary}")

        announce(0)
        fault_cells.run_trials(session, bench.wire, bench.faults, catalogue, on_cell, bench.noise)
