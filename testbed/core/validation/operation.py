"""One operation of the protocol as a value: its line, its size, and what each rank gets of it."""

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
"""So much later comes the rank that a barrier must wait for: far more than ranks of one start differ on a busy core."""
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
    """Ranks that an operation is among. ``ranks`` are numbers in the world; a rank's number in the group is its place.

    ``world`` is the group of all, and the only one that is not made by a line of its own.
    """

    name: str
    ranks: tuple[int, ...]

    def line(self) -> dict[str, Any]:
        """The line that makes it; every rank of the world gets it."""
        return {"do": "group", "group": self.name, "ranks": list(self.ranks)}


@dataclass(frozen=True)
class Segment:
    """Part of a rank's output: ``count`` elements from ``begin`` on, each of it made of one element of each source.

    ``sources`` are (a rank's number in the group, where in its input the segment begins). More than one: a reduction.
    """

    begin: int
    count: int
    sources: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Operation:
    """An operation as docs/validate.md has it; ``root`` and ``to`` are numbers in the group. ``seed`` is of the run."""

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
    """Of a barrier: the number in the group of the rank that comes :data:`LATE_S` after all others."""

    def line(self, at: float | None = None) -> dict[str, Any]:
        """The JSON line of it, to begin ``at`` this time of CLOCK_MONOTONIC; without, at once."""
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
        """The line of each rank of the group, by its number in the world; to begin ``at``, but ``late``."""
        late = None if self.late is None else group.ranks[self.late]
        return {rank: self.line(at + LATE_S * (rank == late)) for rank in group.ranks}

    @property
    def kind(self) -> ElementType:
        return TYPES[self.type]

    def size_bytes(self, world: int) -> int:
        """n of docs/bounds.md for a group of ``world`` ranks: bytes of the vector; of ``world`` blocks where a rank
        puts in or gets one for each rank."""
        return self.kind.size * self.count * (world if self.do in _BY_BLOCK else 1)

    def input_count(self, world: int) -> int:
        """Elements of a rank's whole input."""
        return 0 if self.do == BARRIER else self.count * (world if self.do in ("reduce_scatter", "all_to_all") else 1)

    def output_count(self, world: int) -> int:
        """Elements of the output of a rank that gets one."""
        return 0 if self.do == BARRIER else self.count * (world if self.do in ("all_gather", "all_to_all") else 1)

    def segments(self, rank: int, world: int) -> tuple[Segment, ...] | None:
        """What the rank with this number in the group gets; None: nothing, and its output is not looked at."""
        everyone = range(world)
        match self.do:
            case "all_reduce":
                return (Segment(0, self.count, tuple((it, 0) for it in everyone)),)
            case "reduce":
                return (Segment(0, self.count, tuple((it, 0) for it in everyone)),) if rank == self.root else None
            case "reduce_scatter":
                return (Segment(0, self.count, tuple((it, rank * self.count) for it in everyone)),)
            case "all_gather":
                return tuple(Segment(it * self.count, self.count, ((it, 0),)) for it in everyone)
            case "all_to_all":
                return tuple(Segment(it * self.count, self.count, ((it, rank * self.count),)) for it in everyone)
            case "broadcast":
                return (Segment(0, self.count, ((self.root, 0),)),)
            case "send":
                return (Segment(0, self.count, ((self.root, 0),)),) if rank == self.to else None
            case "barrier":
                return None
