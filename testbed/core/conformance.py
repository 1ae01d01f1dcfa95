"""The former name of ``testbed.core.validation``: an alias until the release after 0.2, for libraries of users."""

from __future__ import annotations

import sys
import warnings

from testbed.core.validation import library

__all__ = ["library"]

warnings.warn(
    "testbed.core.conformance is now testbed.core.validation; the old name goes in the release after 0.2",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[f"{__name__}.library"] = library
