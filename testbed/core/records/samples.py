"""``metrics.jsonl`` as typed, frozen records (their contract: docs/design.md, "Run directory").

All ``t`` are seconds of the host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final

from testbed.core.fields import Fields, mapping, need_number, number
from testbed.core.json_record import JsonRecord, Key, Or, read_kinds
from testbed.core.records.stalls import TcpTimeouts
from testbed.core.topology.direction import head_of

__all__ = [
    "DECIMALS",
    "DIGITS",
    "SCRAPED",
    "FiberSample",
    "HostSample",
    "Metrics",
    "NodeSample",
    "RankSample",
    "read_metrics",
]


@dataclass(frozen=True)
class FiberSample(JsonRecord):
    """Cumulative counters of one direction. ``byte_count`` is L2 bytes: 14 B Ethernet header, headers of every segment.

    ``lateness_counts[i]`` are packets that left at most ``lateness_bounds_s[i]`` after they were due and more than the
    previous bound; with one count more than bounds, the last is what came later than every bound.
    """

    t: float
    direction: str
    packets: Annotated[int, Or(0)]
    segments: Annotated[int, Or(0)]
    byte_count: Annotated[int, Key("bytes")]
    drops: Annotated[Mapping[str, int], Or(MappingProxyType({}))]
    queue_bytes: int | None
    lateness_bounds_s: Annotated[tuple[float, ...], Key("lateness.bounds_s"), Or(())]
    lateness_counts: Annotated[tuple[float, ...], Key("lateness.counts"), Or(())]

    @property
    def toward(self) -> str:
        return head_of(self.direction)


SCRAPED: Final[Mapping[str, tuple[str, str]]] = {
    "steps": ("testbed_steps_total", ""),
    "tokens": ("testbed_tokens_total", ""),
    "compute_s": ("testbed_compute_seconds_total", ""),
    "peer_wait_s": ("testbed_exposed_communication_seconds_total", 'part="peer_wait"'),
    "network_s": ("testbed_exposed_communication_seconds_total", 'part="network"'),
    "cpu_s": ("testbed_process_cpu_seconds_total", ""),
    "memory_bytes": ("testbed_process_resident_memory_bytes", ""),
}
"""What is recorded of a rank's metrics: field, and (name, label) of the series that it is read from."""

DECIMALS: Final = 3
DIGITS: Final = 9
"""Of recorded seconds, whichever is shorter: a line has at most 200 bytes, also after weeks."""


@dataclass(frozen=True)
class RankSample(JsonRecord):
    """One scrape of one rank's ``/metrics``: counters of its process, and its resident memory.

    All values are None where the rank did not answer (``why`` says why), single ones where an agent of an older version
    did not export them.
    """

    t: float
    rank: int
    steps: int | None = None
    tokens: int | None = None
    compute_s: float | None = None
    peer_wait_s: float | None = None
    network_s: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None
    why: str = ""

    @property
    def exposed_s(self) -> float | None:
        if self.peer_wait_s is None or self.network_s is None:
            return None
        return self.peer_wait_s + self.network_s

    @classmethod
    def from_series(cls, t: float, rank: int, values: Fields, why: str = "") -> RankSample:
        """Read the series of an answer: ``name{label="value"}`` to value."""

        def value(name: str, label: str) -> float | None:
            matching = (series for series in values if series.partition("{")[0] == name and label in series)
            return next((number(values, series) for series in matching), None)

        return cls.from_dict({"t": t, "rank": rank, "why": why, **{name: value(*SCRAPED[name]) for name in SCRAPED}})

    @classmethod
    def from_dict(cls, fields: Fields, **given: object) -> RankSample:
        if "values" in fields:  # the line of an older version: every series, by name
            t, rank = need_number(fields, "t"), int(need_number(fields, "rank"))
            return cls.from_series(t, rank, mapping(fields, "values"))
        return super().from_dict(fields, **given)

    def to_dict(self) -> dict[str, object]:
        """Return the line of metrics.jsonl; what is unknown is left out."""
        values = {name: getattr(self, name) for name in SCRAPED}
        rounded = {
            name: float(f"{round(value, DECIMALS):.{DIGITS}g}") if isinstance(value, float) else value
            for name, value in values.items()
            if value is not None
        }
        line: dict[str, object] = {"t": round(self.t, DECIMALS), "kind": "rank", "rank": self.rank, **rounded}
        return {**line, "why": self.why} if self.why else line


@dataclass(frozen=True)
class NodeSample(JsonRecord):
    """Cumulative counters of a node's interface to the fabric, as its kernel counts them: L2 bytes, all of its ranks'.

    Recorded of launched programs, whose ranks have no metrics that are known.
    """

    t: float
    node: str
    sent_bytes: int
    received_bytes: int

    def to_dict(self) -> dict[str, object]:
        """Return the line of metrics.jsonl."""
        return {"t": round(self.t, DECIMALS), "kind": "node", **{name: getattr(self, name) for name in _OF_NODE}}


_OF_NODE: Final = ("node", "sent_bytes", "received_bytes")


@dataclass(frozen=True)
class HostSample(JsonRecord):
    """``cpu_busy`` is the share 0..1 of all cores that was busy since the previous sample."""

    t: float
    cpu_busy: float | None
    emulator_cpu_s: float | None


@dataclass(frozen=True)
class Metrics:
    """The samples of each kind, in the order of time."""

    fibers: tuple[FiberSample, ...] = ()
    ranks: tuple[RankSample, ...] = ()
    hosts: tuple[HostSample, ...] = ()
    nodes: tuple[NodeSample, ...] = ()
    tcp_timeouts: tuple[TcpTimeouts, ...] = ()


_KINDS: Final[Mapping[str, Callable[[Fields], JsonRecord]]] = {
    "fiber": FiberSample.from_dict,
    "rank": RankSample.from_dict,
    "host": HostSample.from_dict,
    "node": NodeSample.from_dict,
    "tcp_timeouts": TcpTimeouts.from_dict,
}


def read_metrics(lines: Iterable[object]) -> tuple[Metrics, int]:
    """Read ``metrics.jsonl``: (samples, malformed lines)."""
    samples, malformed = read_kinds(lines, _KINDS)
    return Metrics(*(tuple(sorted(samples[kind], key=lambda sample: sample.t)) for kind in _KINDS)), malformed
