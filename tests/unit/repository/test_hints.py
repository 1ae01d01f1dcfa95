"""Every command that a message, a help text or a page of the documentation names is one that can be typed.

Collected from the source: no message spells a command itself, all are phrased by ``testbed.host.linux.invocation`` and
``testbed.host.installation``; and the command line's own parser accepts each of them, and those of the documentation.
What is printed is typed in ``tests/unit/host/linux/test_invocation.py``, ``tests/unit/host/test_installation.py`` and
``tests/netns/test_next_steps.py``.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from builders import ROOT

from testbed.cli import app
from testbed.core.remote.client_words import ClientWords

SOURCES = sorted((ROOT / "testbed").rglob("*.py"))
GROUP: Any = typer.main.get_command(app.app)
VERBS = tuple(GROUP.commands)

COMMAND = re.compile(rf"\btestbed ({'|'.join(VERBS)})\b|\bsudo \S|\bpip3? install\b|\bapt-get\b|scale-across-testbed\[")

PHRASED = {"testbed/host/linux/invocation.py", "testbed/host/installation.py"}

PROSE = {
    "testbed/cli/host_verbs.py": {"with the libraries that testbed validate tests"},
    "testbed/core/physics/validity.py": {"testbed show"},  # a default, for callers without a shell
    "testbed/core/plan/clab.py": {"`testbed render` prints it", "whose rates `testbed up` limits"},
    "testbed/core/plan/resources.py": {", as in: testbed render"},
    "testbed/core/prometheus/scrape_config.py": {"written by `testbed up --observe`"},
    "testbed/core/report/comparison/comparison_page.py": {"testbed report, two runs"},
    "testbed/core/report/comparison/ways_page.py": {"testbed compare"},
    "testbed/core/report/sections/fidelity_section.py": {"(testbed doctor says"},  # a page, read anywhere
    "testbed/core/report/document.py": {"Report of a testbed run, version "},
    "testbed/core/report/junit.py": {"testbed run"},
    "testbed/core/report/validation/validation_junit.py": {"testbed validate"},
    "testbed/core/report/validation/validation_page.py": {"testbed validate, suite "},
    "testbed/core/validation/result_json.py": {"Result of testbed validate, version "},
    "testbed/host/doctor/programs.py": {"it deploys the output of testbed render"},
    "testbed/host/files/validations.py": {"expected a result of testbed validate"},
}
"""Names of verbs in titles, comments of files, and sentences: nothing that anybody is told to type here."""


class Text(NamedTuple):
    """A string in a source file; ``message``: it is neither a docstring nor an example of a verb, which is phrased."""

    line: int
    value: str
    message: bool


@cache
def texts(file: Path) -> list[Text]:
    nodes: list[Any] = list(ast.walk(ast.parse(file.read_text())))
    exempt = {
        id(statement.value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    exempt |= {
        id(inner)
        for node in nodes
        if is_call(node, "verb", "examples_of") and ast.unparse(node.func.value) == "verb"
        for argument in node.args
        for inner in ast.walk(argument)
    }
    return [
        Text(node.lineno, node.value, id(node) not in exempt)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def is_call(node: Any, *methods: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods


def test_no_message_spells_a_command_itself() -> None:
    spelt = []
    for file in SOURCES:
        name = file.relative_to(ROOT).as_posix()
        spelt += [
            f"{name}:{text.line}: {text.value}"
            for text in (() if name in PHRASED else texts(file))
            if text.message and COMMAND.search(text.value)
            if not any(prose in text.value for prose in PROSE.get(name, ()))
        ]
    assert spelt == [], "phrase it by testbed.host.linux.invocation, or by testbed.host.installation"


def test_no_exemption_outlives_its_text() -> None:
    for name, texts in PROSE.items():
        for text in texts:
            assert text in (ROOT / name).read_text(), name


# ---- the parser


def parsed(line: str) -> dict[str, object]:
    """Return what the command line's own parser reads in a line. Raises click.UsageError, or KeyError for an unknown
    verb."""
    _, name, *words = shlex.split(line, comments=True)
    return dict(GROUP.commands[name].make_context(name, words).params)


def phrased() -> Iterator[tuple[str, list[str]]]:
    """Yield each command that the source phrases: where, and its words. What is known only at run time is ``x``, and
    words that may be absent are."""
    for file in SOURCES:
        source = file.read_text()
        nodes: Iterable[Any] = ast.walk(ast.parse(source)) if ".command(" in source else ()
        for node in nodes:
            if is_call(node, "command") and ast.unparse(node.func.value) in ("how", "invocation"):
                arguments = [word for word in node.args if not isinstance(word, ast.Starred)]
                words = [str(word.value) if isinstance(word, ast.Constant) else "x" for word in arguments]
                if isinstance(node.args[0], ast.Constant):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", words


COMMANDS = list(phrased())


@pytest.mark.parametrize(("place", "words"), COMMANDS, ids=[f"{place} {words[0]}" for place, words in COMMANDS])
def test_a_command_in_a_message_is_accepted_by_the_parser(place: str, words: list[str]) -> None:
    here = parsed(shlex.join(["testbed", *words]))
    client = ClientWords(("testbed",), "a host", ("--on", "a host"), ("ssh", "a host"))
    if "--on" not in words:  # one for the client names the host itself
        assert parsed(client.command(*words)) == here | {"on": "a host"}, "and for the client of another host"


def test_the_source_phrases_commands_of_most_verbs() -> None:
    """The collection above finds something."""
    assert len(COMMANDS) >= 30
    assert {words[0] for _, words in COMMANDS} >= {
        "up",
        "down",
        "run",
        "heal",
        "certify",
        "ls",
        "logs",
        "image",
        "launch",
    }
    with pytest.raises(Exception, match="Missing parameter: topology"):
        parsed("testbed up --observe")


# ---- documentation


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def typed_in(page: Path) -> Iterator[str]:
    """Yield the command lines of the testbed in a page's blocks of code, and those that are whole in its tables."""
    text = page.read_text()
    lines = [
        line
        for block in re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    lines += re.findall(r"`((?:sudo )?\.venv/bin/testbed [^`]*)`", text)
    for line in lines:
        typed = re.match(rf"(?:[$#] |- run: )?(?:sudo )?(?:\S*/)?testbed ((?:{'|'.join(VERBS)})\b.*)", line.strip())
        if typed and not re.search(r"[…|]|\$\{|\\$", typed[1]):
            yield f"testbed {typed[1]}"


DOCUMENTED = [pytest.param(page, line, id=f"{page.name}: {line}") for page in pages() for line in typed_in(page)]


@pytest.mark.parametrize(("page", "line"), DOCUMENTED)
def test_a_command_of_the_documentation_is_accepted_by_the_parser(page: Path, line: str) -> None:
    parsed(line)


def test_the_documentation_has_commands() -> None:
    assert len(DOCUMENTED) >= 60


def test_faults_in_the_guide_are_in_the_words_that_are_printed() -> None:
    """What a user sees, in backticks, occurs in the source; a part that differs between users is ``…`` there."""
    files = (*SOURCES, *(ROOT / "agents").rglob("*.py"), ROOT / "hatch_build.py")
    printed = "\0".join(text.value for file in files for text in texts(file))
    table = (ROOT / "docs" / "guide.md").read_text().partition("## Troubleshooting")[2]
    seen = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ") and "you see" not in row]
    assert len(seen) >= 8
    for row in seen:
        for text in re.findall(r"`([^`]+)`", row):
            for part in re.split(r"…|, |\b\d+\b|(?= is missing)", text):
                assert part.strip(" ,;") in printed, (text, part)


def test_examples_name_what_they_need() -> None:
    """`make demo` installs no pytest, so the page says how; with the project's own requirement."""
    text = (ROOT / "examples" / "README.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (requirement,) = extras["pytest"]
    assert not any(name.startswith("pytest") for name in extras["agents"]), "what make demo installs"
    install = text.find(f".venv/bin/python -m pip install '{requirement}'")
    assert 0 < install < text.find("-m pytest examples/pytest_suite")
