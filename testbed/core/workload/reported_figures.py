"""Which figures a program reports of itself, as far as its ``progress:`` tells: its steps, train_loss and tokens."""

from __future__ import annotations

from typing import Final

from testbed.core.workload.progress_patterns import compiled
from testbed.core.workload.progress_source import Calls, LinePattern, Progress

__all__ = ["STEP", "TOKENS", "TRAIN_LOSS", "reported"]

STEP: Final = "step"
TRAIN_LOSS: Final = "train_loss"
TOKENS: Final = "tokens"


def reported(progress: Progress | None) -> frozenset[str]:
    """Return what can be reported. The calls of a program say what they like, and so may report all of it."""
    if progress is None:
        return frozenset()
    if isinstance(progress, Calls):
        return frozenset({STEP, TRAIN_LOSS, TOKENS})
    figures = {STEP}
    if isinstance(progress, LinePattern):
        groups = {group for pattern in progress.patterns for group in compiled(pattern).groupindex}
        counted = groups & {"tokens", "tokens_seen", "tokens_per_step", "sequences_per_step"}
        with_loss, with_tokens = TRAIN_LOSS in groups, bool(counted)
    else:
        with_loss = progress.sources.train_loss is not None
        with_tokens = progress.sources.tokens is not None or progress.sources.tokens_seen is not None
    return frozenset(
        figures
        | ({TRAIN_LOSS} if with_loss else set())
        | ({TOKENS} if with_tokens or progress.tokens_per_step is not None else set())
    )
