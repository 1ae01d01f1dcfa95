"""diloco: replicas train alone for H steps, exchange pseudo-gradients, and wait for it.

g = mean of Θ - θ; m ← 0.9 m + g; Θ ← Θ - 0.7 (g + 0.9 m); θ ← Θ (Douillard et al. 2023, arXiv:2311.08105).
The default momentum here is 0.5: with 0.9 the small model learns worse than by averaging (docs/strategies.md).
"""

from __future__ import annotations

from testbed_agents.strategies.periodic_exchange import FragmentExchange, PeriodicExchange, Update

__all__ = ["Diloco"]


class Diloco(PeriodicExchange):
    """Options as of :class:`PeriodicExchange`; ``outer_rate`` and ``outer_momentum`` are those of Nesterov."""

    def __init__(
        self,
        every: int = 50,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        replica: str = "site",
        aggregate_at: str = "",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(
            every,
            rate=outer_rate,
            momentum=outer_momentum,
            aggregate_at=aggregate_at,
            replica=replica,
            pace=pace,
            weigh=weigh,
        )

    def update(self, fragment: FragmentExchange) -> Update:
        """g = mean of Θ - θ; Nesterov applies g to Θ."""
        received = yield fragment.pseudo_gradient()
        fragment.outer.step(received.mean())
