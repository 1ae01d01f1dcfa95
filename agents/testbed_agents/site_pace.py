"""How many steps a site takes between two exchanges: the same at all, or by its speed.

By its speed (Liu et al. 2024, arXiv:2401.09135, "dynamic local updates"), the fastest site takes H steps and one of
half its speed H/2, so that all need the same time.
"""

from __future__ import annotations

import statistics
import time

import torch

from testbed_agents.exchange import gather_into
from testbed_agents.strategies.strategy import Context

__all__ = ["MEASURED", "SitePace"]

MEASURED = 4
"""The step after which speeds are compared, if they are not declared; the first one is not counted."""


class SitePace:
    """``every``: steps of this site between two exchanges, once it is known; until then none is due."""

    def __init__(self, every: int, by_time: bool) -> None:
        self._most, self._by_time = every, by_time
        self.every = every
        self._measuring = False
        self._began_t = 0.0
        self._took_s: list[float] = []

    def begin(self, context: Context) -> None:
        if not self._by_time:
            return
        if context.speeds:
            self.every = steps_by_speed(self._most, context.speeds.get(context.groups.site, 1.0))
        else:
            self._measuring = True

    def step_begins(self) -> None:
        self._began_t = time.monotonic()

    def measure(self, step: int, context: Context) -> None:
        """Take the time of a step; after a few, compare those of all ranks: a collective call of all."""
        if not self._measuring:
            return
        self._took_s.append(context.ready_t - self._began_t)
        if len(self._took_s) == MEASURED:
            self._measuring = False
            own = torch.tensor([statistics.median(self._took_s[1:])], dtype=torch.float64)
            everyone = torch.empty(context.groups.world_size, dtype=torch.float64)
            gather_into(everyone, own)
            slowest = {site: max(everyone[list(ranks)].tolist()) for site, ranks in context.groups.members.items()}
            self.every = steps_by_speed(self._most, min(slowest.values()) / slowest[context.groups.site])

    @property
    def numbers(self) -> tuple[int, int]:
        """The state that a checkpoint saves."""
        return self.every, int(self._measuring)

    def loaded(self, every: int, measuring: int) -> None:
        self.every, self._measuring = every, bool(measuring)


def steps_by_speed(most: int, speed: float) -> int:
    """Return H of a site with a ``speed`` relative to the fastest one, which takes ``most`` steps."""
    return max(1, round(most * speed))
