"""Verbs that change nothing: ls, show, lint, doctor, observe."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.table import Table
from rich.text import Text

import testbed.host.linux.invocation as invocation
from testbed.cli import console, lab_tables, on_host, tables, topology_tables, verb
from testbed.cli.console import Line, Note, Shown
from testbed.cli.on_host import On, Sent
from testbed.cli.options import (
    AsJson,
    LabName,
    Overrides,
    StrategyOption,
    TopologyArgument,
    default,
    quantity,
    read_overrides,
)
from testbed.cli.verb import Result
from testbed.core.units import parse_size_bytes, parse_step_s
from testbed.errors import FileMistakes, Finding, LabError, TestbedError, UnknownName, UserError

if TYPE_CHECKING:
    from testbed.core.faults.fault_kind import FaultKind
    from testbed.core.topology.model import Topology
    from testbed.core.validation.library import CollectiveLibrary
    from testbed.host.doctor import Check

WATCH_EVERY_S = 1.0


Kind = Literal["labs", "topologies", "experiments", "runs", "faults", "libraries", "strategies"]


@verb.verb(verb.LOOK, "testbed ls", "testbed ls topologies", "testbed ls runs --json")
def ls(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=True)] = "labs", as_json: AsJson = False
) -> Result:
    """List labs, shipped topologies and experiments, runs, kinds of fault, collective libraries to validate, or
    strategies to train by, with their options and defaults."""
    return _LISTS[kind]()


def _labs() -> Result:
    from testbed.lab import api

    labs = api.labs()

    def shown() -> Iterator[Shown]:
        yield lab_tables.labs(labs, time.time())
        for lab in labs:
            yield from (Note(f"{lab.name}: {why}", "yellow") for why in lab.why)
        if any(lab.state == api.FOREIGN for lab in labs):
            yield Note(f"only root can inspect labs of another user; {invocation.again()}")

    none = Note(f"no lab is up; bring one up with: {invocation.command('up', 'metro-40km')}", "")
    return Result(data=lambda: tables.plain(labs), tables=shown() if labs else [none])


def _topologies() -> Result:
    from testbed.host.files import catalog

    topologies = [catalog.load_topology(name) for name in catalog.list_topologies()]
    rows: list[tables.Row] = [
        [
            topology.name,
            str(len(topology.sites)),
            str(len(topology.node_names)),
            topology_tables.links_in_short(topology),
        ]
        for topology in topologies
    ]
    return Result(
        data=lambda: [
            {
                "name": topology.name,
                "sites": len(topology.sites),
                "nodes": len(topology.node_names),
                "links": {link.name: link.length_m / 1e3 for link in topology.links},
            }
            for topology in topologies
        ],
        tables=[tables.table(("topology", "sites", "nodes", "links"), rows, right=("sites", "nodes"))],
    )


def _experiments() -> Result:
    from testbed.host.files import catalog

    teaches = {name: catalog.load_experiment(name).teaches for name in catalog.list_experiments()}
    return Result(
        data=lambda: [{"name": name, "teaches": lesson} for name, lesson in teaches.items()],
        tables=[tables.table(("experiment", "teaches"), [[name, lesson] for name, lesson in teaches.items()])],
    )


def _runs() -> Result:
    from testbed.lab import api

    runs = api.runs()
    if runs:
        logs = (
            [Note("what a detached run shows is in output.log in its folder")] if any(run.log for run in runs) else []
        )
        return Result(data=lambda: tables.plain(runs), tables=[lab_tables.runs(runs), *logs])
    start = invocation.command("run", "metro-40km")
    return Result(data=list, tables=[Note(f"no runs in {api.runs_searched()} yet; start one with: {start}", "")])


def _libraries() -> Result:
    from testbed.host import collective_libraries

    libraries = [
        (library, collective_libraries.why_not(library)) for library in collective_libraries.registry().values()
    ]
    broken = collective_libraries.broken()
    return Result(
        data=lambda: [
            *({"name": library.name, "title": library.title, "missing": why} for library, why in libraries),
            *({"name": name, "title": "", "missing": why} for name, why in broken.items()),
        ],
        tables=_library_tables(libraries, broken),
    )


_INSTALL = "; install it with: "


def _library_tables(libraries: Sequence[tuple[CollectiveLibrary, str]], broken: Mapping[str, str]) -> Iterator[Shown]:
    rows: list[tables.Row] = [
        [library.name, tables.verdict("missing" if why else "ok"), _title_and_lack(library.title, why)]
        for library, why in libraries
    ]
    rows += [[name, tables.verdict("bad"), _title_and_lack("", why)] for name, why in broken.items()]
    table = tables.table(("library", "state", "description"), rows)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    yield table
    installs: dict[str, list[str]] = {}
    for library, why in libraries:
        if command := why.partition(_INSTALL)[2]:
            installs.setdefault(command, []).append(library.name)
    for command, names in installs.items():  # not in the table, which would fold them
        yield f"install {', '.join(names)}:"
        yield f"  {command}"


def _title_and_lack(title: str, why: str) -> Text:
    """Put the title and what is missing on lines of their own."""
    lines = filter(None, (title, why.partition(_INSTALL)[0]))
    return Text("\n").join(Text(line, style="dim" if number else "") for number, line in enumerate(lines))


def _strategies() -> Result:
    from testbed.core.training.strategies_built import BUILT
    from testbed.host import strategy_packages

    strategy_packages.register()
    for why in strategy_packages.broken().values():
        console.say(why, style="yellow")
    strategies = BUILT.values()
    rows: list[tables.Row] = [
        [
            strategy.name,
            strategy.summary,
            "\n".join(f"{option.name}={option.default}: {option.meaning}" for option in strategy.options),
            strategy.source or f"package {strategy_packages.package_of(strategy.name)}",
        ]
        for strategy in strategies
    ]
    usage = invocation.command("train", "--strategy", "NAME:option=value,…")
    return Result(
        data=lambda: [
            {
                "name": strategy.name,
                "summary": strategy.summary,
                "source": strategy.source,
                "package": strategy_packages.package_of(strategy.name),
                "options": [
                    {"name": option.name, "default": option.default, "meaning": option.meaning}
                    for option in strategy.options
                ],
            }
            for strategy in strategies
        ],
        tables=[
            tables.table(("strategy", "what it does", "option=default: meaning", "source"), rows),
            Note(f"train by one with: {usage}"),
        ],
    )


def _faults() -> Result:
    from testbed.core.faults.fault_registry import registry

    kinds = registry().values()
    return Result(
        data=lambda: [
            {"name": kind.name, "summary": kind.summary, "targets": kind.targets, "parameters": dict(kind.parameters)}
            for kind in kinds
        ],
        tables=[fault_kinds(kinds)],
    )


def fault_kinds(kinds: Iterable[FaultKind]) -> Table:
    """Build a table of two columns: a third would be too narrow on a terminal of 80."""
    rows: list[tables.Row] = []
    for kind in kinds:
        text = Text(kind.summary)
        text.append(f"\ntarget: {kind.targets}", style="dim")
        for key, meaning in kind.parameters.items():
            text.append(f"\n{key}: ", style="cyan").append(meaning, style="default")
        rows.append([kind.name, text])
    table = tables.table(("fault", "effect, target and parameters"), rows)
    table.columns[0].no_wrap = True
    table.show_lines = True
    return table


_LISTS: Final[Mapping[Kind, Callable[[], Result]]] = {
    "labs": _labs,
    "topologies": _topologies,
    "experiments": _experiments,
    "runs": _runs,
    "faults": _faults,
    "libraries": _libraries,
    "strategies": _strategies,
}


@verb.verb(
    verb.LOOK,
    "testbed show metro-40km",
    "testbed show my.yaml --set links.*.fiber=hollow-core",
    "testbed show longhaul-1000km --gradients 16GB --compute 4s",
    "testbed show metro-40km --json",
)
def show(
    topology: TopologyArgument,
    set_: Overrides = None,
    gradients: Annotated[
        int, quantity(parse_size_bytes, metavar="SIZE", help="Gradient bytes per step, at full scale.")
    ] = default("1 GB"),
    compute: Annotated[
        float,
        quantity(
            parse_step_s,
            metavar="DURATION",
            help="Compute time per step.",
            zero="; write a duration such as 1 s or 200 ms",
        ),
    ] = default("1 s"),
    strategy: StrategyOption = None,
    as_json: AsJson = False,
) -> Result:
    """Show every value of a topology with its origin (default, file, --set), and what is derived from them.

    Derived: delays, round trips, rates, optics, and which training strategies the fibers can sustain. With --strategy
    also its placement: which dimension of parallelism crosses which fiber, with its bytes per step.
    """
    from testbed.core.prediction.topology_ways import ways
    from testbed.core.topology.model import topology_to_dict
    from testbed.core.topology.survey import survey, validity_of
    from testbed.host.files import catalog

    described = catalog.load_topology(topology, read_overrides(set_))
    surveyed, findings = survey(described), validity_of(described)
    strategies = ways(described, gradients, compute)
    placement = _placement(described, strategy)

    def data() -> object:
        plain = {
            **({"placement": list(placement)} if placement else {}),
            "derived": topology_tables.topology_facts(described),
            "interfaces": dict(described.interfaces.short),
            "survey": {
                **tables.plain(surveyed),
                "gradient_bytes": gradients,
                "compute_s": compute,
                "ways": tables.plain(strategies),
            },
            "validity": tables.plain(findings),
        }
        return {**topology_to_dict(described), **plain}

    def shown() -> Iterator[Shown]:
        yield topology_tables.origins(described)
        yield topology_tables.physics(described)
        yield from topology_tables.interfaces(described)
        yield from topology_tables.surveyed(surveyed)
        if strategies:
            yield topology_tables.strategies(strategies, gradients, compute)
            predicted = invocation.command("predict", topology)
            yield Note(f"simulated, without TCP's windows and loss (docs/prediction.md); more: {predicted}")
        if findings:
            yield from topology_tables.validity(findings, described.scale)
        yield from _full_scale(described)
        yield from map(Line, placement)

    return Result(data=data, tables=shown())


def _full_scale(topology: Topology) -> Iterator[Note]:
    from testbed.core.physics import full_scale

    if sentence := full_scale.sentence((link.rate_bps for link in topology.links), topology.scale):
        yield Note(f"{sentence} Payloads are divided by {topology.scale:g}, too.")


def _placement(topology: Topology, strategy: str | None) -> tuple[str, ...]:
    """Return the tiers of a topology with fabrics, and where a strategy's dimensions are, if one is named."""
    from testbed.core.training import placement
    from testbed.core.workload import workload_layout, workload_words
    from testbed.core.workload.workload import AgentWorkload
    from testbed.host import strategy_packages
    from testbed.lab.jobs.workload_notes import placement_notes

    if strategy is None:
        return placement.describe_tiers(topology)
    strategy_packages.register()
    workload = workload_words.changed(AgentWorkload(), strategy)
    warnings = map(str, workload_layout.refuse_mistakes(workload, topology, "--strategy"))
    return (*warnings, *placement_notes(workload, topology))


@verb.verb(verb.LOOK, "testbed lint my.yaml", "testbed lint topologies/*.yaml experiments/*.yaml")
def lint(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Topology or experiment files."), Sent(named="files")
    ],
    as_json: AsJson = False,
) -> Result:
    """Check files and list every mistake with its line and the fix. Exit status 2 if there are any.

    A warning is no mistake: the file can be run, and the line says what that costs.
    """
    findings = [finding for name in dict.fromkeys(files) for finding in _findings(name)]
    count = sum(not finding.warning for finding in findings)
    clean = "no mistakes" if len(files) == 1 else f"no mistakes in {len(files)} files"
    summary = f"{count} mistake{'s' if count > 1 else ''}" if count else clean
    return Result(
        data=lambda: [
            {key: value for key, value in finding.items() if value or key != "warning"}
            for finding in tables.plain(findings)
        ],
        tables=[*(Line(finding) for finding in findings), Note(summary, "")],
        status=UserError.exit_code if count else 0,
    )


def _findings(name: str) -> list[Finding]:
    from testbed.host.files import catalog

    try:
        if catalog.kind_of(name) == "topology":
            return list(catalog.lost_here(catalog.load_topology(name), name))
        return list(catalog.examine_experiment(name))
    except FileMistakes as mistakes:
        return list(mistakes.findings)
    except UnknownName as error:
        if error.name == name:
            return [Finding(name, 0, "no such file", error.hint)]
        message, _, fix = str(error).partition("; ")
        return [Finding(name, 0, message, fix)]
    except UserError as error:
        return [Finding(name, 0, str(error).removeprefix(f"{name} "))]


@verb.verb(verb.LOOK, "testbed doctor", "testbed doctor --json")
def doctor(as_json: AsJson = False) -> Result:
    """Check what this host supports; for each missing capability, show the reason and the fix.

    Exit status 3 if the testbed cannot run on this host.
    """
    from testbed.host import doctor as host

    checks = host.examine()
    able, trains = host.can_run(checks), host.can_train(checks)
    return Result(
        data=lambda: {"can_run": able, "can_train": trains, "checks": tables.plain(checks)},
        tables=_examined(checks, able, trains),
        status=0 if able else TestbedError.exit_code,
    )


def _examined(checks: Sequence[Check], able: bool, trains: bool) -> Iterator[Shown]:
    rows: list[tables.Row] = [[check.name, _state(check), check.detail] for check in checks]
    yield tables.table(("check", "state", "detail"), rows)
    if lines := fixes(checks):
        yield from ("Fixes:", *lines, "")
    if trains:
        attempt = invocation.command("run", "metro-40km")
        yield Text(f"This host can run the testbed. Try: {attempt}", style=tables.GOOD)
    elif able:
        torch = next(check for check in checks if check.name == "torch")
        fibers = invocation.command("up", "metro-40km", "--no-agents")
        partly = f"This host can bring up fibers ({fibers}) but cannot train. Fix:"
        yield Text(f"{partly} {torch.fix}", style=tables.UNSURE)
    else:
        missing = ", ".join(check.name for check in checks if check.needed and check.state == "missing")
        yield Text(f"This host cannot run the testbed. Missing: {missing}", style=tables.BAD)


def fixes(checks: Sequence[Check]) -> list[str]:
    """Return a line with the fix of each check that has one. Not part of the table, which would fold commands."""
    fixable = [check for check in checks if check.fix]
    width = max((len(check.name) for check in fixable), default=0)
    return [f"  {check.name:<{width}}   {check.fix}" for check in fixable]


def _state(check: Check) -> Text:
    if check.needed or check.state == "ok":
        return tables.verdict(check.state)
    return Text(check.state, style=tables.UNSURE)


@verb.verb(verb.LABS, "testbed observe", "testbed observe metro-40km --port 19090")
def observe(
    name: Annotated[str | None, typer.Argument(metavar="[LAB]", help="Lab to use (default: that of --lab).")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")] = 9090,
    lab: LabName = None,
    on: On = None,
) -> int | None:
    """Forward a local port to the Prometheus of a lab that was brought up with --observe, until Ctrl-C.

    Listens on 127.0.0.1 only, with --on too: on this host, and by SSH on the other one.
    """
    chosen = name or lab
    if on is not None:
        command = ("observe", "--quiet", "--port", "0", *(("-l", chosen) if chosen else ()))
        what = f"lab {chosen} on {on}" if chosen else f"the lab on {on}"
        return on_host.forward(on, command, port, functools.partial(_say_observed, what))
    target = verb.attach(chosen)
    with target.observe(port) as forwarder:
        _say_observed(f"lab {target.name}", forwarder.url)
        while target.prometheus:
            time.sleep(WATCH_EVERY_S)
    raise LabError(f"Prometheus of lab {target.name} has ended; see: {invocation.command('logs', '-l', target.name)}")


def _say_observed(what: str, url: str) -> None:
    console.show_line(url)
    console.say(f"Prometheus of {what}; Ctrl-C ends the port forwarding only.")
    console.say(f"Grafana: add a Prometheus data source with URL {url} and scrape interval 1s,")
    console.say("then import grafana/testbed.json (see docs/observability.md).")
