"""``metrics.jsonl`` as typed, frozen records (their contract: docs/design.md, "Run directory").

All ``t`` are seconds of the host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.fields import Fields, integer, mapping, need_number, need_text, number, numbers, parse, text
from testbed.core.records.stalls import TcpTimeouts

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
class FiberSample:
    """Cumulative counters of one direction. ``byte_count`` is L2 bytes: 14 B Ethernet header, headers of every segment.

    ``lateness_counts[i]`` are packets that left at most ``lateness_bounds_s[i]`` after they were due and more than the
    previous bound; with one count more than bounds, the last is what came later than every bound.
    """

    t: float
    direction: str
    packets: int
    segments: int
    byte_count: int
    drops: Mapping[str, int]
    queue_bytes: int | None
    lateness_bounds_s: tuple[float, ...]
    lateness_counts: tuple[float, ...]

    @property
    def toward(self) -> str:
        return self.direction.partition(":")[2]

    @classmethod
    def from_dict(cls, fields: Fields) -> FiberSample:
        lateness = mapping(fields, "lateness")
        drops = mapping(fields, "drops")
        return cls(
            t=need_number(fields, "t"),
            direction=need_text(fields, "direction"),
            packets=integer(fields, "packets") or 0,
            segments=integer(fields, "segments") or 0,
            byte_count=int(need_number(fields, "bytes")),
            drops={cause: count for cause in drops if (count := integer(drops, cause)) is not None},
            queue_bytes=integer(fields, "queue_bytes"),
            lateness_bounds_s=numbers(lateness, "bounds_s"),
            lateness_counts=numbers(lateness, "counts"),
        )


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
class RankSample:
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
            matching = (it for it in values if it.partition("{")[0] == name and label in it)
            return next((number(values, it) for it in matching), None)

        return cls.from_dict({"t": t, "rank": rank, "why": why, **{it: value(*SCRAPED[it]) for it in SCRAPED}})

    @classmethod
    def from_dict(cls, fields: Fields) -> RankSample:
        if "values" in fields:  # the line of an older version: every series, by name
            t, rank = need_number(fields, "t"), int(need_number(fields, "rank"))
            return cls.from_series(t, rank, mapping(fields, "values"))
        return cls(
            t=need_number(fields, "t"),
            rank=int(need_number(fields, "rank")),
            steps=integer(fields, "steps"),
            tokens=integer(fields, "tokens"),
            compute_s=number(fields, "compute_s"),
            peer_wait_s=number(fields, "peer_wait_s"),
            network_s=number(fields, "network_s"),
            cpu_s=number(fields, "cpu_s"),
            memory_bytes=integer(fields, "memory_bytes"),
            why=text(fields, "why"),
        )

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
class NodeSample:
    """Cumulative counters of a node's interface to the fabric, as its kernel counts them: L2 bytes, all of its ranks'.

    Recorded of launched programs, whose ranks have no metrics that are known.
    """

    t: float
    node: str
    sent_bytes: int
    received_bytes: int

    @classmethod
    def from_dict(cls, fields: Fields) -> NodeSample:
        return cls(
            need_number(fields, "t"),
            need_text(fields, "node"),
            int(need_number(fields, "sent_bytes")),
            int(need_number(fields, "received_bytes")),
        )

    def to_dict(self) -> dict[str, object]:
        """Return the line of metrics.jsonl."""
        return {"t": round(self.t, DECIMALS), "kind": "node", **{it: getattr(self, it) for it in _OF_NODE}}


_OF_NODE: Final = ("node", "sent_bytes", "received_bytes")


@dataclass(frozen=True)
class HostSample:
    """``cpu_busy`` is the share 0..1 of all cores that was busy since the previous sample."""

    t: float
    cpu_busy: float | None
    emulator_cpu_s: float | None

    @classmethod
    def from_dict(cls, fields: Fields) -> HostSample:
        return cls(need_number(fields, "t"), number(fields, "cpu_busy"), number(fields, "emulator_cpu_s"))


@dataclass(frozen=True)
class Metrics:
    """The samples of each kind, in the order of time."""

    fibers: tuple[FiberSample, ...] = ()
    ranks: tuple[RankSample, ...] = ()
    hosts: tuple[HostSample, ...] = ()
    nodes: tuple[NodeSample, ...] = ()
    tcp_timeouts: tuple[TcpTimeouts, ...] = ()


def read_metrics(lines: Iterable[object]) -> tuple[Metrics, int]:
    """Read ``metrics.jsonl``: (samples, malformed lines)."""
    readers: dict[str, Callable[[Fields], FiberSample | RankSample | HostSample | NodeSample | TcpTimeouts]] = {
        "fiber": FiberSample.from_dict,
        "rank": RankSample.from_dict,
        "host": HostSample.from_dict,
        "node": NodeSample.from_dict,
        "tcp_timeouts": TcpTimeouts.from_dict,
    }
    samples, malformed = parse(lines, readers, "kind")
    samples.sort(key=lambda sample: sample.t)
    metrics = Metrics(
        fibers=tuple(sample for sample in samples if isinstance(sample, FiberSample)),
        ranks=tuple(sample for sample in samples if isinstance(sample, RankSample)),
        hosts=tuple(sample for sample in samples if isinstance(sample, HostSample)),
        nodes=tuple(sample for sample in samples if isinstance(sample, NodeSample)),
        tcp_timeouts=tuple(sample for sample in samples if isinstance(sample, TcpTimeouts)),
    )
    return metrics, malformed
