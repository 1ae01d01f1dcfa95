"""``stalls.jsonl``: intervals in which a core of the host ran nothing, as recorded by one SCHED_FIFO sleeper per core.

Without the file the noise of the host is unknown; earlier versions kept no such log. All times are seconds of the
host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.core.fields import Fields, Malformed, integer, need_number, need_text, parse
from testbed.core.intervals import Intervals

__all__ = ["DECIMALS", "Stall", "TcpTimeouts", "read_stalls", "stalled_s"]

DECIMALS = 6
"""Of recorded seconds; logged stalls are longer than 200 us."""


@dataclass(frozen=True)
class Stall:
    core: int
    began_t: float
    length_s: float

    @property
    def ended_t(self) -> float:
        return self.began_t + self.length_s

    @classmethod
    def from_dict(cls, fields: Fields) -> Stall:
        core, began_t, length_s = integer(fields, "core"), need_number(fields, "t"), need_number(fields, "s")
        if core is None or core < 0 or began_t < 0 or length_s < 0:
            raise Malformed("expected a core, a start and a length that are not negative")
        return cls(core, began_t, length_s)

    def to_dict(self) -> dict[str, object]:
        """Return the line of stalls.jsonl."""
        return {"core": self.core, "t": round(self.began_t, DECIMALS), "s": round(self.length_s, DECIMALS)}


@dataclass(frozen=True)
class TcpTimeouts:
    """Retransmission timeouts of TCP that expired in a node from ``since_t`` to ``t``: a line of metrics.jsonl."""

    t: float
    node: str
    since_t: float
    count: int

    @classmethod
    def from_dict(cls, fields: Fields) -> TcpTimeouts:
        count = integer(fields, "count") or 0
        return cls(need_number(fields, "t"), need_text(fields, "node"), need_number(fields, "since_t"), max(0, count))

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
