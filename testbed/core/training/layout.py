"""Who trains what: ranks and their sites, tensors of the model and their layers, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["FLOAT32_BYTES", "VECTORS_PER_LAYER", "Layout", "Tensor", "asleep_tensors", "gpt_tensors"]

FLOAT32_BYTES = 4
VECTORS_PER_LAYER = 4
"""Tensors in a layer of the agents' sleeping model."""


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor. ``layer``: index of its decoder block; None for embedding, positions, last norm.

    Tied weights are one tensor. ``rows``: size of the first dimension, along which it is sharded; 0: not known.
    """

    name: str
    elements: int
    layer: int | None = None
    rows: int = 0


@dataclass(frozen=True)
class Layout:
    """A job as far as a twin depends on it.

    Attributes:
        sites: the site of each rank, in rank order.
        tensors: of the model, in the order of ``model.parameters()``.
        tokens: of one rank and step.
        context, width, layers, heads: of the model; tokens in a window, elements of an activation, decoder blocks,
            heads of an attention.
        steps: of the whole job.
        step_s: declared compute of a step at the slowest site; None if it is not declared.
        speeds: of sites relative to the fastest ones, as declared; those that are not named have 1.0.
    """

    sites: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    tokens: int = 256
    context: int = 64
    width: int = 96
    layers: int = 4
    steps: int = 500
    step_s: float | None = None
    heads: int = 4
    speeds: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def world_size(self) -> int:
        return len(self.sites)

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.world_size))

    @property
    def site_names(self) -> tuple[str, ...]:
        """Sites in the order of their first rank."""
        return tuple(dict.fromkeys(self.sites))

    @cached_property
    def members(self) -> dict[str, tuple[int, ...]]:
        """Ranks of each site."""
        return {name: tuple(rank for rank, site in enumerate(self.sites) if site == name) for name in self.site_names}

    @property
    def slices(self) -> int:
        """Slices of the model between replicas that are sites: the ranks of the smallest site."""
        return min(len(ranks) for ranks in self.members.values())

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def payload_bytes(self) -> int:
        """n: bytes of all parameters as float32."""
        return FLOAT32_BYTES * self.elements


def gpt_tensors(layers: int = 4, width: int = 96, context: int = 64, vocabulary: int = 256) -> tuple[Tensor, ...]:
    """Return the tensors of the agents' GPT in the order of ``testbed_agents.model.GPT.parameters()``.

    >>> sum(tensor.elements for tensor in gpt_tensors())
    478272
    """
    tensors = [
        Tensor("position", context * width, rows=context),
        Tensor("embedding.weight", vocabulary * width, rows=vocabulary),
    ]
    for layer in range(layers):
        parts: Sequence[tuple[str, int, int]] = (
            ("before_attention.weight", width, 1),
            ("before_attention.bias", width, 1),
            ("attention.inward.weight", 3 * width, width),
            ("attention.inward.bias", 3 * width, 1),
            ("attention.outward.weight", width, width),
            ("attention.outward.bias", width, 1),
            ("before_perceptron.weight", width, 1),
            ("before_perceptron.bias", width, 1),
            ("inward.weight", 4 * width, width),
            ("inward.bias", 4 * width, 1),
            ("outward.weight", width, 4 * width),
            ("outward.bias", width, 1),
        )
        tensors += [Tensor(f"blocks.{layer}.{name}", rows * columns, layer, rows) for name, rows, columns in parts]
    return (
        *tensors,
        Tensor("last_norm.weight", width, rows=width),
        Tensor("last_norm.bias", width, rows=width),
    )


def asleep_tensors(elements: int, layers: int) -> tuple[Tensor, ...]:
    """Return the tensors of the agents' sleeping model, which stands for one of declared size, in their order.

    >>> [tensor.elements for tensor in asleep_tensors(18, 2)]
    [3, 2, 2, 2, 3, 2, 2, 2]
    """
    return tuple(
        Tensor(f"blocks.{layer}.weights.{index}", part, layer, rows=part)
        for layer, size in enumerate(_parts(elements, layers))
        for index, part in enumerate(filter(None, _parts(size, VECTORS_PER_LAYER)))
    )


def _parts(elements: int, count: int) -> list[int]:
    """Split into parts that differ by one at most, larger ones first."""
    size, larger = divmod(elements, count)
    return [size + (index < larger) for index in range(count)]
