"""All series that the keeper of an observed lab exports."""

from __future__ import annotations

from testbed.core.prometheus import series
from testbed.core.prometheus.series import Series

ALL = tuple(value for value in vars(series).values() if isinstance(value, Series))
