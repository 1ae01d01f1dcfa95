"""Blame for the ends of processes: the program itself, or a sender outside the testbed.

- A signal that the testbed did not send says nothing about the job: somebody else on this machine, or its kernel for
  want of memory, ended the process. The result is unknown, whatever else was going on, a cut included.
- A signal that a process raises by what it does (:data:`OWN_SIGNALS`), and an exit status other than 0, are the
  program's own failure.
- What follows another end within :data:`EFFECT_S` may be its effect: peers fail, or abort, when a connection closes. So
  a failure of the program's own counts only if no unexplained signal came before it or within that time.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.records.process_end import ProcessEnd

__all__ = ["EFFECT_S", "OWN_SIGNALS", "Blame", "blame", "describe", "is_unexplained", "signal_name"]

OWN_SIGNALS: Final = frozenset(
    (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGPIPE,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGXFSZ,
    )
)
"""Signals by which the kernel reports an error of the process itself (signal(7))."""

EFFECT_S: Final = 2.0
"""Two ends this close may be seen in the wrong order: each is noticed by polling."""


@dataclass(frozen=True)
class Blame:
    """What the ends of processes say: ``unexplained`` by a sender unknown, ``own`` failures of the program.

    At most one of both has entries.
    """

    unexplained: tuple[ProcessEnd, ...] = ()
    own: tuple[ProcessEnd, ...] = ()

    @property
    def sentence(self) -> str:
        """The ends in words; empty if there is nothing to blame."""
        ends = self.unexplained or self.own
        shown = "; ".join(describe(end) for end in ends[:4])
        return shown + (f"; and {len(ends) - 4} more" if len(ends) > 4 else "")


def blame(ends: Sequence[ProcessEnd]) -> Blame:
    """Return who is to blame for the ends of a run's processes, given in any order."""
    unexplained = sorted(filter(is_unexplained, ends), key=lambda end: end.t)
    own = sorted((end for end in ends if _is_own(end)), key=lambda end: end.t)
    if unexplained and own and own[0].t < unexplained[0].t - EFFECT_S:
        return Blame(own=tuple(own))
    return Blame(unexplained=tuple(unexplained)) if unexplained else Blame(own=tuple(own))


def is_unexplained(end: ProcessEnd) -> bool:
    """Whether a signal ended the process that neither the testbed sent nor the process brought upon itself."""
    return end.signal != 0 and not end.by_testbed and end.signal not in OWN_SIGNALS


def describe(end: ProcessEnd) -> str:
    """Return an end in words: ``rank 2: SIGKILL, sender unknown``."""
    who = "the fork server of the ranks" if end.rank is None else f"rank {end.rank}"
    if not end.signal:
        return f"{who}: exit status {end.status}"
    name = signal_name(end.signal)
    if end.out_of_memory:
        return f"{who}: {name}, out of memory (counted by its control group)"
    return f"{who}: {name}, {'sender unknown' if is_unexplained(end) else 'its own failure'}"


def _is_own(end: ProcessEnd) -> bool:
    return not end.by_testbed and (end.signal in OWN_SIGNALS if end.signal else end.status != 0)


def signal_name(number: int) -> str:
    """Return a signal's name: ``SIGKILL``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
