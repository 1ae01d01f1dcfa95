"""What twins share that exchange the model in fragments, each once in H steps: which layers, and when it is due.

Fragment p of P is due after each step s with s mod H = round(H p / P) mod H, halves up. Layer i is in fragment i mod P;
what is in no layer (embedding, positions, last norm) is in the last fragment.
"""

from __future__ import annotations

from testbed.core.training.twin import Twin

__all__ = ["Fragmented"]


class Fragmented(Twin):
    """Has the options ``every`` and ``fragments``."""

    @property
    def cycle(self) -> int:
        """Each fragment is exchanged once in so many steps."""
        return self._every

    def fragment_elements(self, fragment: int) -> int:
        """Return how many parameters a fragment has."""
        last = len(self._all) - 1
        tensors = self.layout.tensors
        return sum(it.elements for it in tensors if (last if it.layer is None else it.layer % (last + 1)) == fragment)

    @property
    def _every(self) -> int:
        return int(self.values["every"])

    @property
    def _all(self) -> range:
        return range(int(self.values["fragments"]))

    def _offset(self, fragment: int) -> int:
        # round(H p / P) in whole numbers, halves up.
        return (2 * self._every * fragment + len(self._all)) // (2 * len(self._all)) % self._every

    def _due(self, fragment: int, step: int) -> bool:
        return 1 <= step <= self.layout.steps and step % self._every == self._offset(fragment)

    def _begun(self, fragment: int, until: int) -> int:
        """Return the last step, not after ``until``, after which the fragment was due; 0 or less for none."""
        return until - (until - self._offset(fragment)) % self._every

    def _count(self, fragment: int, until: int) -> int:
        """Return after how many steps, 1 to ``until``, the fragment was due."""
        first = self._offset(fragment) or self._every
        return 0 if until < first else 1 + (until - first) // self._every
