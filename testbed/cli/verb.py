"""Common parts of all verbs: registration, ``-q`` and ``-v``, exit codes of errors, options shared by several verbs."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, on_host, streams
from testbed.cli.on_host import Sent
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

Verb = Callable[..., int | None]

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


def verb(
    panel: str,
    *examples: str,
    own_status: int | None = None,
    passes_on_arguments: bool = False,
    reads_stdin: bool = False,
    acts_here: bool = False,
) -> Callable[[Verb], Verb]:
    """Register a function as the verb of its name; its return value is the exit status (None: 0).

    A parameter that is a dataclass stands for the options that are its fields (``run_options.py``).

    Args:
        panel: heading in ``testbed --help``.
        examples: command lines shown at the end of the verb's help; ``#`` begins a comment.
        own_status: exit status for errors of the testbed itself, in verbs that otherwise pass on a child's status.
        passes_on_arguments: all words after the first positional argument belong to the child, options included.
        reads_stdin: stdin is the child's.
        acts_here: with ``--on`` the function runs here, and gets the host as its argument ``on``.
    """

    def register(function: Verb) -> Verb:
        signature = inspect.signature(function, eval_str=True)
        name = function.__name__.strip("_").replace("_", "-")

        groups: dict[str, Any] = {
            it.name: it.annotation for it in signature.parameters.values() if is_dataclass(it.annotation)
        }
        options = [
            it.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in signature.parameters.values()
            for it in (_of_group(groups[each.name]) if each.name in groups else [each])
        ]
        signature = signature.replace(parameters=options)

        @functools.wraps(function)
        def command(*, context: typer.Context, quiet: bool, verbose: bool, on: str | None, **arguments: Any) -> None:
            console.configure(quiet=quiet, verbose=verbose)
            _running.set(name)
            if "" in (on, context.obj):  # an empty variable of a script must not mean this host
                raise typer.Exit(guarded(_refuse_no_host, own_status))
            if arguments.get("strict") and arguments.get("allow_uncertified"):
                raise typer.Exit(guarded(_refuse_both))  # exit status 2 in every command
            where = on_host.chosen(context, on)
            if acts_here:
                arguments["on"] = where
            elif where:
                marks = on_host.marks(signature)
                there = functools.partial(on_host.run, where, name, context, marks, passes_on_arguments, reads_stdin)
                raise typer.Exit(guarded(there, own_status))
            for group, made in groups.items():
                arguments[group] = made(**{it.name: arguments.pop(it.name) for it in fields(made)})
            raise typer.Exit(guarded(lambda: function(**arguments), own_status))

        parameters = [
            *(it for it in signature.parameters.values() if it.name != "on"),
            inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
            inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
            inspect.Parameter("on", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=on_host.On),
            inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        ]
        # typer reads a command's options from its signature: add these to that of each verb.
        command.__dict__["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)
        command.__dict__.pop("__wrapped__")
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(
            name=name,
            rich_help_panel=panel,
            help=_reflowed(function.__doc__ or ""),
            epilog=examples_of("Examples", examples),
            context_settings={"allow_interspersed_args": False} if passes_on_arguments else {},
        )(command)
        return function

    return register


def _refuse_no_host() -> None:
    raise UserError("--on: expected a host as ssh takes it, got ''; leave --on out to act on this host")


def _refuse_both() -> None:
    from testbed.core.certification import admission

    admission.refuse_both(strict=True, allow_uncertified=True)


def _of_group(group: Any) -> list[inspect.Parameter]:
    """Return the parameters that a dataclass of options stands for."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(it.name, inspect.Parameter.KEYWORD_ONLY, default=it.default, annotation=hints[it.name])
        for it in fields(group)
    ]


def _reflowed(docstring: str) -> str:
    """Join the lines of each paragraph; line breaks are for readers of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(docstring).split("\n\n"))


def examples_of(title: str, examples: Sequence[str]) -> str:
    """Return command lines under a heading, as they are typed here; ``#`` begins a comment."""
    lines: list[str] = []
    how = invocation.current()
    for example in examples:
        typed, _, comment = (it.strip() for it in example.partition("#"))
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


# ---- completion: errors are silent, because they would garble the shell's command line


def completing(source: Callable[[str | None], Sequence[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Complete the word at the cursor; ``source`` receives the lab that the line names so far."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in source(ctx.params.get("lab")) if name.startswith(incomplete)]
        except Exception:
            return []

    return complete


def lab_names(lab: str | None) -> Sequence[str]:
    from testbed.lab import api

    return api.lab_names()


def topologies(lab: str | None) -> Sequence[str]:
    from testbed.host.files import catalog

    return catalog.list_topologies()


def _runnables(lab: str | None) -> Sequence[str]:
    from testbed.host.files import catalog

    return [*catalog.list_topologies(), *catalog.list_experiments()]


def _fault_kinds(lab: str | None) -> Sequence[str]:
    from testbed.core.faults.fault_registry import registry

    return list(registry())


def _nodes(lab: str | None) -> Sequence[str]:
    topology = attach(lab).topology
    gateways = [site.gateway for site in topology.sites]
    return [*topology.node_names, *gateways, "plant", "mgmt"]


def _links_and_ducts(lab: str | None) -> Sequence[str]:
    topology = attach(lab).topology
    return list(dict.fromkeys([*(link.name for link in topology.links), *(duct.name for duct in topology.ducts)]))


def _fibers(lab: str | None) -> Sequence[str]:
    topology = attach(lab).topology
    return [it for link in topology.links for it in (link.name, *link.directions)]


def _targets(lab: str | None) -> Sequence[str]:
    topology = attach(lab).topology
    places = [*(site.name for site in topology.sites), *(site.power for site in topology.sites), *topology.node_names]
    return list(dict.fromkeys([*_links_and_ducts(lab), *places]))


def strategy_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``NAME:KEY=`` of a strategy: names, then the options that are not written yet."""
    try:
        from testbed.core.training.strategies_built import BUILT
        from testbed.host import strategy_packages

        strategy_packages.register()
        name, colon, rest = incomplete.partition(":")
        if not colon:
            return [it for it in BUILT if it.startswith(incomplete)]
        *whole, word = rest.split(",")
        written = {it.partition("=")[0] for it in whole}
        before = f"{name}:{''.join(f'{it},' for it in whole)}"
        found = (option.name for option in BUILT[name].options)
        return [f"{before}{key}=" for key in found if key not in written and key.startswith(word)]
    except Exception:
        return []


# ---- options and arguments that have the same meaning in every verb; a default in [brackets] would be read as markup

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.", show_default=False)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print the traceback of an error.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", show_default=False)]
LabName = Annotated[
    str | None,
    typer.Option(
        "--lab",
        "-l",
        metavar="NAME",
        envvar="TESTBED_LAB",
        help="Lab to use; default: the only one that is up. Verbs that change a lab take it only if you brought it up.",
        autocompletion=completing(lab_names),
    ),
]
LabArguments = Annotated[
    list[str] | None, typer.Argument(metavar="[LAB]...", show_default=False, autocompletion=completing(lab_names))
]
TopologyArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY",
        help=f"A shipped topology (see {invocation.command('ls', 'topologies')}) or a YAML file.",
        autocompletion=completing(topologies),
    ),
    Sent(),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY|EXPERIMENT",
        help=f"A shipped topology (see {invocation.command('ls', 'topologies')}) or experiment, or a YAML file.",
        autocompletion=completing(_runnables),
    ),
    Sent(named="all"),
]
RunsFolder = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        metavar="FOLDER",
        envvar="TESTBED_RUNS",
        help="Parent of run directories (default: testbed/runs in your XDG data folder, ~/.local/share).",
    ),
]
NodeArgument = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="A node (east-0), a gateway (east-gw), plant or mgmt.", autocompletion=completing(_nodes)
    ),
]
FaultArgument = Annotated[
    str,
    typer.Argument(
        metavar="FAULT",
        help=f"Kind of fault (see {invocation.command('ls', 'faults')}).",
        autocompletion=completing(_fault_kinds),
    ),
]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A link (north), one direction of it (north:west), or a duct.",
        autocompletion=completing(_links_and_ducts),
    ),
]
AnyTargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Depending on the fault: a link (north), one direction of it (north:west), a duct, a rank (3), a node, "
        "a site or a power domain.",
        autocompletion=completing(_targets),
    ),
]
FiberArgument = Annotated[
    str,
    typer.Argument(
        metavar="FIBER",
        help="A direction (north:west leads to west), or a link (north): both of its directions.",
        autocompletion=completing(_fibers),
    ),
]
FiberOption = Annotated[
    str | None,
    typer.Option(
        "--fiber",
        metavar="FIBER",
        help="Show one direction (north:west leads to west), or both of a link (north), with all values and counters.",
        autocompletion=completing(_fibers),
    ),
]
LabNameToMake = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Name of the lab (default: the topology's name).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a topology value: links.north.km=80. May be repeated."),
]
Driver = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How nodes are created: containerlab, netns, or auto (containerlab if it, docker and the image are "
        "available, else netns).",
    ),
]
Emulator = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How fibers are emulated: netem, fiberd, or auto (netem if the kernel has it, else fiberd).",
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME[:KEY=VALUE,...]",
        help=f"How the ranks train: diloco:every=50,outer.rate=0.7 (see {invocation.command('ls', 'strategies')}).",
        autocompletion=strategy_words,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="FILE", help="Text to train on (default: Python's standard library)."),
    Sent(always=True),
]
ComputeOption = Annotated[
    str | None,
    typer.Option(
        "--compute",
        metavar="TIME",
        help="Declare how long a step computes: 80ms, by a model that sleeps, or real:80ms, by the agents' own model "
        "inside that time; default: real, as fast as the cores allow.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="N",
        help="Parameters at full scale, as in 1.3B, of the model of --compute; its bytes are divided by the scale.",
        show_default=False,
    ),
]
NoiseOption = Annotated[
    str | None,
    typer.Option(
        "--noise",
        metavar="SHARE",
        help="Standard deviation of --compute, drawn for each rank and step: 5%.",
        show_default=False,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", "-d", help="Return when the job has begun; it continues without this terminal.", show_default=False
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Wait until no other run, compare, validate or audit --measure holds this host.",
        show_default=False,
    ),
]
AllowUncertified = Annotated[
    bool,
    typer.Option(
        "--allow-uncertified",
        help="Continue even if fibers are outside tolerance or not measurable; the report is marked.",
        show_default=False,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Also refuse a noisy host, which delays packets although all fibers are within tolerance; exit status 3.",
        show_default=False,
    ),
]
Lasting = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TIME",
        help="End the fault after this time: 10s, 500ms, 2min; repair: the usual repair time of its cause.",
    ),
]


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


def read_overrides(assignments: Sequence[str] | None) -> dict[str, object]:
    """Parse the ``--set K=V`` options of a command line, in order. Raises UserError for a repeated key."""
    from testbed.core.topology.override import split

    overrides: dict[str, object] = {}
    for assignment in assignments or ():
        key, value = split(assignment)
        if key in overrides:
            raise UserError(f"--set {key} is given twice ({overrides[key]} and {value}); keep one")
        overrides[key] = value
    return overrides


def read_duration_s(text: str | None, option: str = "--for") -> float | None:
    """Parse a duration like ``10s`` into seconds. Raises UserError with an example of a valid one."""
    from testbed.core.units import parse_duration_s

    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error
    if seconds == 0:
        fix = f"; omit it to keep the fault until: {invocation.command('heal')}" if option == "--for" else ""
        raise UserError(f"{option} must be greater than 0{fix}")
    return seconds
