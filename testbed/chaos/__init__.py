"""Actions and probes that let Chaos Toolkit drive a lab (https://chaostoolkit.org, Apache-2.0).

Run ``chaos run --rollback-strategy=always experiment.json``: with any other strategy the toolkit may not roll back when
an activity fails. ``testbed heal`` and ``testbed down`` undo whatever it leaves. Example: docs/chaostoolkit.md.

The lab is the argument ``lab`` of an activity, else ``testbed_lab`` in the experiment's configuration, else the only
lab that is up, for actions only if the same user brought it up.
"""

from __future__ import annotations

from chaoslib.discovery.discover import discover_actions, discover_probes, initialize_discovery_result
from chaoslib.types import DiscoveredActivities, Discovery

from testbed.version import __version__

__all__ = ["discover"]


def discover(discover_system: bool = True) -> Discovery:
    """Return what ``chaos discover scale-across-testbed`` shows: every action and probe with its arguments."""
    discovery = initialize_discovery_result("scale-across-testbed", __version__, "testbed")
    activities: list[DiscoveredActivities] = discovery["activities"]
    activities.extend(discover_actions("testbed.chaos.actions"))
    activities.extend(discover_probes("testbed.chaos.probes"))
    return discovery
