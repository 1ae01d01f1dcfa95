"""Check what this host supports; for each missing capability, show the reason and the fix (``testbed doctor``).

One module per subject. Checks that need an attempt (create a veth, attach netem) run in ``trial.py``.
"""

from __future__ import annotations

from testbed.host.doctor import kernel, limits, machine, programs, sessions, trial
from testbed.host.doctor.check import Check, can_run, can_train

__all__ = ["Check", "can_run", "can_train", "examine"]


def examine() -> tuple[Check, ...]:
    """Run all checks, in display order. Takes about a second; a missing capability never raises."""
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
        sessions.lasting(),
        *programs.containers(),
    )
