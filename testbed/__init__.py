"""Scale-across training testbed: real collectives over emulated fiber that is measured before it is trusted.

::

    import testbed

    with testbed.up("metro-40km") as lab:
        job = lab.train(steps=200)
        job.wait_for(step=80)
        with lab.cut("north"):
            job.wait_for(step=100)
        job.wait()
        print(lab.report().goodput)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.version import __version__

if TYPE_CHECKING:
    from testbed.lab.api import (
        AgentWorkload,
        Fault,
        Job,
        Lab,
        ProgramJob,
        ProgramWorkload,
        Topology,
        attach,
        down,
        labs,
        load,
        plan,
        predict,
        report,
        run,
        runs,
        up,
        validate,
    )

__all__ = [
    "AgentWorkload",
    "Fault",
    "Job",
    "Lab",
    "ProgramJob",
    "ProgramWorkload",
    "Topology",
    "__version__",
    "attach",
    "down",
    "labs",
    "load",
    "plan",
    "predict",
    "report",
    "run",
    "runs",
    "up",
    "validate",
]


def discover(discover_system: bool = True) -> Any:
    """Return what ``chaos discover scale-across-testbed`` shows; needs the extra ``chaostoolkit``.

    Chaos Toolkit looks for this function in the top-level package only (chaoslib.discovery.package).
    """
    from importlib import import_module  # a plain import would make an optional extra a dependency

    return import_module("testbed.chaos").discover(discover_system)


def __getattr__(name: str) -> Any:
    """Import the library on first use: the keeper and `testbed --help` need little of it."""
    if name in __all__:
        from testbed.lab import api

        return getattr(api, name)
    raise AttributeError(f"module 'testbed' has no attribute '{name}'")
