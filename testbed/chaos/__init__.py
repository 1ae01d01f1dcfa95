"""Chaos Toolkit drives a lab: actions and probes for its experiments (https://chaostoolkit.org, Apache-2.0).

``chaos run --rollback-strategy=always experiment.json``: with any other strategy the toolkit may leave the lab as it is
when an activity fails. Whatever it leaves, ``testbed heal`` and ``testbed down`` undo. An example:
docs/chaostoolkit.md.

The lab is named by the argument ``lab`` of an activity, else by ``testbed_lab`` in the experiment's configuration, else
it is the only one that is up.
"""

from __future__ import annotations

from chaoslib.discovery.discover import discover_actions, discover_probes, initialize_discovery_result
from chaoslib.types import DiscoveredActivities, Discovery

from testbed.version import __version__

__all__ = ["discover"]


def discover(discover_system: bool = True) -> Discovery:
    """What ``chaos discover scale-across-testbed`` shows: every action and probe with its arguments."""
    found = initialize_discovery_result("scale-across-testbed", __version__, "testbed")
    activities: list[DiscoveredActivities] = found["activities"]
    activities.extend(discover_actions("testbed.chaos.actions"))
    activities.extend(discover_probes("testbed.chaos.probes"))
    return found
