"""Differences between two documents of JSON and between two texts, with accepted changes of wording.

A key, a number, a truth value, or a string without a space (a name, a verdict) that differs is a *figure*. A string
with a space, and a line of a text, is prose: it may have been reworded, if a template of :class:`Templates` says so.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

RELATIVE = 1e-9
"""Numbers this close are equal: libraries of another machine may round otherwise."""

MISSING = "nothing"


@dataclass(frozen=True)
class Difference:
    """Where two documents differ, in the words of each; ``prose``: only wording."""

    path: str
    old: str
    new: str
    prose: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


class Templates:
    """Accepted changes of wording: pairs of an old and a new template, in which ``{name}`` stands for any text.

    A template may be a part of a line, as a headline is that stands behind its verdict; a name at its beginning or end
    then stands for one word.
    """

    def __init__(self, pairs: Sequence[Sequence[str]]) -> None:
        self._pairs = [(_pattern(old), _pattern(old, ends=r"\S+"), new) for old, new in pairs]

    def accept(self, old: str, new: str) -> bool:
        reworded = old
        for whole, part, template in self._pairs:
            if (match := whole.fullmatch(old)) and template.format(**match.groupdict()) == new:
                return True
            reworded = _reword(part, template, reworded)
            if new in (reworded, _reword(part, template, old)):
                return True
        return False


def _reword(part: re.Pattern[str], template: str, text: str) -> str:
    return part.sub(lambda match: template.format(**match.groupdict()), text)


def _pattern(template: str, ends: str = ".*?") -> re.Pattern[str]:
    """Return the pattern of a template; ``ends``: what a name at its beginning or end stands for."""
    parts = re.split(r"\{(\w+)\}", template)
    names, literals = parts[1::2], parts[::2]
    pattern, seen = re.escape(literals[0]), set[str]()
    for index, name in enumerate(names):
        at_end = (index == 0 and not literals[0]) or (index == len(names) - 1 and not literals[-1])
        pattern += f"(?P={name})" if name in seen else f"(?P<{name}>{ends if at_end else '.*?'})"
        pattern += re.escape(literals[index + 1])
        seen.add(name)
    return re.compile(pattern, re.DOTALL)


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Yield where two documents differ, in their order."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else key
            if key not in new or key not in old:
                yield Difference(inner, _short(old.get(key, MISSING)), _short(new.get(key, MISSING)))
            else:
                yield from differences(old[key], new[key], inner)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield Difference(f"{path}.length", str(len(old)), str(len(new)))
        for index, (old_part, new_part) in enumerate(zip(old, new, strict=False)):
            yield from differences(old_part, new_part, f"{path}[{index}]")
    elif not _equal(old, new):
        prose = isinstance(old, str) and isinstance(new, str) and (" " in old or " " in new)
        yield Difference(path, old if prose else _short(old), new if prose else _short(new), prose)


def text_differences(old: Sequence[str], new: Sequence[str], path: str) -> Iterator[Difference]:
    """Yield the lines in which two texts differ; those that replace others are paired in their order."""
    for tag, from_old, to_old, from_new, to_new in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            for index in range(max(to_old - from_old, to_new - from_new)):
                old_line = old[from_old + index] if from_old + index < to_old else MISSING
                new_line = new[from_new + index] if from_new + index < to_new else MISSING
                yield Difference(path, old_line, new_line, prose=True)


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=RELATIVE) or (math.isnan(old) and math.isnan(new))
    return type(old) is type(new) and bool(old == new)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
