"""A plot of the report as JSON for plotly.js, and the parts that several plots share: colors, axes, modes of lines.

The figures set no color of text, grid or paper: the page gives them those of its theme. The colors of the series are
Okabe and Ito's (https://jfly.uni-koeln.de/color/), which color-blind readers can tell apart and which stand out on
light and on dark. The dash of a line also tells the direction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.fields import json_values

__all__ = [
    "BLUE",
    "CYCLE",
    "DASHES",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILLION",
    "YELLOW",
    "Figure",
    "Json",
    "Marks",
    "Span",
    "axis",
    "categories",
    "level",
    "made",
    "over_time",
    "plain",
    "short",
    "told_apart",
    "trace_mode",
]

Json = dict[str, object]

BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
# page.js has a brighter form of each for dark paper.
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE)
GREY, YELLOW = "#888888", "#F0E442"
DASHES = ("solid", "dot", "dash")
_FEW_POINTS = 40
"""So many points of a line are marked, too: a line of one point would not be seen."""


@dataclass(frozen=True)
class Figure:
    """``summary`` says what the plot shows, for those who cannot see it; ``spec`` is plotly's data and layout."""

    id: str
    title: str
    summary: str
    spec: Mapping[str, object]

    @property
    def is_over_time(self) -> bool:
        """Whether the horizontal axis is the run's time, which it then shares with all such plots."""
        layout = self.spec["layout"]
        return isinstance(layout, dict) and "meta" in layout


@dataclass(frozen=True)
class Marks:
    """What is drawn over the series: plotly's shapes and annotations.

    Heights are given as shares of the plot (``paper``), never as values: on a logarithmic axis plotly takes an
    annotation's value for its exponent, and stretches the axis until it is seen.
    """

    shapes: tuple[Json, ...] = ()
    annotations: tuple[Json, ...] = ()

    def __add__(self, more: Marks) -> Marks:
        return Marks(self.shapes + more.shapes, self.annotations + more.annotations)


@dataclass(frozen=True)
class Span:
    """The time that every plot over time shows, in seconds since the job began."""

    first_s: float
    last_s: float

    @property
    def length_s(self) -> float:
        return self.last_s - self.first_s


def level(span: Span, height: float, name: str, color: str = GREEN) -> Json:
    """A horizontal line across the plot."""
    return {
        "type": "scatter",
        "x": [span.first_s, span.last_s],
        "y": [height, height],
        "mode": "lines",
        "name": name,
        "line": {"color": color, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def made(id: str, title: str, summary: str, data: Sequence[Json], layout: Json, marks: Marks | None = None) -> Figure:
    """Return the figure with ``marks`` in its layout; JSON has no NaN, so numbers that are not finite become null."""
    over = marks or Marks()
    drawn: Json = {"shapes": over.shapes, "annotations": over.annotations}
    spec = json_values({"data": data, "layout": layout | {name: each for name, each in drawn.items() if each}})
    assert isinstance(spec, dict)
    return Figure(id, title, summary, spec)


def axis(title: str, **more: object) -> Json:
    return {"title": {"text": title}, **more}


def over_time(span: Span) -> Json:
    """Return the part of a layout that makes a plot one of those over time: the same range in the same place of the
    page, so that what happened at one time stands in one line from the timeline down to the last plot."""
    shown = [span.first_s, span.last_s]
    return {"xaxis": axis("time since the job began (s)", range=shown), "meta": "over time"}


def categories(names: Sequence[str], most: int = 18) -> Json:
    """Return the part of an axis that names its categories, long names shortened: they would leave no room to draw."""
    return {
        "type": "category",
        "tickvals": [plain(it) for it in names],
        "ticktext": [plain(short(it, most)) for it in names],
    }


def short(name: str, most: int) -> str:
    """Return ``name`` in at most ``most`` characters, without its middle: names of one kind differ at their ends."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"


def told_apart(names: Sequence[str], most: int) -> list[str]:
    """Return ``names`` in ``most`` characters each, as far as they can then be told apart at a glance.

    A long name loses first the words that most of the others have in the same place of ``link:site``.

    >>> told_apart(["bay-area-coast-north:san-jose", "bay-area-coast-south:san-jose"], 20)
    ['bay-area…north:san…', 'bay-area…south:san…']
    """
    split = [_words(name) for name in names]
    seen = Counter(word for words in split for word in set(words))
    shorter = [
        name if len(name) <= most else short(_without(words, seen, most), most)
        for name, words in zip(names, split, strict=True)
    ]
    alike = Counter(shorter)
    return [name if alike[each] > 1 else each for name, each in zip(names, shorter, strict=True)]


def _words(name: str) -> list[tuple[int, str]]:
    """Return the words of ``name``, each with the place of its part."""
    return [(at, word) for at, part in enumerate(name.split(":")) for word in part.split("-")]


def _without(words: Sequence[tuple[int, str]], seen: Mapping[tuple[int, str], int], most: int) -> str:
    """Return ``words`` without those ``seen`` most often, the last first, until ``most`` characters hold the rest."""
    kept = set(range(len(words)))
    for index in sorted(kept, key=lambda it: (-seen[words[it]], -it)):
        if len(_joined(words, kept)) <= most:
            break
        if any(words[other][0] == words[index][0] for other in kept - {index}):
            kept.remove(index)
    return _joined(words, kept)


def _joined(words: Sequence[tuple[int, str]], kept: Collection[int]) -> str:
    parts = []
    for part in dict.fromkeys(at for at, _ in words):
        shown = [word if index in kept else "…" for index, (at, word) in enumerate(words) if at == part]
        parts.append(re.sub("-?(…-?)+", "…", "-".join(shown)))
    return ":".join(parts)


def trace_mode(values: Sequence[object]) -> str:
    """Return plotly's mode of a line through ``values``: with points, where a line alone would leave some unseen."""
    alone = any(
        value is not None and (i == 0 or values[i - 1] is None) and (i + 1 == len(values) or values[i + 1] is None)
        for i, value in enumerate(values)
    )
    return "lines+markers" if alone or len(values) <= _FEW_POINTS else "lines"


def plain(text: str) -> str:
    """Escape ``text``: plotly reads some HTML in its texts, and a user's text must be shown as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
