"""What others published about model quality by way of training. Facts with their sources: nothing here is predicted.

Figures are for the models, data and settings of each source, and say nothing about others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Published", "published_quality"]


@dataclass(frozen=True)
class Published:
    """One published statement: its text, where it stands, and whether its source calls it measured or a guess."""

    says: str
    source: str
    kind: str


_C4: Final = "arXiv:2311.08105, Table 2: 150M parameters, C4, 8 workers, H = 500"
_LAW: Final = Published(
    "loss = A N^alpha, with A and alpha fitted for each number of replicas", "arXiv:2503.09799", "fitted law"
)
_GUESS: Final = Published(
    "efficiency falls by about 0.08 for each factor of ten in H", "MIRI's estimate of training across sites",
    "its authors call it an engineering guess",
)  # fmt: skip
_DILOCO: Final = (
    _LAW,
    _GUESS,
    Published(
        "perplexity 15.02; 16.23 without the other workers, 15.30 with data-parallel training of 8 times the batch,"
        " 14.72 with 8 times the updates",
        _C4,
        "measured",
    ),
    Published("relative increase of perplexity from H = 50 to H = 1000: 2.9 %", "arXiv:2311.08105", "measured"),
    Published("relative increase of perplexity if half of the exchanges are dropped: 2.1 %", "arXiv:2311.08105",
              "measured"),
)  # fmt: skip
_BY_STRATEGY: Final[dict[str, tuple[Published, ...]]] = {
    "ddp": (_LAW,),
    "hierarchical": (_LAW,),
    "hsdp": (_LAW,),
    "fsdp": (_LAW,),
    "local-sgd": (_GUESS,),
    "diloco": _DILOCO,
    "streaming-diloco": (
        *_DILOCO,
        Published("an overlap of more than 5 steps gains little", "arXiv:2501.18512", "measured"),
    ),
}


def published_quality(strategy: str) -> tuple[Published, ...]:
    """Return what was published about the quality of models trained by ``strategy``; empty if we know of nothing."""
    return _BY_STRATEGY.get(strategy, ())
