"""Records that the checkers read, as lines by rank, and the checkers' results on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.core.checkers.checks import Checked, check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks
from testbed.core.records.rank_log import RankLog
from testbed.core.training.twin import Twin

Line = dict[str, Any]
Run = Sequence[Sequence[Line]]


def begin(rank: int, attempt: int = 1, after: int = 0, *, world: int = 3, hang_s: float = 2.0, **fields: Any) -> Line:
    """The begin of an attempt that continues after step ``after``."""
    return {
        "kind": "begin", "attempt": attempt, "t": 100.0 * attempt, "rank": rank, "world_size": world, "step": after,
        "hang_s": hang_s, "parameters": f"p{after}", "optimizer_steps": after, **fields,
    }  # fmt: skip


def at_step(run: Run, rank: int, number: int, kind: str = "step", attempt: int = 1) -> Line:
    """Return the line of a rank about a step."""
    place = (kind, number, attempt)
    return next(line for line in run[rank] if (line["kind"], line.get("step"), line.get("attempt")) == place)


def judged(run: Run, twin: Twin | None = None, logs: Sequence[RankLog] = ()) -> Checked:
    """Read the lines, all of which must be well-formed, and check them."""
    records = [read_checks(rank, lines) for rank, lines in enumerate(run)]
    assert not any(malformed for _, malformed in records)
    return check([log for log, _ in records], twin, logs)


def checker(run: Run, name: str, twin: Twin | None = None, logs: Sequence[RankLog] = ()) -> Checker:
    """Return the result of one checker."""
    return named(judged(run, twin, logs), name)


def named(checked: Checked, name: str) -> Checker:
    return next(result for result in checked.checkers if result.id == name)
