"""``--on HOST``: the same command on another host, over SSH; its words, files, streams and exit status are as here."""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console
from testbed.cli.streams import ReaderGone
from testbed.core.units import format_size
from testbed.errors import HostError, TestbedError

if TYPE_CHECKING:
    from testbed.host.remote.departures import Departures
    from testbed.host.remote.leashed_command import WrittenFile

__all__ = ["VARIABLE", "On", "Sent", "Written", "fetch", "forward", "marks", "run", "typed_words"]

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


_SHOWN_EVERY_S = 1.0
_MOST_LISTED = 50


class Sent:
    """Marks an argument or option that may name a file here, which travels with the command. ``always``: it does
    name one, or a folder, otherwise only a file and if it is written like a path, as in the catalog of topologies.
    ``named``: the file may be an experiment, and what it names travels, too: files, or also its program's folder."""

    def __init__(self, always: bool = False, named: Literal["", "files", "all"] = "") -> None:
        self.always, self.named = always, named


class Written:
    """Marks an option that names a file which the command writes: it is here in the end. ``dash``: - is stdout."""

    def __init__(self, dash: bool = False) -> None:
        self.dash = dash


Mark: TypeAlias = Sent | Written


def marks(signature: inspect.Signature) -> dict[str, Mark]:
    """Return what is marked of a verb's parameters, by name."""
    found = {}
    for name, parameter in signature.parameters.items():
        for each in get_args(parameter.annotation)[1:]:
            if isinstance(each, Mark):
                found[name] = each
    return found


def run(
    where: str, verb: str, context: typer.Context, marks: dict[str, Mark], own_words: bool, reads_stdin: bool
) -> int:
    """Run the verb of a command line, as parsed into ``context``, on the host ``where``; return its exit status there.

    ``own_words``: the last argument is a command line of its own, in which words that name files here are sent, too.
    Raises UserError, HostError (testbed.host.remote).
    """
    from testbed.cli import browser
    from testbed.host.remote import departures, leashed_command, ssh_connection

    files = departures.Departures()
    words = [*typed_words(context, marks, own_words, files)]
    page = _page(files) if context.params.get("open_") else None
    if sent := files.sent:
        size = sum(it.here.stat().st_size for it in sent)
        console.say(f"sent to {where}: {_listed(files.named)} ({format_size(size)})", style="dim")
    transport = ssh_connection.connect(where)
    fetches: Callable[[str, Callable[[], Iterator[bytes]]], None] | None = None
    if context.params.get("detach"):
        fetches = functools.partial(_tell, where)
    elif "runs" in context.params:
        fetches = functools.partial(_fetch, where, context.params["runs"])
    lost: list[WrittenFile] = []
    try:
        request = leashed_command.Request(
            ["testbed", verb, *words],
            _environment(),
            files.sent,
            reads_stdin,
            fetches,
            written=files.written,
            folders=files.folders,
            written_arrived=functools.partial(_replace, where, lost),
        )
        status = leashed_command.run(transport, where, request)
        if page is not None and page.exists():
            browser.open_page(page)
        return HostError.exit_code if lost and status == 0 else status
    except BrokenPipeError as error:
        raise ReaderGone(str(error)) from error
    finally:
        transport.close()


def _page(files: Departures) -> Path:
    """Expect the page that the command would open there; return where it is here."""
    from testbed.core.remote.leash_frames import OPENED_PAGE
    from testbed.host.remote.leashed_command import WrittenFile

    page = Path(tempfile.mkdtemp(prefix="testbed-report-")) / "index.html"
    files.written.append(WrittenFile(page, OPENED_PAGE))
    return page


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _replace(where: str, lost: list[WrittenFile], file: WrittenFile, pieces: Iterator[bytes]) -> None:
    """Bring a file here that a command wrote; if that fails, say why, and add it to ``lost``."""
    from testbed.host.remote import arrivals

    try:
        size = arrivals.replace(pieces, file.here)
    except TestbedError as error:
        lost.append(file)
        console.error(f"{file.here} was written on {where}, and did not arrive: {error}")
    else:
        console.say(f"fetched from {where}: {file.here} ({format_size(size)})", style="dim")


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
    with console.progress() as progress:
        progress.phase("fetch", name)
        size = arrivals.unpack(_counted(pieces, progress), target)
        progress.ended("done")
    console.say(f"fetched from {where}: {target} ({format_size(size)})", style="dim")
    if store.read_state(store.RunDirectory(target)).word == "lost":
        console.say(f"{name} is lost: its process is gone; what it measured was fetched", style="yellow")
    return target


def _counted(pieces: Iterator[bytes], progress: console.Quiet) -> Iterator[bytes]:
    """Yield the pieces, and show how much has arrived."""
    size, shown_t = 0, time.monotonic()
    for piece in pieces:
        size += len(piece)
        if (now := time.monotonic()) - shown_t >= _SHOWN_EVERY_S:
            shown_t = now
            progress.doing(f"{format_size(size)} arrived")
        yield piece


def fetch(where: str, run: str, runs: Path | None) -> Path:
    """Bring a run of another host here; return where it is. Raises HostError, UserError, StorageError."""
    from testbed.host.remote import leashed_command, ssh_connection

    transport = ssh_connection.connect(where)
    try:
        return _arrive(where, runs, leashed_command.fetch(transport, where, run))
    finally:
        transport.close()


def forward(where: str, words: Sequence[str], port: int, ready: Callable[[str], None]) -> int:
    """Run a verb on another host that prints the URL of a port there, and forward a port here to that port, until the
    verb ends; return its exit status. ``ready`` is called with the URL here. Raises UserError, HostError."""
    from testbed.host.remote import forwarded_port

    return forwarded_port.run(where, ["testbed", *words], _environment(), port, ready)


def _environment() -> dict[str, str]:
    return {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}


def typed_words(context: typer.Context, marks: dict[str, Mark], own_words: bool, files: Departures) -> Iterator[str]:
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


def _sent(word: str, mark: Mark | None, files: Departures, own_word: bool) -> str:
    """Return the word as it is there: a file that travels keeps its name if it is below the current folder."""
    path = Path(word)
    if isinstance(mark, Written):
        return word if mark.dash and word == "-" else files.expect(word)
    like_path = own_word or "/" in word or path.suffix in (".yaml", ".yml", ".py")
    if mark is None or not (mark.always or like_path) or not (path.is_file() or (mark.always and path.is_dir())):
        return word
    if own_word and _is_of_the_host(path):
        return word
    return files.send_experiment(word, mark.named == "all") if mark.named else files.send(word)


def _is_of_the_host(path: Path) -> bool:
    """Tell whether a word of a command line names a program of each host, such as an interpreter: it is absolute and
    outside the current folder, or a link to an executable there, as in a virtual environment."""
    here = Path.cwd()
    if path.is_absolute() and not Path(os.path.normpath(path)).is_relative_to(here):
        return True
    return path.is_symlink() and not path.resolve().is_relative_to(here.resolve()) and os.access(path, os.X_OK)
