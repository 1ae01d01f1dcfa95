"""What a replica has moved, and which part of it others have taken up: for replicas that do not wait for each other.

A replica goes on training while what it has sent is on its way. When outer parameters arrive that contain the movement
up to its p-th push, the movement since then is still its own: θ ← Θ + (θ - θ at push p). So each inner step enters
exactly one pseudo-gradient, whatever arrives when.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["Movement"]


class Movement:
    """The movement of a slice, (elements,), from ``origin``, the outer parameters that it started from."""

    def __init__(self, origin: Tensor) -> None:
        self._anchors = {0: origin.clone()}
        self.taken = 0
        """Number of pushes that :meth:`take` returned."""
        self.included = 0
        """The last push that the outer parameters contain."""

    @property
    def outer(self) -> Tensor:
        """The outer parameters that this replica holds, (elements,)."""
        return self._anchors[self.included]

    def take(self, parameters: Tensor) -> Tensor:
        """Return the pseudo-gradient since the last push: where it was less ``here``, the parameters now."""
        delta = self._anchors[self.taken] - parameters
        self.taken += 1
        self._anchors[self.taken] = parameters.clone()
        return delta

    def rebase(self, outer: Tensor, included: int, parameters: Tensor) -> Tensor:
        """Return the parameters that follow from ``here`` once ``outer`` has replaced the outer parameters.

        ``included``: the last push that ``outer`` contains, not before the one before.
        """
        if not self.included <= included <= self.taken:
            raise ValueError(f"expected a push from {self.included} to {self.taken}, got {included}")
        anchor = self._anchors[included]
        # The same arithmetic for all: where nothing has moved since a push, the parameters stay its anchor in all bits.
        followed = outer + (parameters - anchor)
        self._anchors = {
            number: outer + (anchored - anchor) for number, anchored in self._anchors.items() if number > included
        }
        self._anchors[included] = outer.clone()
        self.included = included
        return followed

    @property
    def last(self) -> Tensor:
        """Where the parameters would be without the movement since the last push, (elements,)."""
        return self._anchors[self.taken]

    def restart(self, outer: Tensor, last: Tensor, included: int, taken: int) -> None:
        """Go on with the state of a checkpoint, in which the pushes after ``included`` are one."""
        self._anchors = {included: outer.clone(), taken: last.clone()}
        self.included, self.taken = included, taken
