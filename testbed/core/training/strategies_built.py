"""The strategies that the testbed's agents can train by: every twin by name.

A package of users adds its own by the entry point ``testbed.strategies`` (docs/strategies.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.core.training.async_diloco import AsyncDiloco
from testbed.core.training.ddp import Ddp
from testbed.core.training.decoupled import Decoupled
from testbed.core.training.diloco import Diloco, LocalSgd
from testbed.core.training.fsdp import Fsdp
from testbed.core.training.hierarchical import Hierarchical
from testbed.core.training.hsdp import Hsdp
from testbed.core.training.layout import Layout
from testbed.core.training.moe import Moe
from testbed.core.training.multi_tier import MultiTier
from testbed.core.training.pipeline import Pipeline
from testbed.core.training.sparse_loco import SparseLoco
from testbed.core.training.streaming_diloco import StreamingDiloco
from testbed.core.training.tensor import TensorParallel
from testbed.core.training.torchft_diloco import TorchftDiloco
from testbed.core.training.twin import Twin
from testbed.errors import UnknownName, UserError

__all__ = ["BUILT", "UNUSABLE", "add", "make", "twin_class"]

_ALL: dict[str, type[Twin]] = {
    it.name: it
    for it in (
        Ddp,
        Hierarchical,
        Fsdp,
        Hsdp,
        LocalSgd,
        Diloco,
        StreamingDiloco,
        SparseLoco,
        AsyncDiloco,
        Decoupled,
        TorchftDiloco,
        MultiTier,
        Pipeline,
        TensorParallel,
        Moe,
    )
}

BUILT: Mapping[str, type[Twin]] = _ALL
"""Twins by name, those of packages included once they are added."""


UNUSABLE: dict[str, str] = {}
"""Why each strategy of a package that cannot be loaded is not among them, by name."""


def add(twin: type[Twin]) -> None:
    """Register the twin of a package. Raises UserError if the name is taken."""
    if _ALL.setdefault(twin.name, twin) is not twin:
        raise UserError(f"a strategy with the name {twin.name} exists already")


def twin_class(name: str) -> type[Twin]:
    """Return the twin of a strategy. Raises UnknownName."""
    if name not in _ALL:
        raise UnknownName("strategy", name, _ALL)
    return _ALL[name]


def make(name: str, options: Mapping[str, Any], layout: Layout) -> Twin:
    """Return the twin of a job. Raises UnknownName."""
    return twin_class(name)(options, layout)
