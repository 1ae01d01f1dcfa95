"""A union of time intervals; its overlap with a span is found in O(log n)."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Intervals"]


@dataclass(frozen=True)
class Intervals:
    """A union of intervals: sorted, disjoint, with the total length before each, so that queries take O(log n)."""

    began_t: tuple[float, ...] = ()
    ended_t: tuple[float, ...] = ()
    _before_s: tuple[float, ...] = field(default=(0.0,), repr=False)

    @classmethod
    def union(cls, intervals: Iterable[tuple[float, float]]) -> Intervals:
        began: list[float] = []
        ended: list[float] = []
        for begin_t, end_t in sorted(intervals):
            if ended and begin_t <= ended[-1]:
                ended[-1] = max(ended[-1], end_t)
            else:
                began.append(begin_t)
                ended.append(end_t)
        lengths = (end_t - begin_t for begin_t, end_t in zip(began, ended, strict=True))
        return cls(tuple(began), tuple(ended), tuple(itertools.accumulate(lengths, initial=0.0)))

    def overlaps(self, began_t: float, ended_t: float) -> bool:
        """Whether any part lies between ``began_t`` and ``ended_t``, which may be equal."""
        first = bisect.bisect_left(self.ended_t, began_t)
        return first < len(self.began_t) and self.began_t[first] <= ended_t

    def within(self, began_t: float, ended_t: float) -> Sequence[tuple[float, float]]:
        """Return the parts that lie between ``began_t`` and ``ended_t``."""
        first = bisect.bisect_right(self.ended_t, began_t)
        last = bisect.bisect_left(self.began_t, ended_t)
        return [(max(self.began_t[index], began_t), min(self.ended_t[index], ended_t)) for index in range(first, last)]

    def length_s(self, began_t: float, ended_t: float) -> float:
        """Return the total length between ``began_t`` and ``ended_t``."""
        first = bisect.bisect_right(self.ended_t, began_t)
        last = bisect.bisect_left(self.began_t, ended_t)
        if first >= last:
            return 0.0
        # The first and the last part are cut before they are added, because a very long one would absorb the others.
        first_s = min(self.ended_t[first], ended_t) - max(self.began_t[first], began_t)
        if last - first == 1:
            return max(0.0, first_s)
        last_s = min(self.ended_t[last - 1], ended_t) - self.began_t[last - 1]
        return first_s + self._before_s[last - 1] - self._before_s[first + 1] + last_s
