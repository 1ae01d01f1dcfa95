"""``metrics.jsonl`` as typed, frozen records (their contract: docs/design.md, "Run directory").

All ``t`` are seconds of the host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from testbed.core.fields import Fields, integer, mapping, need_number, need_text, number, numbers, parse, text

__all__ = ["FiberSample", "HostSample", "RankSample", "read_metrics"]


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


@dataclass(frozen=True)
class RankSample:
    """One scrape of one rank's ``/metrics``; ``values`` by Prometheus sample name with its labels."""

    t: float
    rank: int
    node: str
    site: str
    values: Mapping[str, float]

    @classmethod
    def from_dict(cls, fields: Fields) -> RankSample:
        values = mapping(fields, "values")
        return cls(
            t=need_number(fields, "t"),
            rank=int(need_number(fields, "rank")),
            node=text(fields, "node"),
            site=text(fields, "site"),
            values={name: value for name in values if (value := number(values, name)) is not None},
        )


@dataclass(frozen=True)
class HostSample:
    """``cpu_busy`` is the share 0..1 of all cores that was busy since the previous sample."""

    t: float
    cpu_busy: float | None
    emulator_cpu_s: float | None

    @classmethod
    def from_dict(cls, fields: Fields) -> HostSample:
        return cls(need_number(fields, "t"), number(fields, "cpu_busy"), number(fields, "emulator_cpu_s"))


def read_metrics(
    lines: Iterable[object],
) -> tuple[tuple[FiberSample, ...], tuple[RankSample, ...], tuple[HostSample, ...], int]:
    """Read ``metrics.jsonl``: (fibers, ranks, host, malformed lines), each in the order of time."""
    readers: dict[str, Callable[[Fields], FiberSample | RankSample | HostSample]] = {
        "fiber": FiberSample.from_dict,
        "rank": RankSample.from_dict,
        "host": HostSample.from_dict,
    }
    found, malformed = parse(lines, readers, "kind")
    found.sort(key=lambda sample: sample.t)
    return (
        tuple(each for each in found if isinstance(each, FiberSample)),
        tuple(each for each in found if isinstance(each, RankSample)),
        tuple(each for each in found if isinstance(each, HostSample)),
        malformed,
    )
