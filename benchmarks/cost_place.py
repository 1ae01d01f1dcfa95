"""Where the ranks of `watched_group` run, without torch: what starts them must not import it too soon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

METRICS_PORT = 9464
"""Of rank 0; the next ranks have the next ports."""
WARM_UP = 10
"""Steps at the beginning that do not count."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs. ``namespaces``: paths by kind; empty for those of this process."""

    site: str
    address: str
    interface: str
    namespaces: Mapping[str, str] = field(default_factory=dict)
