"""What one netem qdisc can hold side by side. Pure.

Faults that overlap must mean the same on every emulator, so a combination that netem lacks is refused on fiberd too.
"""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.physics.impairment import Impairment

__all__ = ["not_together", "random_loss", "with_duplicates"]


def not_together(impairment: Impairment) -> Iterator[str]:
    """Yield a sentence per pair of values that one netem qdisc does not hold side by side."""
    if impairment.chain and impairment.duplicate:
        yield "duplicate: one netem cannot hold duplication beside burst loss: the clone would be a step of the chain"
    elif with_duplicates(random_loss(impairment), impairment.duplicate)[1] is None:
        yield (
            f"duplicate: one netem cannot hold duplication of {impairment.duplicate:.4g} beside a loss of"
            f" {random_loss(impairment):.4g}"
        )


def random_loss(impairment: Impairment) -> float:
    """Return the loss by chance and by the frame check together (a corrupted frame is lost); 0 with a chain."""
    if impairment.chain:
        return 0.0
    caught = 0.0 if impairment.corrupt_survives else impairment.corrupt
    return 1.0 - (1.0 - impairment.loss) * (1.0 - caught) if caught else impairment.loss


def with_duplicates(loss: float, duplicate: float) -> tuple[float, float | None]:
    """Return netem's parameters for which a share ``loss`` is lost and ``duplicate`` of the others arrive twice.

    With netem's own L and D, a packet does not arrive if it is lost and not cloned: (1 - D) L. It arrives twice if it
    is cloned and neither it nor its clone, which passes netem once more, is lost: D (1 - L)^2 (netem_enqueue; a packet
    that is cloned and lost arrives once). The second value is None if no D reaches the requested share.
    """
    if not duplicate or not loss:
        return loss, duplicate
    if loss >= 1:
        return loss, 0.0  # nothing arrives

    def twice(own: float) -> float:
        return own * (1.0 - loss / (1.0 - own)) ** 2

    low, high = 0.0, 1.0 - loss
    for _ in range(100):  # ternary search for the maximum: the function rises, then falls
        third = (high - low) / 3
        low, high = (low + third, high) if twice(low + third) < twice(high - third) else (low, high - third)
    if twice(low) < (1.0 - loss) * duplicate:
        return loss, None
    low, high = 0.0, low
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if twice(middle) < (1.0 - loss) * duplicate else (low, middle)
    return loss / (1.0 - low), low
