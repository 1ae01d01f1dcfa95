"""Strategies by name: one short file each, imported when it is used.

A package adds its own by the entry point ``testbed.strategies``: a module with a class ``Agent`` (a
:class:`~testbed_agents.strategies.strategy.Strategy`) and a class ``Twin`` (docs/strategies.md).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from typing import Any

from testbed_agents.strategies.strategy import Context, Strategy

__all__ = ["Context", "Strategy", "make", "names"]

GROUP = "testbed.strategies"
"""Entry points of packages."""

_FILES: Mapping[str, str] = {
    "ddp": "ddp:Ddp",
    "hierarchical": "hierarchical:Hierarchical",
    "local-sgd": "local_sgd:LocalSgd",
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
    if name in _FILES:
        file, _, of = _FILES[name].partition(":")
        try:
            made = getattr(importlib.import_module(f"testbed_agents.strategies.{file}"), of)
        except ImportError as error:
            raise ValueError(f"strategy {name} cannot be imported: {error}") from error
    else:
        made = _of_package(name)
    try:
        strategy: Strategy = made(**options)
    except TypeError as error:
        raise ValueError(f"strategy {name}: {error}") from error
    return strategy


def _of_package(name: str) -> Any:
    """Return the class ``Agent`` of the package that registers ``name``. Raises ValueError."""
    points = importlib.metadata.entry_points(group=GROUP, name=name)
    if not points:
        raise ValueError(
            f"unknown strategy '{name}' (available: {', '.join(names())}): no package that this rank finds registers it"
            f" with {sys.executable}; ranks search the folders that Python had when the lab came up, as"
            f" uid {os.geteuid()}: install the package there, or set PYTHONPATH before the lab is brought up"
        )
    if len(points) > 1:
        values = " and ".join(sorted(point.value for point in points))
        raise ValueError(f"strategy {name} is registered by {len(points)} packages ({values}); uninstall all but one")
    (point,) = points
    package = point.dist.name if point.dist else "a package"
    try:
        return point.load().Agent
    except Exception as error:  # any: it is a user's module
        raise ValueError(
            f"strategy {name}, registered by {package} as {point.value}: this rank, uid {os.geteuid()}, cannot import"
            f" it: {type(error).__name__}: {error}"
        ) from error
