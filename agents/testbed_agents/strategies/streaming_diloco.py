"""streaming-diloco: diloco by fragments of the model, each exchanged beside further steps, with few bits if asked.

After step s, a fragment sends its pseudo-gradient Δ = Θ - θ. After step s + tau it lands: the outer optimizer applies
the mean Δ to Θ, and the site's parameters become a share α of themselves and 1 - α of Θ (Douillard et al. 2025,
arXiv:2501.18512). Coded values are decoded and added as float32 in the order of replicas, by their sender too.
"""

from __future__ import annotations

from testbed_agents.exchange.codec import of_bits
from testbed_agents.strategies.periodic_exchange import FragmentExchange, PeriodicExchange, Update

__all__ = ["StreamingDiloco"]


class StreamingDiloco(PeriodicExchange):
    """Options as of :class:`PeriodicExchange`, and: ``bits`` (32, 16, 8 or 4), and ``rounding`` of 8 and 4 bits:
    ``nearest`` or ``stochastic``. ``aggregate_at`` needs 32 bits.

    Raises ValueError for options that do not fit.
    """

    def __init__(
        self,
        every: int = 50,
        fragments: int = 4,
        overlap: int = 1,
        alpha: float = 0.5,
        bits: int = 32,
        rounding: str = "nearest",
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        replica: str = "site",
        aggregate_at: str = "",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        if aggregate_at and bits != 32:
            raise ValueError(f"expected bits: 32 with aggregate_at, got {bits}")
        super().__init__(
            every,
            fragments,
            overlap,
            alpha,
            of_bits(bits, rounding == "stochastic"),
            outer_rate,
            outer_momentum,
            aggregate_at,
            replica,
            pace,
            weigh,
        )

    def update(self, fragment: FragmentExchange) -> Update:
        """As diloco: g = mean Δ; Nesterov applies g to Θ. The exchange may take tau steps."""
        delta = fragment.pseudo_gradient()
        received = yield delta
        fragment.record_codes("streaming", delta, received)
        fragment.outer.step(received.mean())
