"""local-sgd: replicas train alone for H steps, then take the mean of their parameters, and wait for it.

The inner optimizer's moments stay local (Stich 2019, arXiv:1805.09767).
"""

from __future__ import annotations

from testbed_agents.strategies.periodic_exchange import FragmentExchange, PeriodicExchange, Update

__all__ = ["LocalSgd"]


class LocalSgd(PeriodicExchange):
    """Options as of :class:`PeriodicExchange`."""

    def __init__(
        self,
        every: int = 50,
        replica: str = "site",
        aggregate_at: str = "",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(every, aggregate_at=aggregate_at, replica=replica, pace=pace, weigh=weigh)

    def update(self, fragment: FragmentExchange) -> Update:
        """Θ ← mean θ."""
        received = yield fragment.slice.of_parameters()
        fragment.outer.values.copy_(received.mean())
