"""What a verb is: its registration, common options, ``--on``, printed result, and exit status."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

import testbed.host.linux.invocation as invocation
from testbed.cli import console, on_host, streams
from testbed.cli.console import Note, Shown
from testbed.cli.options import Converted, OptionGroup, Quiet, Verbose
from testbed.cli.streams import OutputError, ReaderGone
from testbed.errors import (
    CannotStart,
    FidelityError,
    Interrupted,
    LabBusy,
    NoisyHost,
    ProgramBarred,
    TestbedError,
    UserError,
)

if TYPE_CHECKING:
    from testbed.lab.lab import Lab

app = typer.Typer(
    name="testbed",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

RUNS, LABS, FAULTS, LOOK = PANELS = ("Run jobs", "Labs", "Faults in a running lab", "Files and this host")
"""Headings of ``testbed --help``, in the order shown."""

_running: ContextVar[str] = ContextVar("verb", default="")
"""The name of the verb that runs."""

_WIDTH = 80
"""Columns of a terminal that is not wide."""

BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of stdout has closed it. Not 1, which means that something was measured and is bad."""


@dataclass(frozen=True)
class Result:
    """What a verb returns, for :func:`show` to print.

    Attributes:
        data: returns what ``--json`` prints in place of everything else; called only then.
        tables: results in order, on stdout; each :class:`console.Note` among them goes to stderr.
        status: exit status.
        lead: printed before the tables. With ``-q`` a result that has a lead is printed without its tables.
        tail: printed after the tables, also with ``-q``.
        notes: printed last, on stderr, also with ``--json``.
    """

    data: Callable[[], object]
    tables: Iterable[Shown] = ()
    status: int = 0
    lead: Iterable[Shown] = ()
    tail: Iterable[Shown] = ()
    notes: Iterable[Note] = ()


Verb = Callable[..., Result | int | None]


def show(result: Result, as_json: bool) -> int:
    """Print a result; return its exit status."""
    lead = list(result.lead)
    parts = (lead, () if lead and console.quiet() else result.tables, result.tail)
    if as_json:
        console.show_json(result.data())
    for part in (*(() if as_json else parts), result.notes):
        for shown in part:
            console.show(shown)
    return result.status


@dataclass(frozen=True)
class _Conduct:
    """How the command of a verb acts; see :func:`verb`."""

    own_status: int | None
    passes_on_arguments: bool
    reads_stdin: bool


_conducts: dict[str, _Conduct] = {}


def verb(
    panel: str,
    *examples: str,
    own_status: int | None = None,
    passes_on_arguments: bool = False,
    reads_stdin: bool = False,
) -> Callable[[Verb], Verb]:
    """Register a function as the verb of its name: its parameters are the verb's own, :func:`_common` are added.

    A function with a parameter ``on`` runs here with ``--on``, and gets the host; any other verb runs on that host.

    Args:
        panel: heading in ``testbed --help``.
        examples: command lines shown at the end of the verb's help; ``#`` begins a comment.
        own_status: exit status for errors of the testbed itself, in verbs that otherwise pass on a child's status.
        passes_on_arguments: all words after the first positional argument belong to the child, options included.
        reads_stdin: stdin is the child's.
    """

    def register(function: Verb) -> Verb:
        name = function.__name__.strip("_").replace("_", "-")
        _conducts[name] = _Conduct(own_status, passes_on_arguments, reads_stdin)
        app.command(
            name=name,
            cls=VerbCommand,
            rich_help_panel=panel,
            help=_reflowed(function.__doc__ or ""),
            epilog=examples_of("Examples", examples),
            context_settings={"allow_interspersed_args": False} if passes_on_arguments else {},
        )(_without_groups(function))
        return function

    return register


def _without_groups(function: Verb) -> Verb:
    """Return the function as typer reads it: a parameter that is a group of options stands for its fields."""
    kinds = {name: function.__globals__.get(kind) for name, kind in function.__annotations__.items()}
    groups = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, OptionGroup)}
    if not groups:
        return function

    def ungrouped(**arguments: Any) -> Result | int | None:
        for name, group in groups.items():
            arguments[name] = group(**{option: arguments.pop(option) for option in inspect.signature(group).parameters})
        return function(**arguments)

    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        group = groups.get(parameter.name)
        options += [parameter] if group is None else inspect.signature(group, eval_str=True).parameters.values()
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    ungrouped.__dict__["__signature__"] = inspect.Signature(options)
    ungrouped.__annotations__ = {option.name: option.annotation for option in options}
    return ungrouped


@functools.cache
def _common() -> tuple[Any, ...]:
    """Return the parameters that all verbs have."""
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def common(quiet: Quiet = False, verbose: Verbose = False, on: on_host.On = None) -> None:
        pass

    return tuple(typer.main.get_command(alone).params)


class VerbCommand(TyperCommand):
    """The command of a verb: adds the common options, runs the verb here or on the host of ``--on``, prints its result,
    and exits."""

    def __init__(self, name: str, *, params: Sequence[Any], **settings: Any) -> None:
        self._own = {str(parameter.name) for parameter in params}
        own = [parameter for parameter in params if parameter.name != "on"]
        super().__init__(name, params=[*own, *_common()], **settings)

    @functools.cached_property
    def marks(self) -> dict[str, on_host.Mark]:
        """What is marked of the verb's parameters."""
        assert self.callback is not None
        return on_host.marks(inspect.signature(inspect.unwrap(self.callback), eval_str=True))

    def invoke(self, ctx: Any) -> None:
        """Run the verb, and exit with its status."""
        name, parameters = str(self.name), ctx.params
        conduct, on = _conducts[name], parameters["on"]
        console.configure(quiet=parameters["quiet"], verbose=parameters["verbose"])
        _running.set(name)
        if "" in (on, ctx.obj):  # an empty variable of a script must not mean this host
            raise typer.Exit(guarded(_refuse_no_host, conduct.own_status))
        if parameters.get("strict") and parameters.get("allow_uncertified"):
            raise typer.Exit(guarded(_refuse_both))  # exit status 2 in every command
        host = on_host.chosen(ctx, on)
        if host and "on" not in self._own:
            there = functools.partial(
                on_host.run, host, name, ctx, self.marks, conduct.passes_on_arguments, conduct.reads_stdin
            )
            raise typer.Exit(guarded(there, conduct.own_status))
        arguments = {name: _plain(value) for name, value in {**parameters, "on": host}.items() if name in self._own}
        raise typer.Exit(guarded(functools.partial(self._run_here, ctx, arguments), conduct.own_status))

    def _run_here(self, ctx: Any, arguments: dict[str, Any]) -> int | None:
        result: Result | int | None = ctx.invoke(self.callback, **arguments)
        return show(result, arguments.get("as_json", False)) if isinstance(result, Result) else result


def _plain(value: object) -> object:
    return value.value if isinstance(value, Converted) else value


def _refuse_no_host() -> None:
    raise UserError("--on: expected a host as ssh takes it, got ''; leave --on out to act on this host")


def _refuse_both() -> None:
    from testbed.core.certification import admission

    admission.refuse_both(strict=True, allow_uncertified=True)


def _reflowed(docstring: str) -> str:
    """Join the lines of each paragraph; line breaks are for readers of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(docstring).split("\n\n"))


def examples_of(title: str, examples: Sequence[str]) -> str:
    """Return command lines under a heading, as they are typed here; ``#`` begins a comment."""
    lines: list[str] = []
    how = invocation.current()
    for example in examples:
        typed, _, comment = (part.strip() for part in example.partition("#"))
        shown = how.line(typed.removeprefix(f"{invocation.NAME} "))
        width = len(example.partition("#")[0]) - 1
        if not comment:
            lines.append(shown)
        elif len(shown) <= width or len(shown) + len(comment) + 5 <= _WIDTH:
            lines.append(f"{shown:<{width}} # {comment}")
        else:  # called by a path, which leaves no room
            lines += [f"# {comment}:", shown]
    return "\n".join([f"[bold]{title}[/bold]", *(f"  [cyan]{_escaped(line)}[/cyan]" for line in lines)])


def _escaped(line: str) -> str:
    return line.replace("[", r"\[")


def guarded(work: Callable[[], int | None], own_status: int | None = None) -> int:
    """Call ``work`` and return its exit status; report a failure as a message on stderr.

    ``own_status`` replaces the status of a :class:`TestbedError` and of a bug; Ctrl-C is 130 in any case, 2 is a
    program that its user cannot run (ProgramBarred) or a lab that runs another job (LabBusy), and 126 or 127 a program
    that cannot be started (CannotStart).
    """
    try:
        return work() or 0
    except KeyboardInterrupt:
        console.error("interrupted")
        return Interrupted.exit_code
    except ReaderGone:
        streams.discard_output()
        return BROKEN_PIPE
    except TestbedError as error:
        if isinstance(error, OutputError):
            streams.discard_output()
        if console.verbose():
            sys.stderr.write(traceback.format_exc())
        if isinstance(error, FidelityError | NoisyHost):
            _show_refused(error.certificate, error.scale)
        console.error(str(error) or type(error).__name__)
        if own_status is not None and isinstance(error, CannotStart):
            return error.status
        if own_status is None or isinstance(error, Interrupted | LabBusy | ProgramBarred):
            return error.exit_code
        return own_status
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not _has_current_directory():
            console.error("the current directory no longer exists; cd to an existing one")
            return UserError.exit_code if own_status is None else own_status
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # only a user's word is that long
            from testbed.core.user_text import shown

            console.error(f"file name too long: {shown(str(error.filename))}")
            return UserError.exit_code if own_status is None else own_status
        _report_bug(error)
        return TestbedError.exit_code if own_status is None else own_status


def _show_refused(certificate: object, scale: float) -> None:
    """Show the measurement for which a lab was refused, if there is one."""
    from testbed.cli import certificate_table
    from testbed.core.certification.certificate import Certificate

    if not isinstance(certificate, Certificate):
        return
    shown = certificate_table.refused(certificate)
    if shown.rows:  # none if only the noise of the host was refused
        console.err().print(shown)
    console.say(certificate_table.footnote(certificate, scale), style="dim")


def _has_current_directory() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (asks the kernel; pathlib may not)
    except FileNotFoundError:
        return False
    return True


def _report_bug(error: Exception) -> None:
    trace = traceback.format_exc()
    if console.verbose():
        sys.stderr.write(trace)
    short = f"this is a bug in the testbed: {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="testbed-bug-", suffix=".txt", delete=False
        ) as file:
            file.write(" ".join(sys.argv) + "\n\n" + trace)
        console.error(f"{short}; the traceback is in {file.name}")
    except OSError:
        console.error(f"{short}; -v shows the traceback")


def attach(name: str | None) -> Lab:
    """Return the lab of ``-l``, of $TESTBED_LAB, or the only one that is up, to look at it."""
    from testbed.lab import api

    return api.attach(name or None, changes=False)


def attach_to_change(name: str | None) -> Lab:
    """Return the lab of ``-l``, of $TESTBED_LAB, or the only one that is up if the same user brought it up.

    Say so where another user or another login session did.
    """
    from testbed.lab import api

    lab = api.attach(name or None, changes=True, command=_naming)
    say_whose(lab.name)
    return lab


def say_whose(lab: str) -> None:
    """Say who brought a lab up, if it was not this login session."""
    from testbed.lab import api

    if line := api.strangers(lab):
        console.say(line, style="yellow")


def _naming(lab: str) -> str:
    """Return the command line as typed, with the lab; ``-l`` comes first, as the rest may belong to a child."""
    name, typed = _running.get(), list(invocation.current().typed or sys.argv[1:])
    after = typed[typed.index(name) + 1 :] if name in typed else ["..."]
    return invocation.command(name, "-l", lab, *after)
