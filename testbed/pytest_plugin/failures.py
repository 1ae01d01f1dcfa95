"""What went wrong on ranks; imported by tests, and so by every rank that runs a function of theirs: keep it small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RankFailure", "RanksFailed"]


@dataclass(frozen=True)
class RankFailure:
    """``error`` is what its function raised, if it can be pickled; ``status`` its exit status (128 + n for a signal n),
    None if it was ended because of others, or because it took too long."""

    rank: int
    node: str
    status: int | None
    summary: str
    text: str
    error: BaseException | None = None


class RanksFailed(AssertionError):
    """``failures`` by rank, the one that failed first at the front; ``results`` of those that returned."""

    def __init__(self, message: str, failures: Mapping[int, RankFailure], results: Mapping[int, Any]) -> None:
        super().__init__(message)
        self.failures, self.results = dict(failures), dict(results)
