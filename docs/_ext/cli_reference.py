"""Sphinx extension: write the reference of the command line from the command line itself.

A page that has the line ``<!-- verbs -->`` gets, in place of it, one section per verb of ``testbed``: its help, its
arguments and options with their defaults and environment variables, and its examples. The source is the Click command
that Typer builds, so that the page and ``testbed VERB --help`` cannot differ.
"""

from __future__ import annotations

import enum
import re
import typing
from typing import Any, Final

import typer
from rich.text import Text
from sphinx.application import Sphinx

from testbed.cli.app import app as testbed

PLACE: Final = "<!-- verbs -->"
WORDED_DEFAULT: Final = re.compile(r"(.*?)(?: \(default: (.*)\)(\.))?$")
"""Help text, the default that it ends with where that is no value, ``(default: the latest).``, and the full stop."""


def reference() -> str:
    """Return the reference of all verbs as Markdown, by panel, in the order of ``testbed --help``."""
    group: Any = typer.main.get_command(testbed)
    lines = ["## Options of `testbed` itself", "", "`-q` and `-v` may also follow the verb.", ""]
    lines += [*options(group.params), ""]
    shared = {tuple(each.opts) for each in group.params}
    panel = None
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            lines += [f"## {panel}", ""]
        lines += section(name, command, [each for each in command.params if tuple(each.opts) not in shared])
    return "\n".join(lines)


def section(name: str, command: Any, parameters: list[Any]) -> list[str]:
    """Return the lines of one verb; ``parameters`` are those that it does not share with all verbs."""
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    usage = " ".join(["testbed", name, "[OPTIONS]", *(shown(each) for each in arguments)])
    lines = [f"### `testbed {name}`", "", "```text", usage, "```", "", prose(command.help or ""), ""]
    explained = [each for each in arguments if getattr(each, "help", None)]
    if explained:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| {code(shown(each))} | {cell(each.help)} |" for each in explained]
        lines += [""]
    lines += [*options(parameters), ""]
    examples = plain(command.epilog or "").splitlines()[1:]
    if examples:
        lines += ["```console", *(f"$ {line.strip()}" for line in examples), "```", ""]
    return lines


def options(parameters: list[Any]) -> list[str]:
    """Return the table of the options among ``parameters``; nothing where there are none."""
    rows = [row(each) for each in parameters if each.param_type_name == "option" and not each.hidden]
    return ["| option | default | meaning |", "|---|---|---|", *rows] if rows else []


def row(option: Any) -> str:
    """Return one option's row: its spellings and value, its default, its help and its environment variable."""
    value = "" if option.is_flag else f" {values(option)}"
    names = ", ".join(code(name + value) for name in sorted(option.opts, key=len, reverse=True))
    names += "".join(f" / {code(name)}" for name in option.secondary_opts)
    meaning, worded_default, stop = WORDED_DEFAULT.match(" ".join((option.help or "").split())).groups()  # type: ignore[union-attr]
    meaning = prose(meaning + (stop or ""))
    if option.envvar:
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar
        meaning += " Environment: " + ", ".join(code(each) for each in variables) + "."
    return f"| {names} | {prose(worded_default) if worded_default else default(option)} | {meaning} |"


def default(option: Any) -> str:
    """Return the default as it is typed; empty where there is none."""
    value = option.default
    if value in (None, "", (), []) or callable(value):
        return ""
    if option.is_flag:
        return code((option.opts if value else option.secondary_opts)[0]) if option.secondary_opts else ""
    return code(str(getattr(value, "value", value)))


def values(option: Any) -> str:
    """Return the placeholder for an option's value: as the option names it, its choices, or its type."""
    if option.metavar:
        return str(option.metavar)
    if hasattr(option, "type"):
        return "|".join(getattr(option.type, "choices", ())) or str(option.type.name).upper()
    found = option.type_descriptor.annotation  # Typer's own copy of Click keeps the annotation, Click has a type
    found = next(iter(each for each in typing.get_args(found) if each is not type(None)), found)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return "|".join(str(each.value) for each in found)
    return str(getattr(found, "__name__", found)).upper()


def shown(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def plain(markup: str) -> str:
    """Return rich's console markup without its tags."""
    return Text.from_markup(markup).plain


def prose(text: str) -> str:
    """Return help text as Markdown: placeholders and options in it are code, nothing else is markup."""
    text = text.replace(r"\[", "[")
    text = re.sub(r"[\\*_<>|]", lambda found: "\\" + found[0], text)
    return re.sub(r"(?<![\w`-])(--?[a-z][a-z-]*|\$[A-Z_]+|testbed (?:[a-z]+)(?: [a-z]+)?(?=[);.]))", r"`\1`", text)


def cell(text: str) -> str:
    return prose(" ".join(text.split()))


def code(text: str) -> str:
    """Return text as code in a table's cell."""
    return "`" + text.replace("|", r"\|") + "`"


def insert(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the reference in its place, before the page is parsed."""
    if PLACE in source[0]:
        source[0] = source[0].replace(PLACE, reference())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
