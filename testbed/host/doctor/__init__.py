"""What this host can do, and for what it cannot: why, and the command that mends it. The facts of ``testbed doctor``.

A room for each thing that is looked at; what has to be tried to be known is tried in ``trial.py``.
"""

from __future__ import annotations

from testbed.host.doctor import kernel, limits, machine, programs, trial
from testbed.host.doctor.check import Check, can_run, can_train

__all__ = ["Check", "can_run", "can_train", "examine"]


def examine() -> tuple[Check, ...]:
    """All facts, in the order in which they are shown. Takes about a second; never raises for what a host lacks."""
    tried = trial.in_namespace()
    return (
        kernel.version(),
        *kernel.capabilities(),
        *kernel.parts(tried),
        *kernel.emulators(tried),
        *programs.tools(),
        programs.torch(),
        programs.prometheus(),
        *machine.resources(),
        *machine.clock(),
        *machine.headroom(),
        *limits.limits(),
        *limits.folders(),
        *programs.containers(),
    )
