"""One operation of the protocol as a value: its JSON line, its size, and the expected output of each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from testbed.core.validation.elements import TYPES, ElementType

__all__ = ["BARRIER", "LATE_S", "OPERATIONS", "REDUCING", "Group", "Operation", "OperationName", "Reduction", "Segment"]

OperationName = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send", "barrier"
]
Reduction = Literal["", "sum", "max", "avg"]

BARRIER: Final = "barrier"
LATE_S: Final = 0.1
"""Delay of the late rank in a barrier: far more than the ranks of one start differ on a busy core."""
OPERATIONS: Final[tuple[OperationName, ...]] = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "send",
    "barrier",
)
REDUCING: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_BY_BLOCK: Final = frozenset({"reduce_scatter", "all_gather", "all_to_all"})


@dataclass(frozen=True)
class Group:
    """The ranks of an operation. ``ranks`` are numbers in the world; a rank's number in the group is its position.

    ``world`` holds all ranks, and is the only group that needs no line of its own to be made.
    """

    name: str
    ranks: tuple[int, ...]

    def line(self) -> dict[str, Any]:
        """Return the line that makes the group; every rank of the world receives it."""
        return {"do": "group", "group": self.name, "ranks": list(self.ranks)}


@dataclass(frozen=True)
class Segment:
    """Part of a rank's output: ``count`` elements from ``begin`` on, each made of one element of each source.

    ``sources`` are (a rank's number in the group, where in its input the segment begins). More than one: a reduction.
    """

    begin: int
    count: int
    sources: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Operation:
    """An operation as in docs/validate.md; ``root`` and ``to`` are numbers in the group, ``seed`` is the run's."""

    do: OperationName
    call: int
    group: str = "world"
    type: str = "float32"
    count: int = 0
    reduction: Reduction = ""
    root: int = 0
    to: int = 0
    seed: int = 0
    keep: bool = True
    late: int | None = None
    """For a barrier: the number in the group of the rank that arrives :data:`LATE_S` after all others."""

    def line(self, at: float | None = None) -> dict[str, Any]:
        """Return the operation's JSON line, to start ``at`` this CLOCK_MONOTONIC time; without it, at once."""
        line: dict[str, Any] = {"do": self.do, "call": self.call, "group": self.group}
        if self.do != BARRIER:
            line |= {"type": self.type, "count": self.count, "seed": self.seed, "keep": self.keep}
        if self.do in REDUCING:
            line["reduction"] = self.reduction
        if self.do in ("broadcast", "reduce", "send"):
            line["root"] = self.root
        if self.do == "send":
            line["to"] = self.to
        return line if at is None else line | {"at": at}

    def lines(self, group: Group, at: float) -> dict[int, dict[str, Any]]:
        """Return the line of each rank of the group, by number in the world; all start ``at``, except ``late``."""
        late = None if self.late is None else group.ranks[self.late]
        return {rank: self.line(at + LATE_S * (rank == late)) for rank in group.ranks}

    @property
    def kind(self) -> ElementType:
        return TYPES[self.type]

    def size_bytes(self, world: int) -> int:
        """Return n of docs/bounds.md for a group of ``world`` ranks: bytes of the vector, or of ``world`` blocks where
        a rank gives or gets one for each rank."""
        return self.kind.size * self.count * (world if self.do in _BY_BLOCK else 1)

    def input_count(self, world: int) -> int:
        """Number of elements in a rank's whole input."""
        return 0 if self.do == BARRIER else self.count * (world if self.do in ("reduce_scatter", "all_to_all") else 1)

    def output_count(self, world: int) -> int:
        """Number of elements in the output of a rank that gets one."""
        return 0 if self.do == BARRIER else self.count * (world if self.do in ("all_gather", "all_to_all") else 1)

    def segments(self, rank: int, world: int) -> tuple[Segment, ...] | None:
        """Return the expected output of the rank with this number in the group; None: its output is not checked."""
        everyone = range(world)
        match self.do:
            case "all_reduce":
                return (Segment(0, self.count, tuple((source, 0) for source in everyone)),)
            case "reduce":
                return (
                    (Segment(0, self.count, tuple((source, 0) for source in everyone)),) if rank == self.root else None
                )
            case "reduce_scatter":
                return (Segment(0, self.count, tuple((source, rank * self.count) for source in everyone)),)
            case "all_gather":
                return tuple(Segment(source * self.count, self.count, ((source, 0),)) for source in everyone)
            case "all_to_all":
                return tuple(
                    Segment(source * self.count, self.count, ((source, rank * self.count),)) for source in everyone
                )
            case "broadcast":
                return (Segment(0, self.count, ((self.root, 0),)),)
            case "send":
                return (Segment(0, self.count, ((self.root, 0),)),) if rank == self.to else None
            case "barrier":
                return None
