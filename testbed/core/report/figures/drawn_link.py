"""A link in the words of the topology's drawing."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.report.figures.drawing_parts import LINK, SMALL, KeyLine, Line, wrapped
from testbed.core.report.figures.fault_effects import Effect

__all__ = ["DrawnLink"]


@dataclass(frozen=True)
class DrawnLink:
    """``faults`` are words about the faults that touched it with the effect of each, ``effects`` the worst first."""

    name: str
    between: tuple[str, str]
    facts: str
    faults: tuple[tuple[str, Effect], ...]
    effects: tuple[Effect, ...]

    @property
    def touched(self) -> bool:
        return bool(self.faults)

    def title(self, room: float) -> tuple[Line, ...]:
        return wrapped(self.name, "link middle", LINK, room)

    def details(self, room: float) -> tuple[Line, ...]:
        lines = wrapped(self.facts, "small middle", SMALL, room)
        for said, effect in self.faults:
            lines += wrapped(said, f"small middle {effect.css}-words", SMALL, room)
        return lines

    def key(self, number: int) -> KeyLine:
        return KeyLine(
            number,
            self.name,
            f"{' – '.join(self.between)}, {self.facts}",
            "; ".join(said for said, _ in self.faults),
            self.effects,
        )
