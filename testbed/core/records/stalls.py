"""``stalls.jsonl``: intervals in which a core of the host ran nothing, as recorded by one SCHED_FIFO sleeper per core.

Without the file the noise of the host is unknown; earlier versions kept no such log. All times are seconds of the
host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from testbed.core.fields import Malformed, parse
from testbed.core.intervals import Intervals
from testbed.core.json_record import JsonRecord, Key, Least, Or

__all__ = ["DECIMALS", "Stall", "TcpTimeouts", "read_stalls", "stalled_s"]

DECIMALS = 6
"""Of recorded seconds; logged stalls are longer than 200 us."""


@dataclass(frozen=True)
class Stall(JsonRecord):
    core: int
    began_t: Annotated[float, Key("t")]
    length_s: Annotated[float, Key("s")]

    @property
    def ended_t(self) -> float:
        return self.began_t + self.length_s

    def __post_init__(self) -> None:
        if self.core < 0 or self.began_t < 0 or self.length_s < 0:
            raise Malformed("expected a core, a start and a length that are not negative")

    def to_dict(self) -> dict[str, object]:
        """Return the line of stalls.jsonl."""
        return {"core": self.core, "t": round(self.began_t, DECIMALS), "s": round(self.length_s, DECIMALS)}


@dataclass(frozen=True)
class TcpTimeouts(JsonRecord):
    """Retransmission timeouts of TCP that expired in a node from ``since_t`` to ``t``: a line of metrics.jsonl."""

    t: float
    node: str
    since_t: float
    count: Annotated[int, Or(0), Least(0)]

    def to_dict(self) -> dict[str, object]:
        times = {"t": round(self.t, DECIMALS), "since_t": round(self.since_t, DECIMALS)}
        return {"kind": "tcp_timeouts", "node": self.node, "count": self.count, **times}


def stalled_s(stalls: Iterable[Stall], began_t: float, ended_t: float) -> float:
    """Return for how long at least one core was stalled between ``began_t`` and ``ended_t``."""
    return Intervals.union((stall.began_t, stall.ended_t) for stall in stalls).length_s(began_t, ended_t)


def read_stalls(lines: Iterable[object]) -> tuple[tuple[Stall, ...], int]:
    """Read ``stalls.jsonl``: (stalls in the order of time, malformed lines)."""
    stalls, malformed = parse(lines, {"": Stall.from_dict}, None)
    return tuple(sorted(stalls, key=lambda stall: (stall.began_t, stall.core))), malformed
