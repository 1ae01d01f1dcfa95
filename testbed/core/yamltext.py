"""Parse YAML 1.2 text to plain data with line numbers: one document, no code execution, bounded time and memory.

A user's file is untrusted, so this module builds the tree from parser events, without recursion, under limits on
size, depth and node count. An alias counts as its full expansion, so an alias bomb hits the count limit before
anything is expanded. Scalars follow the core schema of YAML 1.2.2, section 10.3.2: ``on``, ``no`` and ``1:30`` are
strings. Tags are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from testbed.core.user_text import shown
from testbed.errors import FileMistakes, Finding

__all__ = ["MOST_BYTES", "MOST_DEPTH", "MOST_FINDINGS", "MOST_NODES", "Document", "Path", "read", "read_value"]

MOST_BYTES: Final = 1 << 20
MOST_DEPTH: Final = 32
MOST_NODES: Final = 50_000  # 200 sites and 256 links with every field written out take about 10 000
MOST_FINDINGS: Final = 100  # more than a hundred findings help no reader

Path = tuple[str | int, ...]

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {word: value for value in (True, False) for word in (str(value), str(value).lower(), str(value).upper())}
_INT: Final = re.compile(r"[-+]?[0-9]{1,400}", re.ASCII)
_BASE: Final = re.compile(r"0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)


@dataclass(frozen=True)
class Document:
    """A parsed document: ``data`` of dicts (string keys), lists and scalars; ``lines`` maps each path to its line.

    Lines count from 1. ``findings`` are mistakes that do not stop further checks: a duplicate key (the first one
    counts), a tag. A caller that checks further reports them with its own findings, or calls :meth:`raise_if_any`.
    """

    file: str
    data: Any
    lines: Mapping[Path, int]
    findings: tuple[Finding, ...] = ()

    def raise_if_any(self) -> None:
        """Raise FileMistakes for the findings, if any."""
        if self.findings:
            raise FileMistakes(self.findings)

    def line(self, path: Path) -> int:
        """Return the line of ``path``, or of its closest ancestor in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


@dataclass
class _Node:
    """A scalar (``value``), or a collection (``items``, plus ``keys`` for a mapping)."""

    line: int
    value: Any = None
    items: list[_Node] | None = None
    keys: list[tuple[str, int]] | None = None
    size: int = 1  # number of nodes inside, with aliases expanded
    height: int = 1
    open: bool = False
    anchor: str | None = None


@dataclass
class _Builder:
    """Build the tree event by event. ``stop`` makes the error of a fatal mistake, ``note`` collects the rest."""

    file: str
    findings: list[Finding] = field(default_factory=list)
    root: _Node | None = None
    stack: list[_Node] = field(default_factory=list)
    awaited: list[tuple[str, int] | None] = field(default_factory=list)  # per level: the key that awaits its value
    anchors: dict[str, _Node] = field(default_factory=dict)
    count: int = 0
    documents: int = 0

    def note(self, line: int, message: str, fix: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(self.file, line, message, fix))

    def stop(self, line: int, message: str, fix: str) -> FileMistakes:
        self.note(line, message, fix)
        return FileMistakes(self.findings)

    def take(self, event: Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        match event:
            case DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    raise self.stop(line, "expected one document, got a second one", "remove '---', or split the file")
            case AliasEvent():
                self.add(self.unfold(event, line), line)
            case ScalarEvent():
                self.check_tag(event, line)
                plain = not event.style  # with or without a tag: the tag is rejected, the value is still checked
                node = _Node(line, self.whole(event.value, line) if event.style else event.value, anchor=event.anchor)
                if not plain or self.expects_key():
                    self.add(node, line)
                else:
                    node.value = _scalar(event.value)
                    self.add(node, line)
            case MappingStartEvent() | SequenceStartEvent():
                self.check_tag(event, line)
                if len(self.stack) >= MOST_DEPTH:
                    raise self.too_deep(line)
                mapping = isinstance(event, MappingStartEvent)
                node = _Node(line, items=[], keys=[] if mapping else None, open=True, anchor=event.anchor)
                if self.expects_key():
                    raise self.stop(line, "expected a name as the key, got a list or mapping", "write key: value")
                if event.anchor:
                    self.anchors[event.anchor] = node
                self.stack.append(node)
                self.awaited.append(None)
            case MappingEndEvent() | SequenceEndEvent():
                node = self.stack.pop()
                self.awaited.pop()
                node.open = False
                self.add(node, node.line, counted=True)

    def whole(self, text: str, line: int) -> str:
        """Join the two halves of characters beyond U+FFFF, as JSON escapes them; half of one alone is a mistake."""
        if not any("\ud800" <= character <= "\udfff" for character in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.note(line, "an escape is half of a character", "write both halves, or the character itself")
            return text.encode(errors="replace").decode()

    def expects_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].keys is not None and self.awaited[-1] is None

    def check_tag(self, event: NodeEvent, line: int) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.note(line, f"YAML tag {shown(str(tag))} is not allowed", "write the plain value, without '!'")

    def too_deep(self, line: int) -> FileMistakes:
        return self.stop(
            line, f"nested more than {MOST_DEPTH} levels deep", "flatten it: no field needs more than five levels"
        )

    def unfold(self, event: AliasEvent, line: int) -> _Node:
        target = self.anchors.get(event.anchor)
        if target is None:
            raise self.stop(
                line, f"alias {shown('*' + event.anchor)} has no anchor", "define it with '&' before this line"
            )
        if target.open:
            raise self.stop(line, f"alias {shown('*' + event.anchor)} contains itself", "write the value out")
        if len(self.stack) + target.height > MOST_DEPTH:
            raise self.too_deep(line)
        return target

    def add(self, node: _Node, line: int, *, counted: bool = False) -> None:
        """Attach the complete ``node`` to the open collection; with ``counted`` its children are counted already."""
        self.count += 1 if counted else node.size
        if self.count > MOST_NODES:
            raise self.stop(
                line, f"more than {MOST_NODES} values with aliases expanded", "split the file, or use fewer aliases"
            )
        if node.anchor:
            self.anchors[node.anchor] = node
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        assert parent.items is not None
        if self.expects_key():
            if not isinstance(node.value, str) or node.items is not None:
                raise self.stop(line, "expected a name as the key", "write key: value, with a name before the colon")
            self.awaited[-1] = (node.value, line)
            return
        if parent.keys is not None:
            key = self.awaited[-1]
            assert key is not None
            self.awaited[-1] = None
            parent.keys.append(key)
        parent.items.append(node)
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)


def _scalar(text: str) -> Any:
    """Resolve a plain scalar by the core schema of YAML 1.2.2 (10.3.2)."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASE.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _decode(text: bytes, file: str) -> str:
    def refuse(line: int, message: str, fix: str = "save the file as UTF-8") -> FileMistakes:
        return FileMistakes([Finding(file, line, message, fix)])

    if len(text) > MOST_BYTES:
        raise refuse(
            0, f"larger than {MOST_BYTES >> 20} MiB", "check the path: a topology or experiment takes a few kilobytes"
        )
    for mark, name in (
        (b"\xff\xfe\x00\x00", "UTF-32"),
        (b"\x00\x00\xfe\xff", "UTF-32"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ):
        if text.startswith(mark):
            raise refuse(0, f"expected UTF-8, got {name}")
    text = text.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in text:
        pairs = text[:2000]
        zeros = max(pairs[0::2].count(0), pairs[1::2].count(0))
        problem = "expected UTF-8, got UTF-16" if zeros * 3 > len(pairs) else "expected text, got a zero byte"
        raise refuse(0 if zeros * 3 > len(pairs) else 1 + text[: text.index(b"\0")].count(b"\n"), problem)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + text[: error.start].count(b"\n")
        byte = text[error.start]
        raise refuse(line, f"expected UTF-8, got byte 0x{byte:02x} (Latin-1 or Windows-1252 text?)") from error


_COMPLAINTS: Final = (
    (
        "mapping values are not allowed",
        "unexpected colon",
        "check the indentation; quote text that holds ': '",
    ),
    ("could not find expected ':'", "a key has no colon", "write key: value, with a space after the colon"),
    ("while scanning a quoted scalar", "a quote is not closed", "add the missing quote"),
    ("while parsing a flow", "a bracket is not closed, or a comma is missing", "check the brackets and commas"),
    ("<document start>", "expected 'key: value' or a list", "write every top-level line as key: value"),
    ("while parsing a block", "indentation does not match the lines above", "indent it like its siblings"),
    ("expected the node content", "a value is missing, or a bracket is not closed", "check the brackets and commas"),
    ("cannot start any token", "the value begins with a character reserved in YAML", "put it in quotes"),
)
"""Per kind of mistake: a marker in the parser's error text, the message in plain words, the fix."""


def _syntax(error: Exception, text: str, builder: _Builder) -> Finding:
    """Translate the parser's error to plain words, for a reader who does not know the parser."""
    if isinstance(error, ReaderError):
        line = 1 + text.count("\n", 0, error.position)
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        return Finding(builder.file, line, f"control character U+{code:04X} is not allowed", "remove it")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 0
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return Finding(builder.file, line, "expected spaces as indentation, got a tab", "indent with spaces")
    began = getattr(error, "context_mark", None)
    complaint = str(error)
    for marker, message, fix in _COMPLAINTS:
        if marker in complaint:
            # Point at the opening quote or bracket rather than at the end of the text.
            where = began.line + 1 if "not closed" in message and began is not None else line
            return Finding(builder.file, where, message, fix)
    problem = (error.problem if isinstance(error, MarkedYAMLError) else None) or "cannot parse the text"
    problem = " ".join(str(problem).split())[:120]
    context = f" (block began on line {began.line + 1})" if began is not None and began.line + 1 != line else ""
    fix = "check the indentation, colons, quotes and brackets here"
    return Finding(builder.file, line, f"invalid YAML: {problem}{context}", fix)


def _events(text: str) -> Iterator[Event]:
    parser = YAML(typ="safe", pure=True)
    parser.version = (1, 2)
    yield from parser.parse(text)


def _unfold(node: _Node, path: Path, lines: dict[Path, int], builder: _Builder) -> Any:
    """Return plain data; the builder has enforced MOST_DEPTH, the depth of recursion here, and MOST_NODES."""
    if node.items is None:
        return node.value
    if node.keys is None:
        listed = []
        for index, item in enumerate(node.items):
            lines[(*path, index)] = item.line
            listed.append(_unfold(item, (*path, index), lines, builder))
        return listed
    mapped: dict[str, Any] = {}
    for (key, line), item in zip(node.keys, node.items, strict=True):
        if key in mapped:
            first = lines[(*path, key)]
            builder.note(line, f"duplicate key {shown(key)}, first on line {first}", "keep one, or rename the other")
            continue
        lines[(*path, key)] = line
        mapped[key] = _unfold(item, (*path, key), lines, builder)
    return mapped


def read(text: bytes, file: str) -> Document:
    """Parse ``text``, the content of ``file`` (the name in messages), to data with line numbers.

    Raises:
        FileMistakes: not UTF-8, not YAML, too large or too deep, so that no further check is possible.
    """
    decoded = _decode(text, file)
    builder = _Builder(file)
    try:
        for event in _events(decoded):
            builder.take(event)
    except FileMistakes:
        raise
    except (
        YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        ArithmeticError,
        AssertionError,
        RecursionError,
    ) as error:
        # On malformed text the parser raises more than its own YAMLError; users should see none of it.
        raise FileMistakes([*builder.findings, _syntax(error, decoded, builder)]) from error
    lines: dict[Path, int] = {(): builder.root.line if builder.root is not None else 0}
    data = None if builder.root is None else _unfold(builder.root, (), lines, builder)
    return Document(file, data, lines, tuple(builder.findings))


def read_value(text: str, label: str) -> Any:
    """Parse the value of ``--set K=V``: a YAML scalar, or a list in brackets. Raises FileMistakes, without lines."""
    try:
        document = read(text.encode("utf-8", "surrogateescape"), label)
        document.raise_if_any()
    except FileMistakes as error:
        raise FileMistakes(replace(finding, line=0) for finding in error.findings) from error
    return document.data
