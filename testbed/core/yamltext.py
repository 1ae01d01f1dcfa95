"""Text to plain data with line marks: YAML 1.2, one document, nothing executed, bounded in time and memory.

A user's file may be anything, so the parser's events are built into a tree here, without recursion, under
caps on size, depth and count. An alias counts as all that it stands for, so an alias bomb meets the cap on
count before it is ever unfolded. Scalars follow the core schema of YAML 1.2.2, section 10.3.2: ``on``, ``no``
and ``1:30`` are text. Tags are refused.
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
MOST_NODES: Final = 50_000  # 200 sites and 1000 links with every field written out take some 25 000
MOST_FINDINGS: Final = 100  # what follows the hundredth helps nobody

Path = tuple[str | int, ...]

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {word: value for value in (True, False) for word in (str(value), str(value).lower(), str(value).upper())}
_INT: Final = re.compile(r"[-+]?[0-9]{1,400}", re.ASCII)
_BASE: Final = re.compile(r"0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_SPECIAL: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)


@dataclass(frozen=True)
class Document:
    """``data`` is dicts (text keys), lists, text, numbers, bools and None; ``lines`` the line (from 1) of each path.

    ``findings`` are mistakes that do not hinder from looking further (a key that is there twice, of which the first
    counts; a tag). Whoever looks further says them together with his own, or calls :meth:`raise_if_any`.
    """

    file: str
    data: Any
    lines: Mapping[Path, int]
    findings: tuple[Finding, ...] = ()

    def raise_if_any(self) -> None:
        """Raise FileMistakes if there are findings."""
        if self.findings:
            raise FileMistakes(self.findings)

    def line(self, path: Path) -> int:
        """Line of ``path``, or of the nearest thing above it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)


@dataclass
class _Node:
    """A scalar (``value``), or a collection (``items``; ``keys`` beside them when it is a mapping)."""

    line: int
    value: Any = None
    items: list[_Node] | None = None
    keys: list[tuple[str, int]] | None = None
    size: int = 1  # nodes in it, aliases unfolded
    height: int = 1
    open: bool = False
    anchor: str | None = None


@dataclass
class _Builder:
    """The tree, grown event by event. ``stop`` is raised for what makes going on pointless; the rest is collected."""

    file: str
    findings: list[Finding] = field(default_factory=list)
    root: _Node | None = None
    stack: list[_Node] = field(default_factory=list)
    awaited: list[tuple[str, int] | None] = field(default_factory=list)  # per level: the key whose value comes next
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
                    raise self.stop(line, "a second document begins here", "write one document per file, without '---'")
            case AliasEvent():
                self.add(self.unfold(event, line), line)
            case ScalarEvent():
                self.check_tag(event, line)
                plain = not event.style  # with a tag or without: the tag is refused, the value is looked at
                node = _Node(line, event.value, anchor=event.anchor)
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
                    raise self.stop(line, "a list or mapping is used as a key", "use a name as the key")
                if event.anchor:
                    self.anchors[event.anchor] = node
                self.stack.append(node)
                self.awaited.append(None)
            case MappingEndEvent() | SequenceEndEvent():
                node = self.stack.pop()
                self.awaited.pop()
                node.open = False
                self.add(node, node.line, counted=True)

    def expects_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].keys is not None and self.awaited[-1] is None

    def check_tag(self, event: NodeEvent, line: int) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.note(line, f"the YAML tag {shown(str(tag))} is not allowed", "write the plain value, without '!'")

    def too_deep(self, line: int) -> FileMistakes:
        return self.stop(line, f"nested more than {MOST_DEPTH} levels deep", "no field needs more than five levels")

    def unfold(self, event: AliasEvent, line: int) -> _Node:
        target = self.anchors.get(event.anchor)
        if target is None:
            raise self.stop(
                line, f"the alias {shown('*' + event.anchor)} has no anchor", "name it with '&' before this line"
            )
        if target.open:
            raise self.stop(line, f"the alias {shown('*' + event.anchor)} contains itself", "write the value out")
        if len(self.stack) + target.height > MOST_DEPTH:
            raise self.too_deep(line)
        return target

    def add(self, node: _Node, line: int, *, counted: bool = False) -> None:
        """``node`` is complete: hang it under the collection that is open. ``counted``: all but itself already is."""
        self.count += 1 if counted else node.size
        if self.count > MOST_NODES:
            raise self.stop(
                line, f"more than {MOST_NODES} values, aliases unfolded", "split the file, or use fewer aliases"
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
                raise self.stop(line, "a key must be text", "use a name as the key")
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
    """A plain scalar by the core schema of YAML 1.2.2 (10.3.2)."""
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
        raise refuse(0, f"larger than {MOST_BYTES >> 20} MiB", "a topology or experiment takes a few kilobytes")
    for mark, name in (
        (b"\xff\xfe\x00\x00", "UTF-32"),
        (b"\x00\x00\xfe\xff", "UTF-32"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ):
        if text.startswith(mark):
            raise refuse(0, f"the text is encoded as {name}")
    text = text.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in text:
        pairs = text[:2000]
        zeros = max(pairs[0::2].count(0), pairs[1::2].count(0))
        guess = "the text is encoded as UTF-16" if zeros * 3 > len(pairs) else "this is not text: it holds a zero byte"
        raise refuse(0 if zeros * 3 > len(pairs) else 1 + text[: text.index(b"\0")].count(b"\n"), guess)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + text[: error.start].count(b"\n")
        byte = text[error.start]
        raise refuse(line, f"byte 0x{byte:02x} is not UTF-8 (Latin-1 or Windows-1252 text?)") from error


_COMPLAINTS: Final = (
    (
        "mapping values are not allowed",
        "a colon where none can be",
        "check the indentation; quote text that holds ': '",
    ),
    ("could not find expected ':'", "a key without its colon", "write key: value, with a space after the colon"),
    ("while scanning a quoted scalar", "a quote that is not closed", "add the missing quote"),
    ("while parsing a flow", "a bracket that is not closed, or a missing comma", "check the brackets and commas"),
    ("<document start>", "this is neither 'key: value' nor a list", "write every line of the top level as key: value"),
    ("while parsing a block", "this line does not go on with what began above", "indent it as the lines beside it"),
    ("expected the node content", "a value is missing or a bracket is not closed", "check the brackets and commas"),
    ("cannot start any token", "a value begins with a character that means something in YAML", "put it in quotes"),
)
"""What in the parser's complaint tells which mistake it is; the mistake in plain words; the fix."""


def _syntax(error: Exception, text: str, builder: _Builder) -> Finding:
    """The parser's complaint, in the words of someone who has never seen a parser."""
    if isinstance(error, ReaderError):
        line = 1 + text.count("\n", 0, error.position)
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        return Finding(builder.file, line, f"the control character U+{code:04X} is not allowed", "remove it")
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 0
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return Finding(builder.file, line, "a tab indents this line", "indent with spaces")
    began = getattr(error, "context_mark", None)
    said = str(error)
    for sign, message, fix in _COMPLAINTS:
        if sign in said:
            # What was never closed is better sought where it began than where the text ended.
            where = began.line + 1 if "not closed" in message and began is not None else line
            return Finding(builder.file, where, message, fix)
    problem = (error.problem if isinstance(error, MarkedYAMLError) else None) or "the text cannot be read"
    problem = " ".join(str(problem).split())[:120]
    context = f" (in what began on line {began.line + 1})" if began is not None and began.line + 1 != line else ""
    fix = "check the indentation, colons, quotes and brackets here"
    return Finding(builder.file, line, f"this is not YAML: {problem}{context}", fix)


def _events(text: str) -> Iterator[Event]:
    parser = YAML(typ="safe", pure=True)
    parser.version = (1, 2)
    yield from parser.parse(text)


def _unfold(node: _Node, path: Path, lines: dict[Path, int], builder: _Builder) -> Any:
    """Plain data; recursion no deeper than MOST_DEPTH, size no larger than MOST_NODES, both held by the builder."""
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
            builder.note(line, f"{shown(key)} is here twice, first on line {first}", "keep one, or rename the other")
            continue
        lines[(*path, key)] = line
        mapped[key] = _unfold(item, (*path, key), lines, builder)
    return mapped


def read(text: bytes, file: str) -> Document:
    """``text``, the content of the file called ``file`` in messages, as data with lines.

    Raises:
        FileMistakes: not UTF-8, not YAML, too large, too deep: nothing more can be said of it.
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
        # On malformed text the parser raises more than its own YAMLError; none of it is the user's to read.
        raise FileMistakes([*builder.findings, _syntax(error, decoded, builder)]) from error
    lines: dict[Path, int] = {(): builder.root.line if builder.root is not None else 0}
    data = None if builder.root is None else _unfold(builder.root, (), lines, builder)
    return Document(file, data, lines, tuple(builder.findings))


def read_value(text: str, label: str) -> Any:
    """The value of a ``--set K=V``: a YAML scalar, or a list in brackets. Raises FileMistakes, without lines."""
    try:
        document = read(text.encode("utf-8", "surrogateescape"), label)
        document.raise_if_any()
    except FileMistakes as error:
        raise FileMistakes(replace(finding, line=0) for finding in error.findings) from error
    return document.data
