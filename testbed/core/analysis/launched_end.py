"""How a launched program ended, in one sentence: the rank that ended first, how, after how long, and the others.

"rank 2 on west-0 ended with status 137 (SIGKILL: out of memory) after 41 s; the others were ended 5 s later".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from testbed.core.analysis import blame
from testbed.core.fields import Fields, integer, number, numbers, sequence, text
from testbed.core.records.process_end import ProcessEnd, ends_of

__all__ = ["SHELL", "sentence"]

SHELL: Final = {126: "cannot be executed", 127: "command not found"}
"""Exit statuses by which a shell reports that it could not start a program (POSIX, Shell Command Language, 2.8.2)."""

_DIGITS = 2


def sentence(workload: Fields) -> str:
    """Return the sentence for a launched program's ``workload`` of run.json; empty if no rank failed by itself.

    The first rank is the one that failed first. Within :data:`blame.EFFECT_S` of it others may have failed because of
    it, or have been noticed earlier: there one that the kernel killed for want of memory comes first, then one with a
    signal that it did not raise itself.
    """
    failed = [end for end in ends_of(workload) if end.rank is not None and (end.signal or end.status)]
    if not failed:
        return ""
    earliest = min(end.t for end in failed)
    first = min((end for end in failed if end.t <= earliest + blame.EFFECT_S), key=_precedence)
    statuses = list(sequence(workload, "statuses"))
    return f"{_one(first, workload, statuses)}{_others(first, failed, workload, statuses)}"


def _precedence(end: ProcessEnd) -> tuple[int, float]:
    if end.out_of_memory:
        return 0, end.t
    return (1 if end.signal and end.signal not in blame.OWN_SIGNALS else 2), end.t


def _one(end: ProcessEnd, workload: Fields, statuses: Sequence[object]) -> str:
    assert end.rank is not None
    status = 128 + end.signal if end.signal else end.status
    why = _why(end)
    node = _node(workload, end.rank)
    began = numbers(workload, "began_t")
    lasted_s = end.t - began[end.rank] if end.rank < len(began) else None
    return f"rank {end.rank}{f' on {node}' if node else ''} ended with status {status}{f' ({why})' if why else ''}" + (
        f" after {_duration(lasted_s)}" if lasted_s is not None and lasted_s >= 0 else ""
    )


def _why(end: ProcessEnd) -> str:
    if not end.signal:
        return SHELL.get(end.status, "")
    name = blame.signal_name(end.signal)
    if end.out_of_memory:
        return f"{name}: out of memory"
    if end.by_testbed:
        return f"{name}: by a fault of the testbed"
    return f"{name}: sender unknown" if blame.is_unexplained(end) else name


def _node(workload: Fields, rank: int) -> str:
    for member in sequence(workload, "members"):
        if isinstance(member, Mapping) and integer(member, "rank") == rank:
            return text(member, "node")
    return ""


def _others(first: ProcessEnd, failed: Sequence[ProcessEnd], workload: Fields, statuses: Sequence[object]) -> str:
    remarks = []
    if too := len(failed) - 1:
        remarks.append(f"{too} other{'s' if too > 1 else ''} failed too")
    ended = [rank for rank, status in enumerate(statuses) if status is None]
    times = [place for place in (_at(workload, rank) for rank in ended) if place is not None]
    if times:  # else they still run
        later = f" {_duration(max(times) - first.t)} later" if max(times) >= first.t else ""
        whole = len(ended) == len(statuses) - 1
        remarks.append(f"{'the others were' if whole else f'{len(ended)} {_were(len(ended))}'} ended{later}")
    return "".join(f"; {remark}" for remark in remarks)


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _at(workload: Fields, rank: int) -> float | None:
    ended_t = list(sequence(workload, "ended_t"))
    return number({"t": ended_t[rank]}, "t") if rank < len(ended_t) else None


def _duration(seconds: float) -> str:
    """Return a duration to about two digits, in seconds up to ten minutes."""
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.{_DIGITS}g} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
