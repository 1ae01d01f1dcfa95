"""All series exported by the keeper of an observed lab."""

from __future__ import annotations

from testbed.core.prometheus import series
from testbed.core.prometheus.series import Series

ALL = tuple(value for value in vars(series).values() if isinstance(value, Series))
