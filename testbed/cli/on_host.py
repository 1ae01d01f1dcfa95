"""``--on HOST``: the same command on another host, over SSH; its words, files, streams and exit status are as here."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console
from testbed.cli.streams import ReaderGone
from testbed.core.units import format_size
from testbed.errors import HostError, Interrupted, TestbedError

if TYPE_CHECKING:
    from testbed.core.remote.client_words import ClientWords
    from testbed.host.remote.departures import Departures
    from testbed.host.remote.leashed_command import WrittenFile

__all__ = [
    "VARIABLE",
    "On",
    "Sent",
    "Written",
    "chosen",
    "client_words",
    "fetch",
    "forward",
    "marks",
    "run",
    "source",
    "typed_words",
]

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


_named: ContextVar[bool] = ContextVar("named", default=False)
"""Whether the command line names the other host, so that commands which are typed next have to."""


def source(context: Any, parameter: str) -> str:
    """Return where a parameter's value is from, as click calls it: ``COMMANDLINE``, ``ENVIRONMENT``, ``DEFAULT``."""
    return getattr(context.get_parameter_source(parameter), "name", "")


def chosen(context: typer.Context, on: str | None) -> str | None:
    """Return the other host, if there is one: of ``--on`` after the verb, else before it, else of $TESTBED_ON."""
    levels = [(context, on), *([(context.parent, context.obj)] if context.parent is not None else [])]
    for level, host in levels:
        if host and source(level, "on") == "COMMANDLINE":
            _named.set(True)
            return str(host)
    _named.set(False)
    return on or context.obj


def client_words(where: str, names: Mapping[str, str] | None = None) -> ClientWords:
    """Return how the testbed is called here, for hints of a command on the host ``where``.

    ``names``: words that were typed for files that travel, by their paths below the folder there.
    """
    from testbed.core.remote.client_words import ClientWords
    from testbed.host.remote import ssh_connection

    how = invocation.current()
    by_sudo = os.geteuid() == 0 and how.become == ("sudo",)  # whose keys are root's
    typed = list(how.typed or ())
    if _named.get() and (option := [word for word in typed if word == "--on" or word.startswith("--on=")]):
        position = typed.index(option[0])
        del typed[position : position + (2 if option[0] == "--on" else 1)]
    return ClientWords(
        program=("sudo", *how.program_as_root) if by_sudo else how.program,
        host=where,
        on=("--on", where) if _named.get() else (),
        ssh=("ssh", *(("-F", config) if (config := ssh_connection.configuration()) else ()), where),
        typed=tuple(typed) if how.typed is not None else None,
        names=names or {},
    )


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
    return {
        name: mark
        for name, parameter in signature.parameters.items()
        for mark in get_args(parameter.annotation)[1:]
        if isinstance(mark, Mark)
    }


def run(
    where: str, verb: str, context: typer.Context, marks: dict[str, Mark], own_words: bool, reads_stdin: bool
) -> int:
    """Run the verb of a command line, as parsed into ``context``, on the host ``where``; return its exit status there.

    ``own_words``: the last argument is a command line of its own, in which words that name files here are sent, too.
    Raises UserError, HostError (testbed.host.remote).
    """
    from testbed.host.remote import departures, leashed_command, ssh_connection

    files = departures.Departures()
    names: dict[str, str] = {}
    arguments = [*typed_words(context, marks, own_words, files, names)]
    size = files.size()
    transport = ssh_connection.connect(where)
    if files.sent:
        console.say(f"sent to {where}: {_listed(files.named)} ({format_size(size)})", style="dim")
    page = _page(files) if context.params.get("open_") else None
    lost: list[WrittenFile | str] = []
    fetches: Callable[[str, Callable[[], Iterator[bytes]]], None] | None = None
    if context.params.get("detach"):
        named = source(context, "runs") == "COMMANDLINE"
        fetches = functools.partial(_tell, where, context.params["runs"] if named else None)
    elif "runs" in context.params:
        fetches = functools.partial(_fetch, where, context.params["runs"], lost)
    # What takes a run in is imported while the command runs there.
    ready = threading.Thread(target=importlib.import_module, args=("testbed.host.files.store",), daemon=True)
    try:
        if "runs" in context.params and not context.params.get("detach"):
            ready.start()
        request = leashed_command.Request(
            ["testbed", verb, *arguments],
            _environment(client_words(where, names)),
            files.sent,
            reads_stdin,
            fetches,
            written=files.written,
            folders=files.folders,
            written_arrived=functools.partial(_replace, where, lost),
            verb=verb,
        )
        with _sending(where, size) as request.sending:
            status = leashed_command.run(transport, where, request)
        if page is not None and page.exists():
            console.open_page(page)
        return HostError.exit_code if lost and status == 0 else status
    except BrokenPipeError as error:
        raise ReaderGone(str(error)) from error
    finally:
        transport.close()
        if page is not None and not page.exists():
            with contextlib.suppress(OSError):
                page.parent.rmdir()
        if ready.is_alive():
            ready.join()  # Python must not end in the middle of an import


@contextlib.contextmanager
def _sending(where: str, size: int) -> Iterator[Callable[[int], None]]:
    """Provide what is told how many bytes have been sent, and shows it once that takes longer than a second."""
    with contextlib.ExitStack() as opened:
        shown_t, progress = time.monotonic(), None

        def tell(sent: int) -> None:
            nonlocal shown_t, progress
            now = time.monotonic()
            if sent >= size:
                opened.close()
            elif now - shown_t >= _SHOWN_EVERY_S:
                shown_t = now
                if progress is None:
                    progress = opened.enter_context(console.progress())
                    progress.phase("send", where)
                progress.doing(f"{format_size(sent)} of {format_size(size)}")

        yield tell


def _page(files: Departures) -> Path:
    """Expect the page that the command would open there; return where it is here."""
    from testbed.core.remote.leash_frames import OPENED_PAGE
    from testbed.host.remote.leashed_command import WrittenFile

    page = Path(tempfile.mkdtemp(prefix="testbed-report-")) / "index.html"
    files.written.append(WrittenFile(page, OPENED_PAGE))
    return page


def _listed(names: Sequence[str]) -> str:
    others = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + others


def _replace(where: str, lost: list[WrittenFile | str], file: WrittenFile, pieces: Iterator[bytes]) -> None:
    """Bring a file here that a command wrote; if that fails, say why, and add it to ``lost``."""
    from testbed.host.remote import arrivals

    try:
        size = arrivals.replace(pieces, file.here)
    except TestbedError as error:
        lost.append(file)
        console.error(f"{file.here} was written on {where}, and did not arrive: {error}")
    else:
        console.say(f"fetched from {where}: {file.here} ({format_size(size)})", style="dim")


def _fetch(
    where: str,
    runs: Path | None,
    lost: list[WrittenFile | str],
    path: str,
    pieces: Callable[[], Iterator[bytes]],
) -> None:
    """Bring a run here that a command made; say where it and its report are. If that fails, say why, and add it to
    ``lost``."""
    from testbed.core.user_text import printable

    try:
        page = _arrive(where, runs, pieces()) / "index.html"
    except Interrupted as error:
        raise Interrupted(f"interrupted; the run is on {where}: {path}") from error
    except TestbedError as error:
        lost.append(path)
        console.error(f"{error}; the run is on {where}: {printable(path)}")
        return
    if page.exists():
        console.say(f"its report here: {page}", style="cyan")


def _tell(where: str, runs: Path | None, path: str, _: Callable[[], Iterator[bytes]]) -> None:
    """Say how to bring a run here, into the folder of runs that was named, that goes on there without this client."""
    how = client_words(where).command("fetch", *(("--runs", str(runs)) if runs else ()), Path(path).name)
    console.say(f"it goes on there without this client; once it has ended: {how}", style="cyan")


def _arrive(where: str, runs: Path | None, pieces: Iterator[bytes]) -> Path:
    """Make a run directory of pieces, below ``runs`` or the usual folder, and say where it is."""
    from testbed.host.files import runs_folder, store
    from testbed.host.remote import arrivals
    from testbed.lab import interruption

    name = next(pieces, b"").decode(errors="replace")
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise HostError(f"{where}: refused: a run named {name[:100]!r}")
    target = (runs.absolute() if runs else runs_folder.runs_root()) / name
    with interruption.interruptible(), console.progress() as progress:
        progress.phase("fetch", name)
        size = arrivals.unpack(_counted(pieces, progress), target)
        progress.ended("done")
    console.say(f"fetched from {where}: {target} ({format_size(size)})", style="dim")
    if log := store.detached_log(store.RunDirectory(target)):
        console.say(f"its output there: {log}", style="dim")
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


def forward(where: str, arguments: Sequence[str], port: int, ready: Callable[[str], None]) -> int:
    """Run a verb on another host that prints the URL of a port there, and forward a port here to that port, until the
    verb ends; return its exit status. ``ready`` is called with the URL here. Raises UserError, HostError."""
    from testbed.host.remote import forwarded_port

    return forwarded_port.run(where, ["testbed", *arguments], _environment(client_words(where)), port, ready)


def _environment(client: ClientWords) -> dict[str, str]:
    from testbed.core.remote.client_words import VARIABLE as CLIENT_WORDS

    shown = {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}
    # A choice of that host's own does not lead on to a third one.
    return {**shown, VARIABLE: "", CLIENT_WORDS: client.encoded()}


def typed_words(
    context: typer.Context,
    marks: dict[str, Mark],
    own_words: bool,
    files: Departures,
    names: dict[str, str] | None = None,
) -> Iterator[str]:
    """Yield the words that were typed, options first, as this command's parser understood them.

    Add to ``names`` those that are other ones there, by their paths below the folder of the command.
    """

    def sent(word: str, mark: Mark | None, own_word: bool) -> str:
        there = _sent(word, mark, files, own_word)
        if there != word and names is not None:
            names[there.removeprefix("{folder}/")] = word
        return there

    arguments: list[str] = []
    last_argument = [option for option in context.command.params if option.param_type_name == "argument"][-1:]
    for parameter in context.command.params:
        name = str(parameter.name)
        origin = source(context, name)
        # Of the environment only the lab's name: the others are folders of this host.
        if name in ("on", "runs") or not (origin == "COMMANDLINE" or (origin == "ENVIRONMENT" and name == "lab")):
            continue
        value: Any = context.params[name]
        texts = list(map(str, value)) if isinstance(value, (list, tuple)) else [str(value)]
        if parameter.param_type_name == "argument":
            last = own_words and parameter in last_argument
            arguments += [sent(text, Sent() if last else marks.get(name), last) for text in texts]
        else:
            flag = (parameter.opts if value is not False else parameter.secondary_opts or parameter.opts)[0]
            for text in texts:
                yield flag
                if not getattr(parameter, "is_flag", False):
                    yield sent(text, marks.get(name), False)
    yield "--"
    yield from arguments


def _sent(word: str, mark: Mark | None, files: Departures, own_word: bool) -> str:
    """Return the word as it is there: a file that travels keeps its name if it is below the current folder."""
    path = Path(word)
    if isinstance(mark, Written):
        return word if mark.dash and word == "-" else files.expect(word)
    like_path = own_word or "/" in word or path.suffix in (".yaml", ".yml", ".py")
    if mark is None or not (mark.always or like_path) or not (_is_file(path) or (mark.always and path.is_dir())):
        return word
    if own_word and _is_of_the_host(path):
        return word
    return files.send_experiment(word, mark.named == "all") if mark.named else files.send(word)


def _is_file(path: Path) -> bool:
    """Whether a word names a file; one that is too long for a name, such as a script, does not."""
    try:
        return path.is_file()
    except OSError:
        return False


def _is_of_the_host(path: Path) -> bool:
    """Tell whether a word of a command line names a program of each host, such as an interpreter: it is absolute and
    outside the current folder, or a link to an executable there, as in a virtual environment."""
    here = Path.cwd()
    if path.is_absolute() and not Path(os.path.normpath(path)).is_relative_to(here):
        return True
    return path.is_symlink() and not path.resolve().is_relative_to(here.resolve()) and os.access(path, os.X_OK)
