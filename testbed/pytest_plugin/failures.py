"""Failures of ranks. Tests import this module, and so does every rank that runs their functions: keep it small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["RankFailure", "RanksFailed"]


@dataclass(frozen=True)
class RankFailure:
    """Failure of one rank. ``error`` is the exception of its function, if it can be pickled; ``status`` its exit status
    (128 + n for signal n), or None if it was ended because others failed or because it took too long."""

    rank: int
    node: str
    status: int | None
    summary: str
    text: str
    error: BaseException | None = None


class RanksFailed(AssertionError):
    """``failures`` by rank, the earliest first; ``results`` of the ranks that returned."""

    def __init__(self, message: str, failures: Mapping[int, RankFailure], results: Mapping[int, Any]) -> None:
        super().__init__(message)
        self.failures, self.results = dict(failures), dict(results)
