"""Deprecated alias of ``testbed_agents.adapters``, for users' adapters; to be removed in the release after 0.2."""

from __future__ import annotations

import sys
import warnings

from testbed_agents.adapters import elements, helper

__all__ = ["elements", "helper"]

warnings.warn(
    "testbed_agents.libraries is now testbed_agents.adapters; the alias will be removed in the release after 0.2",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[f"{__name__}.elements"] = elements
sys.modules[f"{__name__}.helper"] = helper
