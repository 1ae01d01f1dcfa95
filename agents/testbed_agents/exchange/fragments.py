"""The fragments of a model that Streaming DiLoCo exchanges one after the other (arXiv:2501.18512, section 3.1). Pure.

Strided: layer i is in fragment i mod P, so that a fragment has early and late layers. What is in no layer (embedding,
positions, last norm) is in the last fragment, which never has more layers than another one. Tied weights are one
parameter, and in one fragment.

Fragment p of P is due after each step s with s mod H = round(H p / P) mod H, halves rounded up: each exactly once in H
steps, evenly spread over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["Schedule", "cut", "layer_of"]

T = TypeVar("T")


def layer_of(name: str) -> int | None:
    """Return the layer of a parameter: the first number among the parts of its name; None for no layer.

    >>> layer_of("blocks.3.attention.inward.weight"), layer_of("embedding.weight")
    (3, None)
    """
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def cut(named: Iterable[tuple[str, T]], count: int, tied_twice: bool = False) -> list[list[T]]:
    """Return the parameters of each of ``count`` fragments, in the order of the model.

    ``named``: as of ``named_parameters``, each parameter once. ``tied_twice`` plants a bug: the first parameter of no
    layer that is a weight is also in the first fragment. Raises ValueError if there are more fragments than layers.
    """
    fragments: list[list[T]] = [[] for _ in range(count)]
    layers = set()
    tied: list[T] = []
    for name, parameter in named:
        layer = layer_of(name)
        fragments[count - 1 if layer is None else layer % count].append(parameter)
        if layer is not None:
            layers.add(layer)
        elif name.endswith("weight"):
            tied.append(parameter)
    if count > max(1, len(layers)):
        raise ValueError(f"expected at most {max(1, len(layers))} fragments, one a layer, got {count}")
    if tied_twice:
        fragments[0] += tied[:1]
    return fragments


class Schedule:
    """When fragments are due: ``every`` H steps each, ``count`` P fragments, each ``overlap`` steps on its way."""

    def __init__(self, every: int, count: int, overlap: int) -> None:
        if every < 1 or count < 1 or not 0 <= overlap < every:
            raise ValueError(f"expected every > overlap >= 0 and fragments >= 1, got {every}, {overlap} and {count}")
        self.every, self.count, self.overlap = every, count, overlap
        self._offsets = [int(every * fragment / count + 0.5) % every for fragment in range(count)]

    def due(self, step: int) -> list[int]:
        """Return the fragments whose exchange begins after ``step``, from 1."""
        return [fragment for fragment, offset in enumerate(self._offsets) if step >= 1 and step % self.every == offset]

    def before(self, fragment: int, step: int) -> int:
        """Return the last step before ``step`` after which ``fragment`` was due; 0 for none."""
        return max(0, step - 1 - (step - 1 - self._offsets[fragment]) % self.every)

    @property
    def overlapping(self) -> bool:
        """Whether a fragment is exchanged while another one is on its way."""
        others = [
            (other - own) % self.every
            for place, own in enumerate(self._offsets)
            for other in self._offsets[:place] + self._offsets[place + 1 :]
        ]
        return any(gap <= self.overlap for gap in others)
