"""Progress of long operations, for the terminal or a caller of the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from testbed.core.certification.certificate import Certificate

__all__ = ["HowEnded", "LiveState", "Progress", "Silent", "Unbreakable"]

HowEnded = Literal["done", "failed", "interrupted"]
"""How a phase ended."""


@dataclass(frozen=True)
class LiveState:
    """The values that a live progress line shows; ``scale`` is the topology's, for what a rate stands for.

    ``steps`` is how many there will be; None where a program does not say.
    """

    step: int = 0
    steps: int | None = 0
    train_loss: float | None = None
    tokens_per_s: float = 0.0
    throughput_bps: dict[str, float] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    scale: float = 1.0


class Progress(Protocol):
    """A receiver of progress; every method may do nothing.

    ``phase`` begins a phase; the one before it is done, unless ``ended`` has told how it ended.
    """

    def phase(self, name: str, detail: str = "") -> None: ...

    def ended(self, how: HowEnded) -> None: ...

    def certificate(self, certificate: Certificate) -> None: ...

    def tick(self, state: LiveState) -> None: ...

    def event(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Ignores all progress."""

    def phase(self, name: str, detail: str = "") -> None:
        return None

    def ended(self, how: HowEnded) -> None:
        return None

    def certificate(self, certificate: Certificate) -> None:
        return None

    def tick(self, state: LiveState) -> None:
        return None

    def event(self, text: str) -> None:
        return None

    def note(self, text: str) -> None:
        return None


class Unbreakable:
    """Forwards progress until the receiver fails: a closed terminal or pipe must not end a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def phase(self, name: str, detail: str = "") -> None:
        self._tell(lambda: self._progress.phase(name, detail))

    def ended(self, how: HowEnded) -> None:
        # A program's own receiver may have been written before there was this method.
        self._tell(lambda: getattr(self._progress, "ended", Silent().ended)(how))

    def certificate(self, certificate: Certificate) -> None:
        self._tell(lambda: self._progress.certificate(certificate))

    def tick(self, state: LiveState) -> None:
        self._tell(lambda: self._progress.tick(state))

    def event(self, text: str) -> None:
        self._tell(lambda: self._progress.event(text))

    def note(self, text: str) -> None:
        self._tell(lambda: self._progress.note(text))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError:
            self._progress = Silent()
