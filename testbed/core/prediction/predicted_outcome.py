"""What a prediction says: compute utilization, exposed time by part, bits on the fiber, and what limits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Exposed", "Outcome"]


@dataclass(frozen=True)
class Exposed:
    """Exposed time of a step in seconds: compute waits while the exchange does this. The parts add up to ``total_s``.

    Attributes:
        propagation_s: light is on its way.
        serialization_s: bits are sent, or wait behind others on the same fiber.
        software_s: the library works, or the operation waits for one of its slots.
        waiting_s: another site has not come so far yet.
        inside_s: bits are sent inside a site, over its fabric.
    """

    propagation_s: float = 0.0
    serialization_s: float = 0.0
    software_s: float = 0.0
    waiting_s: float = 0.0
    inside_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.propagation_s + self.serialization_s + self.software_s + self.waiting_s + self.inside_s

    def __add__(self, other: Exposed) -> Exposed:
        return Exposed(
            self.propagation_s + other.propagation_s,
            self.serialization_s + other.serialization_s,
            self.software_s + other.software_s,
            self.waiting_s + other.waiting_s,
            self.inside_s + other.inside_s,
        )

    def __mul__(self, factor: float) -> Exposed:
        return Exposed(
            self.propagation_s * factor,
            self.serialization_s * factor,
            self.software_s * factor,
            self.waiting_s * factor,
            self.inside_s * factor,
        )

    @classmethod
    def during(cls, since_s: float, until_s: float, ready_s: float, software_until_s: float, sent_s: float) -> Exposed:
        """Split a wait from ``since_s`` to ``until_s`` by what the awaited exchange was doing at each moment.

        Before ``ready_s`` a participant had not come so far; then the library worked; then the bits were sent, or
        waited for the lane, until ``sent_s``; then the last bit travelled. All are seconds of one clock.

        >>> Exposed.during(2.0, 10.0, 3.0, 4.0, 8.0)
        Exposed(propagation_s=2.0, serialization_s=4.0, software_s=1.0, waiting_s=1.0, inside_s=0.0)
        """

        def share(begin_s: float, end_s: float) -> float:
            return max(0.0, min(until_s, end_s) - max(since_s, begin_s))

        return cls(
            propagation_s=share(sent_s, until_s),
            serialization_s=share(software_until_s, sent_s),
            software_s=share(ready_s, software_until_s),
            waiting_s=share(since_s, ready_s),
        )

    @classmethod
    def tail(cls, exposed_s: float, propagation_s: float, serialization_s: float, software_s: float = 0.0) -> Exposed:
        """Split the last ``exposed_s`` seconds of an exchange that first costs software, then sends, then propagates.

        What compute hides is the beginning of an exchange; so propagation is exposed first, software last. What is
        longer than one exchange is a queue of others before it, hence serialization.

        >>> Exposed.tail(5.0, 2.0, 2.5, 1.0)
        Exposed(propagation_s=2.0, serialization_s=2.5, software_s=0.5, waiting_s=0.0, inside_s=0.0)
        """
        left = max(0.0, exposed_s)
        propagation = min(left, propagation_s)
        left -= propagation
        serialization = min(left, serialization_s)
        left -= serialization
        software = min(left, software_s)
        return cls(propagation, serialization + (left - software), software)


@dataclass(frozen=True)
class Outcome:
    """Prediction of one strategy.

    Attributes:
        step_s: mean time of a step, exposed communication included.
        compute_s: compute of a step at the site that is predicted.
        exposed: mean exposed time of a step, by part.
        bits_per_step: mean bits per direction of the fiber and step, with the wire factor, headers excluded.
        peak_bps: bits of the largest exchange within one step of compute.
        formula: name of the closed form or "events".
        merge_s: time between two merges of learners that do not wait for each other; None where all wait.
        checkpoint_s: mean time of a step in which a checkpoint stops compute, where checkpoints were asked for.
        bits_by_fiber: ``bits_per_step`` of each fiber, where an exchange uses several, from near to far.
    """

    step_s: float
    compute_s: float
    exposed: Exposed
    bits_per_step: float
    peak_bps: float
    formula: str
    merge_s: float | None = None
    checkpoint_s: float = 0.0
    bits_by_fiber: tuple[float, ...] = ()

    @property
    def utilization(self) -> float:
        """Compute utilization: compute of a step / its time."""
        return self.compute_s / self.step_s

    @property
    def limit(self) -> str:
        """What limits: the largest part of exposed time, or "compute" where less than 1 % is exposed."""
        if self.exposed.total_s <= 0.01 * self.step_s:
            return "compute"
        parts = {
            "distance": self.exposed.propagation_s,
            "rate": self.exposed.serialization_s,
            "software": self.exposed.software_s,
            "the slowest site": self.exposed.waiting_s,
            "the fabric": self.exposed.inside_s,
        }
        return max(parts, key=lambda name: parts[name])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, seconds and bits."""
        return asdict(self) | {"utilization": self.utilization, "limit": self.limit}
