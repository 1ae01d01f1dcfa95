"""Find the lines in a program's output that look like its steps, and write the ``progress:`` that would read them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

__all__ = ["EXAMPLE", "Offer", "offer"]

Reader = Callable[[str], Mapping[str, float] | None]
"""Reads the numbers of a line, by name; None where the line says nothing of progress."""

_LEAST_STEPS: Final = 3
"""Different steps that lines must name: with fewer, any number would do."""
_RISING: Final = 0.8
"""Of the pairs of lines, that many must not go back."""
_LONGEST: Final = 300
"""Characters of a line that are looked at."""

_STEP: Final = re.compile(
    r"(?i)(?<![a-z0-9])((?:global|train|training|optimizer)?[_ ]?(?:steps?|iterations?|iters?|updates?))(?![a-z0-9])"
    r"([\"':=#\[\]( ]{0,4})(\d{1,15})(?![\d.]*\d|[eE%])"
)
_LOSS: Final = re.compile(
    r"(?i)(?<![a-z0-9])((?:train(?:ing)?[_/ ]?)?loss)(?![a-z0-9])([\"':=( ]{0,4})([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
)
_OF_A_LOSS: Final = r"(?P<train_loss>[-+\d.eE]+)"


@dataclass(frozen=True)
class Offer:
    """How a program's steps can be read. ``preset`` is a name, or empty; ``pattern`` a regular expression, or empty.

    ``sample``: a line that it reads; empty for an example. ``ranks``: those whose output has such lines.
    """

    preset: str
    pattern: str
    sample: str
    ranks: tuple[int, ...]

    @property
    def yaml(self) -> str:
        """The line of an experiment's workload."""
        if self.preset:
            return f"progress: {self.preset}"
        quoted = self.pattern.replace("'", "''")
        return f"progress: {{line: '{quoted}'}}"

    @property
    def option(self) -> str:
        """The same as an option of the command line."""
        return f"--progress {shlex.quote(self.preset or self.pattern)}"


EXAMPLE: Final = Offer("", r"step (?P<step>\d+).*loss (?P<train_loss>[\d.]+)", "", ())
"""What can be offered for an output without any such line."""


def offer(output: Mapping[int, Sequence[str]], presets: Mapping[str, Callable[[], Reader]]) -> Offer | None:
    """Return the preset that reads most steps of ``output`` (lines by rank), else a pattern for its lines, else None.

    ``presets``: by name, what makes a reader for one rank's lines.
    """
    candidates = [candidate for name, made in presets.items() if (candidate := _by_preset(output, name, made))]
    if candidates:
        return max(candidates, key=lambda candidate: candidate[0])[1]
    return _by_pattern(output)


def _by_preset(output: Mapping[int, Sequence[str]], name: str, made: Callable[[], Reader]) -> tuple[int, Offer] | None:
    sample, most, ranks = "", 0, []
    for rank, lines in output.items():
        reader, steps = made(), set()
        for line in lines:
            figures = reader(line)
            if figures is not None and (step := figures.get("step", figures.get("epoch_step"))) is not None:
                steps.add((figures.get("epoch"), step))
                sample = line
        most = max(most, len(steps))
        ranks += [rank] if len(steps) >= _LEAST_STEPS else []
    return (most, Offer(name, "", _shown(sample), tuple(ranks))) if ranks else None


def _by_pattern(output: Mapping[int, Sequence[str]]) -> Offer | None:
    """Return a pattern for the kind of line that names most steps."""
    best: tuple[int, str, str] | None = None
    for lines in output.values():
        for pattern, sample in _patterns(lines):
            steps = _steps(pattern, lines)
            if _rise(steps) and (best is None or len(set(steps)) > best[0]):
                best = len(set(steps)), pattern, sample
    if best is None:
        return None
    _, pattern, sample = best
    ranks = tuple(rank for rank, lines in output.items() if len(set(_steps(pattern, lines))) >= _LEAST_STEPS)
    return Offer("", pattern, _shown(sample), ranks)


def _patterns(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (pattern, a line) for each way that a step is named, and its loss where most of these lines have one."""
    ways: Counter[str] = Counter()
    losses: dict[str, Counter[str]] = {}
    samples: dict[str, str] = {}
    for line in lines:
        if (step_match := _STEP.search(line[:_LONGEST])) is None:
            continue
        way = _named(step_match[1], step_match[2]) + r"(?P<step>\d+)"
        ways[way] += 1
        samples[way] = line
        if (loss := _LOSS.search(line[:_LONGEST], step_match.end())) is not None:
            losses.setdefault(way, Counter())[_named(loss[1], loss[2])] += 1
    for way, count in ways.most_common(5):
        commonest_losses = losses.get(way, Counter()).most_common(1)
        if commonest_losses and 2 * commonest_losses[0][1] >= count:
            yield f"{way}.*?{commonest_losses[0][0]}{_OF_A_LOSS}", samples[way]
        else:
            yield way, samples[way]


def _named(word: str, between: str) -> str:
    """Return the expression for a word and what stands between it and its number."""
    parts = (r"\s*" if part.isspace() else re.escape(part) for part in re.split(r"(\s+)", between) if part)
    return rf"\b{re.escape(word.strip()).replace(chr(92) + ' ', ' ')}{''.join(parts)}"


def _steps(pattern: str, lines: Iterable[str]) -> list[int]:
    expression = re.compile(pattern)
    return [int(match["step"]) for line in lines if (match := expression.search(line[:_LONGEST]))]


def _rise(steps: Sequence[int]) -> bool:
    if len(set(steps)) < _LEAST_STEPS:
        return False
    return sum(after >= before for before, after in pairwise(steps)) >= _RISING * (len(steps) - 1)


def _shown(line: str) -> str:
    return " ".join(line.split())[:_LONGEST]
