"""``--on HOST``: the same command on another host, over SSH; its words, files, streams and exit status are as here."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console
from testbed.cli.streams import ReaderGone
from testbed.core.units import format_size
from testbed.errors import HostError, TestbedError

if TYPE_CHECKING:
    from testbed.host.remote.leashed_command import SentFile

__all__ = ["VARIABLE", "On", "Sent", "fetch", "marks", "run", "typed_words"]

VARIABLE = "TESTBED_ON"

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HOST",
        envvar=VARIABLE,
        help="Do this on another host, over SSH: whatever ssh HOST takes.",
        show_default=False,
    ),
]

_ENVIRONMENT = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TZ", "LANG", "LC_ALL")
"""What decides how output looks, and travels with a command."""


class Sent:
    """Marks an argument or option that may name a file here, which travels with the command. ``always``: it does
    name one, otherwise only if it is written like a path, as in the catalog of topologies."""

    def __init__(self, always: bool = False) -> None:
        self.always = always


def marks(signature: inspect.Signature) -> dict[str, Sent]:
    """Return what is marked of a verb's parameters, by name."""
    found = {}
    for name, parameter in signature.parameters.items():
        for each in get_args(parameter.annotation)[1:]:
            if isinstance(each, Sent):
                found[name] = each
    return found


def run(
    where: str, verb: str, context: typer.Context, marks: dict[str, Sent], own_words: bool, reads_stdin: bool
) -> int:
    """Run the verb of a command line, as parsed into ``context``, on the host ``where``; return its exit status there.

    ``own_words``: the last argument is a command line of its own, in which words that name files here are sent, too.
    Raises UserError, HostError (testbed.host.remote).
    """
    from testbed.host.remote import leashed_command, ssh_connection

    files: list[SentFile] = []
    words = [*typed_words(context, marks, own_words, files)]
    if files:
        size = sum(it.here.stat().st_size for it in files)
        console.say(f"sent to {where}: {', '.join(str(it.here) for it in files)} ({format_size(size)})", style="dim")
    environment = {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}
    transport = ssh_connection.connect(where)
    fetches: Callable[[str, Callable[[], Iterator[bytes]]], None] | None = None
    if context.params.get("detach"):
        fetches = functools.partial(_tell, where)
    elif "runs" in context.params:
        fetches = functools.partial(_fetch, where, context.params["runs"])
    try:
        request = leashed_command.Request(["testbed", verb, *words], environment, files, reads_stdin, fetches)
        return leashed_command.run(transport, where, request)
    except BrokenPipeError as error:
        raise ReaderGone(str(error)) from error
    finally:
        transport.close()


def _fetch(where: str, runs: Path | None, path: str, pieces: Callable[[], Iterator[bytes]]) -> None:
    """Bring a run here that a command made; say where it is, or why it stays there."""
    try:
        _arrive(where, runs, pieces())
    except TestbedError as error:
        console.error(f"{error}; the run is on {where}: {path}")


def _tell(where: str, path: str, _: Callable[[], Iterator[bytes]]) -> None:
    """Say how to bring a run here that goes on there without this client."""
    how = invocation.command("fetch", Path(path).name, "--on", where, root=False)
    console.say(f"it goes on there without this client; once it has ended: {how}", style="cyan")


def _arrive(where: str, runs: Path | None, pieces: Iterator[bytes]) -> Path:
    """Make a run directory of pieces, below ``runs`` or the usual folder, and say where it is."""
    from testbed.host.files import runs_folder, store
    from testbed.host.remote import arrivals

    name = next(pieces, b"").decode(errors="replace")
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise HostError(f"{where}: refused: a run named {name[:100]!r}")
    target = (runs.absolute() if runs else runs_folder.runs_root()) / name
    size = arrivals.unpack(pieces, target)
    console.say(f"fetched from {where}: {target} ({format_size(size)})", style="dim")
    if store.read_state(store.RunDirectory(target)).word == "lost":
        console.say(f"{name} is lost: its process is gone; what it measured was fetched", style="yellow")
    return target


def fetch(where: str, run: str, runs: Path | None) -> Path:
    """Bring a run of another host here; return where it is. Raises HostError, UserError, StorageError."""
    from testbed.host.remote import leashed_command, ssh_connection

    transport = ssh_connection.connect(where)
    try:
        return _arrive(where, runs, leashed_command.fetch(transport, where, run))
    finally:
        transport.close()


def typed_words(
    context: typer.Context, marks: dict[str, Sent], own_words: bool, files: list[SentFile]
) -> Iterator[str]:
    """Yield the words that were typed, options first, as this command's parser understood them."""
    arguments: list[str] = []
    last_argument = [it for it in context.command.params if it.param_type_name == "argument"][-1:]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = getattr(context.get_parameter_source(name), "name", "")
        # Of the environment only the lab's name: the others are folders of this host.
        if name in ("on", "runs") or not (source == "COMMANDLINE" or (source == "ENVIRONMENT" and name == "lab")):
            continue
        value: Any = context.params[name]
        many = list(value) if isinstance(value, (list, tuple)) else [value]
        if parameter.param_type_name == "argument":
            last = own_words and parameter in last_argument
            arguments += [_sent(str(each), Sent() if last else marks.get(name), files, last) for each in many]
        else:
            flag = (parameter.opts if value is not False else parameter.secondary_opts or parameter.opts)[0]
            for each in many:
                yield flag
                if not getattr(parameter, "is_flag", False):
                    yield _sent(str(each), marks.get(name), files, False)
    yield "--"
    yield from arguments


def _sent(word: str, mark: Sent | None, files: list[SentFile], own_word: bool) -> str:
    """Return the word as it is there: a file that is sent keeps its name if it is below the current folder."""
    from testbed.host.remote.leashed_command import SentFile

    path = Path(word)
    like_path = own_word or "/" in word or path.suffix in (".yaml", ".yml")
    if mark is None or not (mark.always or like_path) or not path.is_file():
        return word
    inside = not path.is_absolute() and ".." not in path.parts
    there = str(Path("here") / path) if inside else str(Path("there") / path.resolve().relative_to("/"))
    if there not in {it.there for it in files}:
        files.append(SentFile(path, there))
    return word if inside else f"{{folder}}/{there}"
