"""Scale-across training testbed: real collectives over emulated fiber that is measured before it is believed.

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
        Fault,
        Job,
        Lab,
        Topology,
        attach,
        down,
        labs,
        load,
        plan,
        report,
        run,
        runs,
        up,
        validate,
    )

__all__ = [
    "Fault",
    "Job",
    "Lab",
    "Topology",
    "__version__",
    "attach",
    "down",
    "labs",
    "load",
    "plan",
    "report",
    "run",
    "runs",
    "up",
    "validate",
]


def discover(discover_system: bool = True) -> Any:
    """What ``chaos discover scale-across-testbed`` shows; needs the extra ``chaostoolkit``.

    Chaos Toolkit looks for it in a distribution's own package and nowhere below (chaoslib.discovery.package).
    """
    from importlib import import_module  # the library stands on none of its extras

    return import_module("testbed.chaos").discover(discover_system)


def __getattr__(name: str) -> Any:
    """The library is imported when it is first used: the keeper and `testbed --help` need little of it."""
    if name in __all__:
        from testbed.lab import api

        return getattr(api, name)
    raise AttributeError(f"module 'testbed' has no attribute '{name}'")
