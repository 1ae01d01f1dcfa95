"""Options and arguments that several verbs share: their words, help texts, completion and conversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli.on_host import Sent
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.topology.model import Topology


# ---- conversion


@dataclass(frozen=True)
class Converted:
    """A converted option. A verb receives its value; ``--on`` sends the text as typed to the other host."""

    text: str
    value: Any

    def __str__(self) -> str:
        return self.text


def quantity(parse: Callable[[str], Any], *names: str, zero: str | None = None, **settings: Any) -> Any:
    """Return an option whose text is parsed to a number.

    Args:
        parse: raises ValueError for an invalid text.
        names: of the option; default: that of its parameter.
        zero: refuse 0; this text ends the message.
        settings: passed on to typer.Option.
    """

    def convert(param: typer.CallbackParam, value: str | None) -> Any:
        if value is None:
            return None
        option = param.opts[0]
        try:
            number = parse(value)
        except ValueError as error:
            raise UserError(f"{option}: {error}") from error
        if number == 0 and zero is not None:
            raise UserError(f"{option} must be greater than 0{zero}")
        return Converted(value, number)

    return typer.Option(*names, parser=str, callback=convert, **settings)


def default(text: str) -> Any:
    """Return the default of an option made by :func:`quantity`, as it is typed."""
    return text


REPAIR: Final = math.inf
"""Stands for ``--for repair`` among durations."""


def _lasting_s(text: str) -> float:
    from testbed.core.units import parse_duration_s

    return REPAIR if text == "repair" else parse_duration_s(text)


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


def _topology(lab: str | None) -> Topology:
    from testbed.lab import api

    return api.attach(lab or None, changes=False).topology


def _nodes(lab: str | None) -> Sequence[str]:
    topology = _topology(lab)
    gateways = [site.gateway for site in topology.sites]
    return [*topology.node_names, *gateways, "plant", "mgmt"]


def _links_and_ducts(lab: str | None) -> Sequence[str]:
    topology = _topology(lab)
    return list(dict.fromkeys([*(link.name for link in topology.links), *(duct.name for duct in topology.ducts)]))


def _fibers(lab: str | None) -> Sequence[str]:
    topology = _topology(lab)
    return [name for link in topology.links for name in (link.name, *link.directions)]


def _targets(lab: str | None) -> Sequence[str]:
    topology = _topology(lab)
    places = [*(site.name for site in topology.sites), *(site.power for site in topology.sites), *topology.node_names]
    return list(dict.fromkeys([*_links_and_ducts(lab), *places]))


def strategy_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``NAME:KEY=`` of a strategy: names, then the options that are not written yet."""
    try:
        from testbed.core.training.strategies_built import BUILT
        from testbed.host import strategy_packages

        strategy_packages.register()
        name, colon, options_text = incomplete.partition(":")
        if not colon:
            return [strategy for strategy in BUILT if strategy.startswith(incomplete)]
        *settings, key_begun = options_text.split(",")
        written = {setting.partition("=")[0] for setting in settings}
        before = f"{name}:{''.join(f'{setting},' for setting in settings)}"
        keys = [option.name for option in BUILT[name].options if option.name not in written]
        return [f"{before}{key}=" for key in keys if key.startswith(key_begun)]
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
    float | None,
    quantity(
        _lasting_s,
        "--for",
        metavar="TIME",
        help="End the fault after this time: 10s, 500ms, 2min; repair: the usual repair time of its cause.",
        zero=f"; omit it to keep the fault until: {invocation.command('heal')}",
    ),
]


# ---- groups of options


class OptionGroup:
    """Base of dataclasses that are parameters of verbs: each field is an option."""


@dataclass(frozen=True)
class LabOptions(OptionGroup):
    """How a verb brings up the lab that it takes down at its end, and where it keeps its run."""

    name: LabNameToMake = None
    runs: RunsFolder = None
    driver: Driver = "auto"
    emulator: Emulator = "auto"
    strict: Strict = False
    allow_uncertified: AllowUncertified = False
    wait: Wait = False


@dataclass(frozen=True)
class JobOptions(OptionGroup):
    """What is trained beside the strategy."""

    data: DataOption = None
    compute: ComputeOption = None
    model: ModelOption = None
    noise: NoiseOption = None
