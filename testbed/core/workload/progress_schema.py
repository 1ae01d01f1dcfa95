"""Parse ``progress:`` of a workload, and ``--progress`` of the command line, with every mistake at its line.

::

    progress: nanogpt                        # a preset: nanogpt, torchtitan, hf-trainer or lightning
    progress: {preset: hf-trainer, tokens: 4096}
    progress: {line: 'iter (?P<step>\\d+): loss (?P<train_loss>[\\d.]+)', tokens: 4096}
    progress: {csv: loss.csv, step: iter, train_loss: loss, tokens_seen: tokens, time: unix}
    progress: {tensorboard: runs, train_loss: Loss/train}
    progress: {prometheus: 9100, step: train_step, train_loss: train_loss, tokens_seen: tokens_total}
    progress: calls                          # testbed_agents.step(…), which is read without progress, too
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import Any, Final

from testbed.core.topology.topology_schema import Mistakes, Written
from testbed.core.units import Unreadable, parse_count
from testbed.core.user_text import expected, out_of_range, shown, unknown
from testbed.core.workload.progress_patterns import MOST_PATTERNS, RESERVED, compiled
from testbed.core.workload.progress_presets import PRESETS
from testbed.core.workload.progress_source import (
    STEP,
    Calls,
    CsvFile,
    Endpoint,
    EventFiles,
    LinePattern,
    Progress,
    Sources,
)
from testbed.core.yamltext import Document, Path

__all__ = ["FOLDERS", "PLACEHOLDERS", "parse", "parse_value", "parse_words"]

FOLDERS: Final = ("$TESTBED_FOLDER", "$TESTBED_SCRATCH")
"""Folders of each rank and of each node that a path may begin with."""

PLACEHOLDERS: Final = ("local_rank", "node", "rank", "site")
"""What a path may have in braces."""

_CALLS: Final = "calls"
_NAMES: Final = (STEP, "train_loss", "tokens_seen")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "preset": ("tokens", "every"),
    "line": ("tokens", "every"),
    "csv": (*_NAMES, "tokens", "time", "also"),
    "tensorboard": ("train_loss", "tokens_seen", "tokens", "also"),
    "prometheus": (*_NAMES, "tokens", "also"),
    _CALLS: ("tokens",),
}
"""The key that says where to read, and those that may be beside it."""

_FIX: Final = (
    "write a preset (nanogpt, torchtitan, hf-trainer, lightning) or {line: 'iter (?P<step>\\d+)'}, {csv: FILE},"
    " {tensorboard: FOLDER}, {prometheus: PORT}"
)
_MOST_STEPS: Final = 1_000_000
_MOST_DIGITS: Final = 30
_LONGEST_PATH: Final = 300
_LONGEST_NAME: Final = 200


def parse(raw: object, path: Path, mistakes: Mistakes) -> Progress | None:
    """Return the value of ``progress:`` at ``path``; None if it has mistakes, which are noted, or says nothing."""
    if raw is None:
        return None
    if isinstance(raw, str):
        raw = {_CALLS: True} if raw == _CALLS else {"preset": raw}
    if not isinstance(raw, Mapping):
        message, fix = expected("a preset or a mapping", raw, _FIX)
        mistakes.note(path, f"progress: {message}", fix)
        return None
    before = len(mistakes.findings)
    progress = _Reader(raw, path, mistakes).read()
    return progress if len(mistakes.findings) == before else None


def parse_words(arguments: Iterable[str], origin: str = "--progress") -> Progress | None:
    """Parse the arguments of ``--progress``, of which each is a preset, a pattern with ``(?P<…>``, or KEY=VALUE.

    Raises:
        FileMistakes: every mistake, with ``origin`` in the place of the file.
    """
    raw: dict[str, Any] = {}
    mistakes = Mistakes(Written(Document(origin, None, {})))
    for argument in arguments:
        key, equals, value = argument.partition("=")
        is_key = key in _KEYS or any(key in beside for beside in _KEYS.values())
        if "(?P<" in argument and not (equals and key == "line"):
            key, value = "line", argument
        elif argument in PRESETS:
            key, value = "preset", argument
        elif argument == _CALLS:
            key, value = _CALLS, ""
        elif not (equals and is_key):
            if equals:
                mistakes.note(
                    (), *unknown("key", key, sorted({*_KEYS, *(key for them in _KEYS.values() for key in them)}))
                )
            else:
                message, fix = unknown("preset", argument, PRESETS)
                mistakes.note((), message, fix or "or write a pattern with a group (?P<step>\\d+), or KEY=VALUE")
            continue
        if key == "also":
            name, _, source = value.partition(":")
            raw.setdefault("also", {})[name] = source
        elif key in raw and key == "line":
            raw[key] = [*raw[key], value] if isinstance(raw[key], list) else [raw[key], value]
        elif key in raw:
            mistakes.note((), f"{key} is given twice", "keep one of them")
        else:
            raw[key] = True if key == _CALLS else _scalar(key, value)
    mistakes.raise_if_any()
    progress = parse(raw or None, (), mistakes)
    mistakes.raise_if_any()
    return progress


def parse_value(value: object, origin: str = "progress") -> Progress | None:
    """Parse ``progress:`` as plain data, such as from Python. Raises FileMistakes, with ``origin`` as the file."""
    mistakes = Mistakes(Written(Document(origin, value, {})))
    progress = parse(value, (), mistakes)
    mistakes.raise_if_any()
    return progress


def _scalar(key: str, value: str) -> object:
    # A longer one is out of range anyway, and int() refuses thousands of digits.
    is_number = value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
    return int(value) if key in ("every", "prometheus") and is_number else value


class _Reader:
    """Reads one mapping; each mistake is noted at its own key."""

    def __init__(self, raw: Mapping[str, Any], path: Path, mistakes: Mistakes) -> None:
        self._raw, self._path, self._mistakes = raw, path, mistakes

    def read(self) -> Progress | None:
        kinds = [key for key in _KEYS if key in self._raw]
        if len(kinds) != 1:
            if kinds:
                self._note(kinds[1], f"progress has both {kinds[0]} and {kinds[1]}", "keep one of them")
            else:
                keys = [str(key) for key in self._raw]
                message, fix = unknown("key", keys[0], _KEYS) if keys else expected("a preset or a mapping", None, _FIX)
                self._note(keys[0] if keys else "", f"progress: {message}", fix or _FIX)
            return None
        kind = kinds[0]
        for key in self._raw:
            if key != kind and key not in _KEYS[kind]:
                message, fix = unknown("key", str(key), _KEYS[kind])
                self._note(str(key), f"progress with {kind}: {message}", fix)
        return {
            "preset": self._preset,
            "line": self._line,
            "csv": self._csv,
            "tensorboard": self._tensorboard,
            "prometheus": self._prometheus,
            _CALLS: self._calls,
        }[kind]()

    def _note(self, key: str, message: str, fix: str = "") -> None:
        self._mistakes.note((*self._path, key) if key else self._path, message, fix)

    def _preset(self) -> Progress | None:
        name = self._raw["preset"]
        if not isinstance(name, str) or name not in PRESETS:
            if isinstance(name, str):
                message, fix = unknown("preset", name, PRESETS)
                fix = fix or _FIX
            else:
                message, fix = expected("a preset", name, f"write one of {', '.join(PRESETS)}")
            self._mistakes.note(self._at("preset"), f"progress: {message}", fix)
            return None
        preset = PRESETS[name]
        return LinePattern(preset.patterns, self._per_step(), self._every(), preset.preset, preset.environment)

    def _line(self) -> Progress | None:
        written = self._raw["line"]
        texts = written if isinstance(written, list) else [written]
        if not 1 <= len(texts) <= MOST_PATTERNS:
            self._note("line", *expected(f"1 to {MOST_PATTERNS} patterns", f"{len(texts)}", "write one per line"))
            return None
        groups: set[str] = set()
        for index, text in enumerate(texts):
            try:
                groups |= set(compiled(text).groupindex)
            except Unreadable as error:
                at = ("line", index) if isinstance(written, list) else ("line",)
                self._mistakes.note((*self._path, *at), error.message, error.fix)
        per_step = self._per_step()
        if per_step is not None and (both := sorted(groups & {"tokens", "tokens_seen"})):
            self._note("tokens", f"tokens are both a number and the group {both[0]}", "keep one of them")
        return LinePattern(tuple(map(str, texts)), per_step, self._every())

    def _csv(self) -> Progress:
        sources, per_step = self._sources(step=STEP)
        return CsvFile(self._file("csv"), sources, self._name("time"), per_step)

    def _tensorboard(self) -> Progress:
        sources, per_step = self._sources(step=None)
        return EventFiles(self._file("tensorboard"), sources, per_step)

    def _prometheus(self) -> Progress:
        sources, per_step = self._sources(step=None)
        if self._raw.get(STEP) is None:
            self._note("", "progress with prometheus has no step", "add step: the name of the metric that counts steps")
        port = self._raw["prometheus"]
        if isinstance(port, bool) or not isinstance(port, int):
            self._note("prometheus", *expected("a port", port, "write a number such as 9100"))
            port = 1
        elif not 1 <= port <= 65535:
            self._note("prometheus", *out_of_range(port, "1", "65535"))
        return Endpoint(port, sources, per_step)

    def _calls(self) -> Progress:
        if self._raw[_CALLS] is not True:
            self._note(_CALLS, *expected("true", self._raw[_CALLS], "write progress: calls"))
        return Calls(self._per_step())

    # ---- parts

    def _at(self, key: str) -> Path:
        """Return the path of ``key``, or of the whole where it was written short: ``progress: nanogpt``."""
        full = (*self._path, key)
        return full if self._mistakes.written.has(full) else self._path

    def _per_step(self) -> float | None:
        written = self._raw.get("tokens")
        if written is None:
            return None
        try:
            return parse_count(written)
        except Unreadable as error:
            self._note("tokens", f"tokens of a step: {error.message}", error.fix)
            return None

    def _every(self) -> int | None:
        every = self._raw.get("every")
        if every is None:
            return None
        if isinstance(every, bool) or not isinstance(every, int):
            self._note("every", *expected("a whole number of steps", every, "write a number such as 10"))
        elif not 1 <= every <= _MOST_STEPS:
            self._note("every", *out_of_range(every, "1", f"{_MOST_STEPS}"))
        else:
            return every
        return None

    def _sources(self, step: str | None) -> tuple[Sources, float | None]:
        """Return the names, and tokens a step where ``tokens`` is a number rather than a name."""
        tokens = self._raw.get("tokens")
        per_step = None
        name = None
        if isinstance(tokens, str) and not tokens[:1].isdigit():
            name = self._name("tokens")
        else:
            per_step = self._per_step()
        seen = self._name("tokens_seen")
        if seen is not None and tokens is not None:
            self._note("tokens", "progress has both tokens and tokens_seen", "keep one of them")
        return Sources(self._name(STEP) or step, self._name("train_loss"), name, seen, self._also()), per_step

    def _also(self) -> dict[str, str]:
        also = self._raw.get("also")
        if also is None:
            return {}
        if not isinstance(also, Mapping):
            self._note("also", *expected("a mapping of names", also, "write also: {grad_norm: NAME}"))
            return {}
        sources: dict[str, str] = {}
        for name, source in also.items():
            own = name in RESERVED or name in (*_NAMES, "tokens", "epoch_step", "epoch_steps")
            if own or not str(name).isidentifier():
                self._mistakes.note(
                    (*self._path, "also", name), f"a number cannot be named {shown(name)}", "write a name such as lr"
                )
            elif not isinstance(source, str) or not 0 < len(source) <= _LONGEST_NAME:
                self._mistakes.note((*self._path, "also", name), *expected("a name", source, "write it as it is there"))
            else:
                sources[str(name)] = source
        return sources

    def _name(self, key: str) -> str | None:
        name = self._raw.get(key)
        if name is None:
            return None
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            self._note(key, *expected("a name", name, "write it as it is there"))
            return None
        return name

    def _file(self, key: str) -> str:
        """Return a path that stays below its folder, with known placeholders."""
        path = self._raw[key]
        if not isinstance(path, str) or not 0 < len(path) <= _LONGEST_PATH or "\0" in path:
            self._note(key, *expected("a path", path, "write one relative to the working directory"))
            return "."
        try:
            fields = [
                (name, spec or (f"!{conversion}" if conversion else ""))
                for _, name, spec, conversion in string.Formatter().parse(path)
                if name is not None
            ]
        except ValueError:
            fields = [("", "")]
        if bad := [name + suffix for name, suffix in fields if name not in PLACEHOLDERS or suffix]:
            self._note(
                key,
                f"unknown placeholder {{{bad[0]}}}",
                f"use {', '.join(f'{{{placeholder}}}' for placeholder in PLACEHOLDERS)}",
            )
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not parts:
            self._note(key, *expected("a path", path, "write one relative to the working directory"))
            return "."
        if path.startswith("$") and (parts[0] not in FOLDERS or len(parts) < 2):
            self._note(key, f"unknown folder {shown(parts[0])}", f"begin with {' or '.join(FOLDERS)}, or no $")
        if ".." in parts or path.startswith(("/", "~")):
            fix = "write it relative to the working directory, or begin with $TESTBED_FOLDER/"
            self._note(key, f"expected a path below the working directory, got {shown(path)}", fix)
        return path
