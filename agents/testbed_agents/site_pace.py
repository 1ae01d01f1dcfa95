"""How many steps a site takes between two exchanges, the same at all or by its speed; and how much each site counts.

Where sites do not step together (:class:`SitePace`), the fastest site takes H steps and one of half its speed H/2, so
that all need the same time (Liu et al. 2024, arXiv:2401.09135, "dynamic local updates").

Where they do (:class:`InnerSteps`), the slowest site takes H, one inner step in each step of the job, and the others as
many inner steps as fit into the same time, at their declared speeds: all ranks know of all without asking.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch

from testbed_agents.exchange.sums import gather_into
from testbed_agents.groups import Groups
from testbed_agents.strategies.strategy import Context

__all__ = ["MEASURED", "InnerSteps", "SitePace"]

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


class InnerSteps:
    """Inner steps of each site, whose declared ``speeds`` are relative to the fastest ones; a site not named has 1.

    Raises ValueError if there is none to go ``by_time``.
    """

    def __init__(self, groups: Groups, speeds: Mapping[str, float], by_time: bool) -> None:
        if by_time and not speeds:
            raise ValueError("pace: time needs the declared speeds of sites")
        # As written in decimals: 0.6 is three times 0.2, which as floating-point numbers it is not.
        speed_by_site = {
            name: Fraction(str(speeds.get(name, 1.0))) if by_time else Fraction(1) for name in groups.site_names
        }
        self._faster = {name: speed / min(speed_by_site.values()) for name, speed in speed_by_site.items()}
        self._sites = groups.sites

    def until(self, step: int, rank: int) -> int:
        """Return how many inner steps ``rank`` has made after ``step`` steps of the job."""
        return int(step * self._faster[self._sites[rank]])

    def within(self, step: int, rank: int) -> int:
        return self.until(step, rank) - self.until(step - 1, rank)

    def shares(self, replicas: Sequence[Sequence[int]], since: int, step: int) -> tuple[float, ...]:
        """Return the share of each replica, ranks each, in all they trained on in the steps after ``since``.

        All ranks train on equally many tokens in an inner step, so those are counted.
        """
        counts = [sum(self.until(step, rank) - self.until(since, rank) for rank in ranks) for ranks in replicas]
        return tuple(count / sum(counts) for count in counts)


def steps_by_speed(most: int, speed: float) -> int:
    """Return H of a site with a ``speed`` relative to the fastest one, which takes ``most`` steps."""
    return max(1, round(most * speed))
