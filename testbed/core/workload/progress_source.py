"""Where the steps of a user's program are read: its output, a CSV file, TensorBoard's files, its Prometheus endpoint,
or its calls of ``testbed_agents.step``.

Each is a frozen value; :func:`to_dict` writes it as users write it (``progress:`` in docs/reference.md), for run.json
and experiment files, and ``progress_schema.parse`` reads it back. Tokens are always those of the *whole job*:

- a number: tokens per step;
- the source ``tokens``: the program's own figure per step;
- the source ``tokens_seen``: a count since the program began, whose differences count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["STEP", "Calls", "CsvFile", "Endpoint", "EventFiles", "LinePattern", "Progress", "Sources", "to_dict"]

STEP: Final = "step"


@dataclass(frozen=True)
class Sources:
    """Names in a program's own data: a column of a CSV file, a tag of TensorBoard, or a metric of Prometheus.

    ``None``: not read. ``others`` are further numbers to record, by the name they get in the records.
    """

    step: str | None = None
    train_loss: str | None = None
    tokens: str | None = None
    tokens_seen: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def by_field(self) -> dict[str, str]:
        """Return what is read, as field of a record -> name in the program's data."""
        named = {STEP: self.step, "train_loss": self.train_loss, "tokens": self.tokens, "tokens_seen": self.tokens_seen}
        return {key: name for key, name in named.items() if name is not None} | dict(self.others)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of ``progress:`` that say so."""
        named = {key: name for key, name in self.by_field().items() if key not in self.others}
        return named | ({"also": dict(self.others)} if self.others else {})


@dataclass(frozen=True)
class LinePattern:
    """Regular expressions searched in each line of output; the first that matches counts, its named groups are read.

    Groups: ``step``, or ``epoch``, ``epoch_step`` and ``epoch_steps`` for a count that begins again each epoch;
    ``train_loss``, ``tokens``, ``tokens_seen``; ``tokens_per_step``, or ``sequences_per_step`` and
    ``tokens_per_sequence``, for a line that announces them; any other group is recorded as a number. What a line
    without a step says is recorded with the next step. With ``every``, and where no pattern has a step (then it is 1),
    steps are counted instead of read: each match of a pattern with ``train_loss``, or else of the first one, is
    ``every`` steps.

    ``preset`` is the name of the preset that the patterns came from. ``environment`` is set for the program, so that
    it prints them without a terminal.
    """

    patterns: tuple[str, ...]
    tokens_per_step: float | None = None
    every: int | None = None
    preset: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CsvFile:
    """A CSV file with a header, which the program appends to.

    ``path`` is relative to the program's working directory, and may have ``{rank}``, ``{local_rank}``, ``{node}``
    and ``{site}``; or it begins with ``$TESTBED_FOLDER/`` or ``$TESTBED_SCRATCH/``. ``time``: the column with seconds
    since 1970; without it, lines are stamped when they are read.
    """

    path: str
    sources: Sources = field(default_factory=lambda: Sources(step=STEP))
    time: str | None = None
    tokens_per_step: float | None = None


@dataclass(frozen=True)
class EventFiles:
    """A folder with TensorBoard's event files, below which the newest are read; ``path`` as of :class:`CsvFile`.

    The step is that of TensorBoard. A step counts when one of the tags of ``sources`` has it; without any, any scalar.
    """

    path: str
    sources: Sources = field(default_factory=Sources)
    tokens_per_step: float | None = None


@dataclass(frozen=True)
class Endpoint:
    """The program's Prometheus endpoint, on its node's loopback or any address: ``http://127.0.0.1:PORT/metrics``.

    Rank r of a node (its LOCAL_RANK) is asked at ``port`` + r.
    """

    port: int
    sources: Sources
    tokens_per_step: float | None = None


@dataclass(frozen=True)
class Calls:
    """Calls of ``testbed_agents.step`` in the program: what is read where nothing else was asked for."""

    tokens_per_step: float | None = None


Progress = LinePattern | CsvFile | EventFiles | Endpoint | Calls


def to_dict(progress: Progress) -> dict[str, Any]:
    """Return ``progress`` in the form of an experiment file; ``progress_schema.parse`` reads it back."""
    section: dict[str, Any]
    match progress:
        case LinePattern(preset=preset) if preset:
            section = {"preset": preset}
        case LinePattern(patterns=patterns):
            section = {"line": patterns[0] if len(patterns) == 1 else list(patterns)}
        case CsvFile(path=path, sources=sources, time=time):
            section = {"csv": path, **sources.to_dict(), **({"time": time} if time else {})}
        case EventFiles(path=path, sources=sources):
            section = {"tensorboard": path, **sources.to_dict()}
        case Endpoint(port=port, sources=sources):
            section = {"prometheus": port, **sources.to_dict()}
        case Calls():
            section = {"calls": True}
    if isinstance(progress, LinePattern) and progress.every is not None:
        section["every"] = progress.every
    if progress.tokens_per_step is not None:
        number = progress.tokens_per_step
        section["tokens"] = int(number) if number == int(number) else number
    return section
