"""Who hears how it goes while something takes long: the terminal, a caller of the library, nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from testbed.core.certification.certificate import Certificate

__all__ = ["LiveState", "Progress", "Silent", "Unbreakable"]


@dataclass(frozen=True)
class LiveState:
    """What a live line shows."""

    step: int = 0
    steps: int = 0
    train_loss: float | None = None
    tokens_per_s: float = 0.0
    throughput_bps: dict[str, float] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


class Progress(Protocol):
    """Who wants to hear how it goes; every method may do nothing."""

    def phase(self, name: str, detail: str = "") -> None: ...

    def certificate(self, certificate: Certificate) -> None: ...

    def tick(self, state: LiveState) -> None: ...

    def event(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...


class Silent:
    """Hears nothing."""

    def phase(self, name: str, detail: str = "") -> None:
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
    """Passes everything on until nobody can be told any more: a closed terminal or pipe must not end a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def phase(self, name: str, detail: str = "") -> None:
        self._tell(lambda: self._progress.phase(name, detail))

    def certificate(self, certificate: Certificate) -> None:
        self._tell(lambda: self._progress.certificate(certificate))

    def tick(self, state: LiveState) -> None:
        self._tell(lambda: self._progress.tick(state))

    def event(self, text: str) -> None:
        self._tell(lambda: self._progress.event(text))

    def note(self, text: str) -> None:
        self._tell(lambda: self._progress.note(text))

    def _tell(self, words: Callable[[], None]) -> None:
        try:
            words()
        except OSError:
            self._progress = Silent()
