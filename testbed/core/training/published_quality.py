"""What others published about the quality of models by strategy. Facts with their sources: nothing here is predicted.

Figures are for the models, data and settings of each source, and say nothing about others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DILOCO", "GUESS", "SCALING_LAW", "PublishedQuality"]


@dataclass(frozen=True)
class PublishedQuality:
    """One published statement: its text, where it stands, and whether its source calls it measured or a guess."""

    says: str
    source: str
    kind: str


SCALING_LAW: Final = PublishedQuality(
    "loss = A N^alpha, with A and alpha fitted for each number of replicas", "arXiv:2503.09799", "fitted law"
)
GUESS: Final = PublishedQuality(
    "efficiency falls by about 0.08 for each factor of ten in H", "MIRI's estimate of training across sites",
    "its authors call it an engineering guess",
)  # fmt: skip
DILOCO: Final = (
    SCALING_LAW,
    GUESS,
    PublishedQuality(
        "perplexity 15.02; 16.23 without the other workers, 15.30 with data-parallel training of 8 times the batch,"
        " 14.72 with 8 times the updates",
        "arXiv:2311.08105, Table 2: 150M parameters, C4, 8 workers, H = 500",
        "measured",
    ),
    PublishedQuality("relative increase of perplexity from H = 50 to H = 1000: 2.9 %", "arXiv:2311.08105", "measured"),
    PublishedQuality(
        "relative increase of perplexity if half of the exchanges are dropped: 2.1 %", "arXiv:2311.08105", "measured"
    ),
)
