"""Strategies by name: one short file each, imported when it is used.

A package adds its own by the entry point ``testbed.strategies``: a module with a class ``Agent`` (a
:class:`~testbed_agents.strategies.strategy.Strategy`) and a class ``Twin`` (docs/strategies.md).
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from testbed_agents.strategies.strategy import Context, Strategy

__all__ = ["Context", "Strategy", "make", "names"]

GROUP = "testbed.strategies"
"""Entry points of packages."""

_FILES: Mapping[str, str] = {
    "ddp": "ddp:Ddp",
    "hierarchical": "hierarchical:Hierarchical",
    "local-sgd": "diloco:LocalSgd",
    "diloco": "diloco:Diloco",
    "streaming-diloco": "streaming_diloco:StreamingDiloco",
    "sparse-loco": "sparse_loco:SparseLoco",
    "multi-tier": "multi_tier:MultiTier",
    "fsdp": "fsdp:Fsdp",
    "hsdp": "hsdp:Hsdp",
    "moe": "moe:Moe",
    "pipeline": "pipeline:Pipeline",
    "tensor": "tensor:TensorParallel",
    "async-diloco": "async_diloco:AsyncDiloco",
    "decoupled": "decoupled:Decoupled",
    "torchft-diloco": "torchft_diloco:TorchftDiloco",
}
"""Module and class by the name of the strategy."""


def names() -> tuple[str, ...]:
    """Return the names of the strategies that can be made, those of installed packages included."""
    return (*_FILES, *sorted(importlib.metadata.entry_points(group=GROUP).names))


def make(name: str, options: Mapping[str, Any]) -> Strategy:
    """Return the strategy ``name``; ``options`` are arguments of its constructor. Raises ValueError."""
    try:
        if name in _FILES:
            file, _, of = _FILES[name].partition(":")
            made = getattr(importlib.import_module(f"testbed_agents.strategies.{file}"), of)
        else:
            (found,) = importlib.metadata.entry_points(group=GROUP, name=name)
            made = found.load().Agent
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"unknown strategy '{name}' (available: {', '.join(names())}): {error}") from error
    try:
        strategy: Strategy = made(**options)
    except TypeError as error:
        raise ValueError(f"strategy {name}: {error}") from error
    return strategy
