"""One of two runs that are compared: its inputs, and what was measured, as quantities with the noise inside the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.analysis.noise.inside_noise import Range
from testbed.core.report.answers import Answer
from testbed.core.report.document import Report
from testbed.core.validation.result import Validation

__all__ = ["SECTIONS", "Input", "Quantity", "Side"]

SECTIONS: Mapping[str, str] = {
    "figures": "Key figures",
    "rank_seconds": "Where the rank-seconds went",
    "faults": "Faults: longest gap between commits",
    "certificate": "Certificate: error of the delay",
    "fidelity": "Lateness under load",
    "wire": "Bytes on the wire",
    "throughput": "Throughput outside of faults",
    "traffic": "Traffic: longest silence",
    "speed": "Time of an operation",
}
"""The sections of measured quantities, in the order of page, table and JSON."""


@dataclass(frozen=True)
class Input:
    """What a run was given: ``group`` is software, host, emulation, topology, workload or experiment."""

    group: str
    name: str
    value: str


@dataclass(frozen=True)
class Quantity:
    """One measured value. ``unit`` is s, share (0..1), count, bit/s, B, nats or tokens/s.

    ``noise`` is the range over the parts of the run, or the value's own confidence interval; None: one value alone.
    ``scale`` is the topology's, for a rate. ``detail`` says in a few words what the number leaves out. ``bound``: "at
    least" or "at most", where the value is only that, because the job did not come back. ``uncertainty`` is the range
    of the value within the uncertainty by stalls of the host; None without stalls in its time.
    """

    id: str
    name: str
    unit: str
    value: float | None
    noise: Range | None = None
    detail: str = ""
    scale: float = 1.0
    bound: str = ""
    uncertainty: Range | None = None

    @property
    def reach(self) -> Range | None:
        """The range of the parts and of the uncertainty together; None if neither is known."""
        ranges = [reach for reach in (self.noise, self.uncertainty) if reach is not None]
        return Range(min(reach.low for reach in ranges), max(reach.high for reach in ranges)) if ranges else None


@dataclass(frozen=True)
class Side:
    """One run. ``kind`` says in words what ran; a section that the run has nothing for is missing."""

    name: str
    folder: str
    kind: str
    verdict: str
    headline: str
    started_unix_s: float | None
    inputs: tuple[Input, ...]
    answers: tuple[Answer, ...]
    sections: Mapping[str, tuple[Quantity, ...]]
    shortcomings: tuple[str, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What an answer of the steady state or an expectation is about, by the answer's id."""
    cpu_free: float | None = None
    """Share of all cores that was free just before the job, while the fibers were certified."""
    report: Report | None = field(default=None, repr=False)
    validation: Validation | None = field(default=None, repr=False)
