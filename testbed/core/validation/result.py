"""The result of a validation: a document of values, written as validate.json and read by reports and baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from testbed.core.analysis.noise.host_noise import NoiseSummary

SCHEMA_VERSION = 1

Verdict = Literal["holds", "does not hold", "unknown", "skipped"]
"""Verdict on a library or on a whole validation. ``unknown``: the lab or the machine failed, or evidence is missing."""

CaseState = Literal["right", "wrong", "error", "hang", "crash", "unsupported", "not run"]

Outcome = Literal[
    "right",
    "right after healing",
    "error within its bound",
    "error late",
    "hang",
    "wrong result",
    "crash",
    "unsupported",
    "fault not exercised",
    "not run",
]
"""How a cell of the fault matrix ended; ``wrong result`` (and no error was raised) is the worst."""


@dataclass(frozen=True)
class CaseResult:
    """One case of correctness: an operation on one group with one type and one size."""

    operation: str
    group: str
    """For a barrier, also which of its ranks arrived last."""
    type: str
    count: int
    reduction: str
    state: CaseState
    detail: str = ""
    """What is wrong with which rank's answer, or the library's error text."""


@dataclass(frozen=True)
class Speed:
    """One operation at one size; times in seconds, rates in byte/s, ``size`` in bytes (the operation's n)."""

    operation: str
    size: int
    times_s: tuple[float, ...]
    median_s: float
    low_s: float
    """Lower end of the 95 % interval of the median (order statistics)."""
    high_s: float
    algorithm_rate: float
    bus_rate: float
    """As nccl-tests define them (doc/PERFORMANCE.md)."""
    bound_s: float
    """Lower bound over the path in use."""
    bound_all_s: float
    """Lower bound over all paths that are up."""
    efficiency: float
    """``bound_s / median_s``; above 1 something bypassed the fiber, or the certificate is wrong."""
    one_way_delays: float
    """``median_s`` in one-way delays of the path in use: what a small message costs."""
    crossing: Mapping[str, int]
    """Bytes of one operation that crossed each direction (``north:east``), the median over the repeats."""
    least: int
    """Bytes that must cross toward the site that receives most; 0 where none must."""
    pattern: str = ""
    """Diagnosis of the algorithm from its bytes: ``flat ring``, ``hierarchical``, ``bypass``, …; empty: none."""
    uncertainty_s: float = 0.0
    """Of the median, by stalls of the host."""


@dataclass(frozen=True)
class Cell:
    """One fault on one library. Times are seconds since the fault began; None: it did not happen."""

    fault: str
    outcome: Outcome
    detail: str = ""
    share: float | None = None
    """Part of the operation's bytes that had crossed when the fault began."""
    error_s: float | None = None
    """When the last rank raised its error."""
    done_s: float | None = None
    """When the last rank had its result."""
    healed_s: float | None = None
    bound_s: float | None = None
    """Deadline for an error."""
    rebuilt: bool | None = None
    """Whether a new communicator could be made and gave the right answer; None: not tried."""
    rebuild_s: float | None = None
    errors: tuple[str, ...] = ()
    """The library's error texts, one for each rank that raised an error."""


@dataclass(frozen=True)
class LibraryResult:
    """All that was seen of one library."""

    name: str
    title: str
    version: str
    verdict: Verdict
    why: tuple[str, ...]
    """Reasons for the verdict, the worst first; for ``skipped`` the command that installs what is missing."""
    offers: Mapping[str, Any]
    cases: tuple[CaseResult, ...] = ()
    speeds: tuple[Speed, ...] = ()
    cells: tuple[Cell, ...] = ()
    took_s: float = 0.0


@dataclass(frozen=True)
class Validation:
    """The result of ``testbed validate``: one lab, one or more libraries."""

    suite: str
    topology: str
    driver: str
    emulator: str
    certified: bool
    started_unix_s: float
    took_s: float
    machine: str
    """Processor, cores, kernel."""
    versions: Mapping[str, str]
    links: Mapping[str, Mapping[str, float]]
    """By direction (``north:east``): ``delay_s`` and ``rate`` (payload byte/s) as certified."""
    libraries: tuple[LibraryResult, ...]
    verdict: Verdict
    interrupted: bool = False
    schema_version: int = SCHEMA_VERSION
    scale: float = 1.0
    """Of the topology: rates of the lab are divided by it. 1 in files of versions that did not write it."""
    noisy: bool = False
    """Whether the host delayed packets while the fibers were certified; the lab is certified nevertheless."""
    noise: NoiseSummary | None = None
    """The host's stalls; None if they were not recorded."""
