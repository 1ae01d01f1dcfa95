"""What all verbs share: registration, ``-q`` and ``-v``, errors to exit codes, options of one meaning everywhere."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import console, streams
from testbed.cli.streams import OutputError, ReaderGone
from testbed.errors import Interrupted, TestbedError, UserError

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

RUNS, LABS, FAULTS, LOOK = PANELS = ("Run something", "Labs", "Faults on a live lab", "Files and this host")
"""Headings of ``testbed --help``, in their order there."""

BROKEN_PIPE = 141
"""128 + SIGPIPE: whoever read our output has gone. Not 1, which would say that something was measured and is bad."""


def verb(panel: str, *examples: str, ours: int | None = None, passes_words_on: bool = False) -> Callable[[Verb], Verb]:
    """Register a function as the verb of its name; what it returns is the exit status (None: 0).

    Args:
        panel: heading in ``testbed --help``.
        examples: command lines shown at the end of the verb's help; ``#`` begins a remark.
        ours: exit status for errors of the testbed itself, in verbs whose status is otherwise a child's.
        passes_words_on: every word after the first positional one belongs to the child, options too.
    """

    def register(function: Verb) -> Verb:
        signature = inspect.signature(function, eval_str=True)

        @functools.wraps(function)
        def command(*, quiet: bool, verbose: bool, **words: Any) -> None:
            console.configure(quiet=quiet, verbose=verbose)
            raise typer.Exit(guarded(lambda: function(**words), ours))

        parameters = [
            *signature.parameters.values(),
            inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
            inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
        ]
        # typer reads a command's options from its signature: this adds two to that of each verb.
        command.__dict__["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)
        command.__dict__.pop("__wrapped__")
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(
            name=function.__name__.strip("_").replace("_", "-"),
            rich_help_panel=panel,
            help=_reflowed(function.__doc__ or ""),
            epilog="\n".join(["[bold]Examples[/bold]", *(f"  [cyan]{_escaped(line)}[/cyan]" for line in examples)]),
            context_settings={"allow_interspersed_args": False} if passes_words_on else {},
        )(command)
        return function

    return register


def _reflowed(docstring: str) -> str:
    """Paragraphs without the line breaks that are for readers of the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(docstring).split("\n\n"))


def _escaped(line: str) -> str:
    return line.replace("[", r"\[")


def guarded(work: Callable[[], int | None], ours: int | None = None) -> int:
    """Do ``work`` and turn whatever comes out of it into an exit status and, if it failed, plain words on stderr.

    ``ours`` replaces the status of a :class:`TestbedError` and of a bug; Ctrl-C is 130 in any case.
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
        console.error(str(error) or type(error).__name__)
        return error.exit_code if ours is None or isinstance(error, Interrupted) else ours
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not _stands_somewhere():
            console.error("the folder that you are in was removed; cd to one that is there")
            return UserError.exit_code if ours is None else ours
        _say_bug(error)
        return TestbedError.exit_code if ours is None else ours


def _stands_somewhere() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 (the question is whether the kernel has an answer)
    except FileNotFoundError:
        return False
    return True


def _say_bug(error: Exception) -> None:
    words = traceback.format_exc()
    if console.verbose():
        sys.stderr.write(words)
    short = f"this is a bug in the testbed: {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="testbed-bug-", suffix=".txt", delete=False
        ) as file:
            file.write(" ".join(sys.argv) + "\n\n" + words)
        console.error(f"{short}; the traceback is in {file.name}")
    except OSError:
        console.error(f"{short}; -v shows the traceback")


# ---- completion: whatever goes wrong there, the shell's line is no place to say so


def completing(source: Callable[[str | None], Sequence[str]]) -> Callable[[typer.Context, str], list[str]]:
    """What can stand where the cursor is; ``source`` is given the lab that the line names so far."""

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


def _targets(lab: str | None) -> Sequence[str]:
    topology = attach(lab).topology
    places = [*(site.name for site in topology.sites), *(site.power for site in topology.sites), *topology.node_names]
    return list(dict.fromkeys([*_links_and_ducts(lab), *places]))


# ---- options and arguments with one meaning everywhere

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but results and errors.", show_default=False)]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also show where an error came from.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", show_default=False)]
LabName = Annotated[
    str | None,
    typer.Option(
        "--lab",
        "-l",
        metavar="NAME",
        envvar="TESTBED_LAB",
        help="The lab; not needed while only one is up.",
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
        help="Name of a shipped topology (testbed ls topologies), or a YAML file.",
        autocompletion=completing(topologies),
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPOLOGY|EXPERIMENT",
        help="Name of a shipped one (testbed ls), or a YAML file.",
        autocompletion=completing(_runnables),
    ),
]
RunsFolder = Annotated[
    Path | None,
    typer.Option(
        "--runs", metavar="FOLDER", envvar="TESTBED_RUNS", help="Where run directories are made. [default: ./runs]"
    ),
]
NodeArgument = Annotated[
    str,
    typer.Argument(metavar="NODE", help="east-0, east-gw, plant or mgmt.", autocompletion=completing(_nodes)),
]
FaultArgument = Annotated[
    str,
    typer.Argument(metavar="FAULT", help="See: testbed ls faults.", autocompletion=completing(_fault_kinds)),
]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A link (north), one direction of it (north:west) or a duct.",
        autocompletion=completing(_links_and_ducts),
    ),
]
AnyTargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="As the fault takes it: a link (north), one direction of it (north:west), a duct; a rank (3), a node, "
        "a site, a power domain.",
        autocompletion=completing(_targets),
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Lay a value over the topology: links.north.km=80. May be repeated."
    ),
]
Driver = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What makes the nodes: auto (containerlab if it, docker and the image are there), containerlab, netns.",
    ),
]
Emulator = Annotated[
    str, typer.Option(metavar="NAME", help="What makes the fibers: auto (netem if the kernel has it), netem, fiberd.")
]
AllowUncertified = Annotated[
    bool,
    typer.Option(
        "--allow-uncertified", help="Go on with fibers outside tolerance; the report says so.", show_default=False
    ),
]
Lasting = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="TIME", help="Heal by itself after this: 10s, 500ms, 2min; repair: as its cause takes."
    ),
]


def attach(name: str | None) -> Lab:
    """The lab of ``-l``, of $TESTBED_LAB, or the only one up."""
    from testbed.lab import api

    return api.attach(name or None)


def read_overrides(assignments: Sequence[str] | None) -> dict[str, object]:
    """``--set K=V`` of a command line, in order. Raises UserError for a key that is there twice."""
    from testbed.core.topology.override import split

    overrides: dict[str, object] = {}
    for assignment in assignments or ():
        key, value = split(assignment)
        if key in overrides:
            raise UserError(f"--set {key} is given twice, as {overrides[key]} and as {value}; keep one")
        overrides[key] = value
    return overrides


def read_duration_s(text: str | None, option: str = "--for") -> float | None:
    """Seconds of ``10s``; raises UserError with what would be right."""
    from testbed.core.units import parse_duration_s

    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error
    if seconds == 0:
        raise UserError(f"{option}: a time of 0 is no time; leave {option} out to go on until `testbed heal`")
    return seconds
