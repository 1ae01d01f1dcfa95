"""Strategies are trained with small tensors."""

from builders.torch_threads import one_thread

__all__ = ["one_thread"]
