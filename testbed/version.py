"""The version of the testbed, in a module of its own that imports nothing."""

from __future__ import annotations

from typing import Final

__all__ = ["__version__"]

__version__: Final = "0.1.0"
