"""A small byte-level GPT.

Pre-norm decoder blocks, learned positions, tied input and output embedding, GELU: GPT-2 (Radford et al. 2019) in the
form of nanoGPT. It has no registered buffer: DistributedDataParallel would broadcast a causal mask at every step, so
causality is an argument of the attention instead.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256
"""Every byte is a token."""


@dataclass(frozen=True)
class Shape:
    """Size of the model; the default has 0.47 million parameters.

    ``width`` is split evenly over ``heads``; ``context`` is the longest sequence, in bytes.
    """

    layers: int = 4
    heads: int = 4
    width: int = 96
    context: int = 64

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.width, self.context) < 1:
            raise ValueError(f"layers, heads, width and context must be at least 1, got {self}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width {self.width} and {self.heads} heads")


class Attention(nn.Module):
    """Causal self-attention over all heads at once: (batch, time, width) to the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.inward = nn.Linear(shape.width, 3 * shape.width)
        self.outward = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        query, key, value = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.inward(x).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        together: Tensor = self.outward(mixed.transpose(1, 2).reshape(batch, time, width))
        return together


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.before_perceptron = nn.LayerNorm(shape.width)
        self.inward = nn.Linear(shape.width, 4 * shape.width)
        self.outward = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        perceived: Tensor = self.outward(functional.gelu(self.inward(self.before_perceptron(x))))
        return x + perceived


class GPT(nn.Module):
    """Predict the next byte of each position: (batch, time) int64 to logits (batch, time, 256) float32."""

    before_blocks: ClassVar[tuple[str, ...]] = ("embedding", "position")
    """Attributes whose parameters :meth:`enter` uses, and :meth:`leave`."""
    after_blocks: ClassVar[tuple[str, ...]] = ("last_norm", "embedding")

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.width = shape, shape.width
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.position = nn.Parameter(torch.empty(shape.context, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last_norm = nn.LayerNorm(shape.width)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise as GPT-2: normal with standard deviation 0.02, divided by sqrt(2 layers) on residual outputs."""
        nn.init.normal_(self.position, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                scale = math.sqrt(2 * self.shape.layers) if name.endswith("outward") else 1.0
                nn.init.normal_(module.weight, std=0.02 / scale)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)

    def enter(self, tokens: Tensor) -> Tensor:
        """Return what the first block gets: (batch, time) int64 to (batch, time, width)."""
        entered: Tensor = self.embedding(tokens) + self.position[: tokens.shape[1]]
        return entered

    def leave(self, x: Tensor) -> Tensor:
        """Return the logits of what the last block returns: (batch, time, width) to (batch, time, 256)."""
        # The embedding is also the output layer. It is one Parameter, so DDP sees one gradient, and reduces it once
        # both uses have added to it.
        return functional.linear(self.last_norm(x), self.embedding.weight)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions, in nats; about ln 256 = 5.55 before training."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of all parameters' bytes, of a sharded one this rank's.

    It is equal on all ranks as long as their models are.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(local(parameter.detach()).contiguous().numpy().tobytes())
    return digest.hexdigest()


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, which shares its memory; any other tensor as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():  # else a view for autograd
        shard: Tensor = tensor.to_local()
    return shard
