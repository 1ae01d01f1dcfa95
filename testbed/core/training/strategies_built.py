"""The strategies that the testbed's agents can train by: every twin by name.

A package of users adds its own by the entry point ``testbed.strategies`` (docs/strategies.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.core.training.layout import Layout
from testbed.core.training.strategies.async_diloco import AsyncDiloco
from testbed.core.training.strategies.ddp import Ddp
from testbed.core.training.strategies.decoupled import Decoupled
from testbed.core.training.strategies.diloco import Diloco
from testbed.core.training.strategies.fsdp import Fsdp
from testbed.core.training.strategies.hierarchical import Hierarchical
from testbed.core.training.strategies.hsdp import Hsdp
from testbed.core.training.strategies.local_sgd import LocalSgd
from testbed.core.training.strategies.moe import Moe
from testbed.core.training.strategies.multi_tier import MultiTier
from testbed.core.training.strategies.pipeline import Pipeline
from testbed.core.training.strategies.sparse_loco import SparseLoco
from testbed.core.training.strategies.streaming_diloco import StreamingDiloco
from testbed.core.training.strategies.tensor import TensorParallel
from testbed.core.training.strategies.torchft_diloco import TorchftDiloco
from testbed.core.training.twin import Twin
from testbed.errors import UnknownName, UserError

__all__ = ["BUILT", "UNUSABLE", "add", "make", "twin_class"]

_ALL: dict[str, type[Twin]] = {
    twin.name: twin
    for twin in (
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
"""Why a package's strategy could not be loaded, by its name."""


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
