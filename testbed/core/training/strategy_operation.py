"""One operation of a strategy as a value: which collective, among whom, over how many bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Kind", "Operation"]

Kind: TypeAlias = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"]


_OF_A_STEP = ("gradients", "activations", "tokens")


@dataclass(frozen=True)
class Operation:
    """A collective or a message of payload ``byte_count``.

    Attributes:
        kind: as torch.distributed names it.
        ranks: of the group, in its order; source first for ``broadcast`` and ``send``, which has two.
        byte_count: of an all_reduce, reduce_scatter, broadcast, send: the tensor; of an all_gather: the gathered whole;
            of an all_to_all: what one rank puts in, its own part included.
        what: gradients, parameters, pseudo-gradients, activations, tokens, state.
        group: name of the process group (``testbed_agents.process_groups.groups``), by which records are matched.
        fragment: which part of the model; None for all of it.
        lands: how many steps later its result is used; 0: the step waits for it.
        watched: whether the process group of the ranks records it, in this step. Not so if a strategy or its library
            has connections of its own, or if the step depends on the paces of others.
        at_most: how often it may happen instead of once, where the paces of the sites decide.
        parts: into how many equal parts it is cut that go on beside the backward pass, each as soon as its gradients
            are computed; 0: the rank stands still for it, all of it at once.
        turn: of equal operations of a step, those of a later turn begin when those of the turn before have ended.
    """

    kind: Kind
    ranks: tuple[int, ...]
    byte_count: float
    what: str
    group: str = "world"
    fragment: int | None = None
    lands: int = 0
    watched: bool = True
    at_most: float = 1.0
    parts: int = 0
    turn: int = 0

    @property
    def before_update(self) -> bool:
        """Whether its result is needed within the step, before the inner optimizer."""
        return self.what in _OF_A_STEP and not self.lands
