"""Verbs that change nothing: ls, show, lint, doctor, observe."""

from __future__ import annotations

import functools
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import testbed.host.linux.invocation as invocation
from testbed.cli import console, on_host, tables, verb
from testbed.cli.on_host import Sent
from testbed.cli.verb import AsJson, LabName, Overrides, StrategyOption, TopologyArgument
from testbed.errors import FileMistakes, Finding, LabError, TestbedError, UnknownName, UserError

if TYPE_CHECKING:
    from testbed.core.topology.model import Topology
    from testbed.core.training.twin import Twin

WATCH_EVERY_S = 1.0


class Kind(StrEnum):
    """What `ls` can list."""

    labs = "labs"
    topologies = "topologies"
    experiments = "experiments"
    runs = "runs"
    faults = "faults"
    libraries = "libraries"
    strategies = "strategies"


@verb.verb(verb.LOOK, "testbed ls", "testbed ls topologies", "testbed ls runs --json")
def ls(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=True)] = Kind.labs, as_json: AsJson = False
) -> None:
    """List labs, shipped topologies and experiments, runs, kinds of fault, collective libraries to validate, or
    strategies to train by, with their options and defaults."""
    {
        Kind.labs: _list_labs,
        Kind.topologies: _list_topologies,
        Kind.experiments: _list_experiments,
        Kind.runs: _list_runs,
        Kind.faults: _list_faults,
        Kind.libraries: _list_libraries,
        Kind.strategies: _list_strategies,
    }[kind](as_json)


def _list_labs(as_json: bool) -> None:
    from testbed.lab import api

    found = api.labs()
    if as_json:
        console.show_json(tables.plain(found))
    elif found:
        console.show(tables.labs(found, time.time()))
        for each in found:
            for why in each.why:
                console.say(f"{each.name}: {why}", style="yellow")
        if any(each.state == api.FOREIGN for each in found):
            console.say(f"only root can inspect labs of another user; {invocation.again()}", style="dim")
    else:
        console.say(f"no lab is up; bring one up with: {invocation.command('up', 'metro-40km')}")


def _list_topologies(as_json: bool) -> None:
    from testbed.host.files import catalog

    loaded = [catalog.load_topology(name) for name in catalog.list_topologies()]
    data = [
        {
            "name": it.name,
            "sites": len(it.sites),
            "nodes": len(it.node_names),
            "links": {link.name: link.length_m / 1e3 for link in it.links},
        }
        for it in loaded
    ]
    if as_json:
        console.show_json(data)
        return
    rows: list[tables.Row] = [
        [it.name, str(len(it.sites)), str(len(it.node_names)), tables.links_in_short(it)] for it in loaded
    ]
    console.show(tables.table(("topology", "sites", "nodes", "links"), rows, right=("sites", "nodes")))


def _list_experiments(as_json: bool) -> None:
    from testbed.host.files import catalog

    loaded = [(name, catalog.load_experiment(name)) for name in catalog.list_experiments()]
    if as_json:
        console.show_json([{"name": name, "teaches": each.teaches} for name, each in loaded])
    else:
        console.show(tables.table(("experiment", "teaches"), [[name, each.teaches] for name, each in loaded]))


def _list_runs(as_json: bool) -> None:
    from testbed.lab import api

    found = api.runs()
    if as_json:
        console.show_json(tables.plain(found))
    elif found:
        console.show(tables.runs(found))
        if any(each.log for each in found):
            console.say("what a detached run shows is in output.log in its folder", style="dim")
    else:
        start = invocation.command("run", "metro-40km")
        console.say(f"no runs in {api.runs_searched()} yet; start one with: {start}")


def _list_libraries(as_json: bool) -> None:
    from testbed.cli import validate_verb

    validate_verb.list_libraries(as_json)


def _list_strategies(as_json: bool) -> None:
    from testbed.core.training.strategies_built import BUILT
    from testbed.host import strategy_packages

    strategy_packages.register()
    for why in strategy_packages.broken().values():
        console.say(why, style="yellow")
    if as_json:
        console.show_json(
            [
                {
                    "name": it.name,
                    "summary": it.summary,
                    "source": it.source,
                    "package": strategy_packages.package_of(it.name),
                    "options": [
                        {"name": option.name, "default": option.default, "meaning": option.meaning}
                        for option in it.options
                    ],
                }
                for it in BUILT.values()
            ]
        )
        return
    rows: list[tables.Row] = [
        [it.name, it.summary, _options_in_short(it), it.source or f"package {strategy_packages.package_of(it.name)}"]
        for it in BUILT.values()
    ]
    console.show(tables.table(("strategy", "what it does", "option=default: meaning", "source"), rows))
    console.say(f"train by one with: {invocation.command('train', '--strategy', 'NAME:option=value,…')}", style="dim")


def _options_in_short(strategy: type[Twin]) -> str:
    return "\n".join(f"{it.name}={it.default}: {it.meaning}" for it in strategy.options)


def _list_faults(as_json: bool) -> None:
    from testbed.core.faults.fault_registry import registry

    kinds = registry().values()
    if as_json:
        console.show_json(
            [
                {
                    "name": kind.name,
                    "summary": kind.summary,
                    "targets": kind.targets,
                    "parameters": dict(kind.parameters),
                }
                for kind in kinds
            ]
        )
        return
    console.show(tables.faults(kinds))


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
    gradients: Annotated[str, typer.Option(metavar="SIZE", help="Gradient bytes per step, at full scale.")] = "1 GB",
    compute: Annotated[str, typer.Option(metavar="DURATION", help="Compute time per step.")] = "1 s",
    strategy: StrategyOption = None,
    as_json: AsJson = False,
) -> None:
    """Show every value of a topology with its origin (default, file, --set), and what is derived from them.

    Derived: delays, round trips, rates, optics, and which training strategies the fibers can sustain. With --strategy
    also its placement: which dimension of parallelism crosses which fiber, with its bytes per step.
    """
    from testbed.core.physics import full_scale
    from testbed.core.prediction.topology_ways import ways
    from testbed.core.topology.model import topology_to_dict
    from testbed.core.topology.survey import survey, validity_of
    from testbed.host.files import catalog

    size_bytes, compute_s = _read_step(gradients, compute)
    found = catalog.load_topology(topology, verb.read_overrides(set_))
    facts, findings = survey(found), validity_of(found)
    trained = ways(found, size_bytes, compute_s)
    placed = _placement(found, strategy)
    if as_json:
        plain = {
            **({"placement": list(placed)} if placed else {}),
            "derived": tables.topology_facts(found),
            "interfaces": dict(found.interfaces.short),
            "survey": {
                **tables.plain(facts),
                "gradient_bytes": size_bytes,
                "compute_s": compute_s,
                "ways": tables.plain(trained),
            },
            "validity": tables.plain(findings),
        }
        console.show_json({**topology_to_dict(found), **plain})
        return
    for each in (tables.origins(found), tables.physics(found), *tables.interfaces(found), *tables.survey(facts)):
        console.show(each)
    if trained:
        console.show(tables.ways(trained, size_bytes, compute_s))
        more = invocation.command("predict", topology)
        console.say(f"simulated, without TCP's windows and loss (docs/prediction.md); more: {more}", style="dim")
    if findings:
        for each in tables.validity(findings, found.scale):
            console.show(each)
    if said := full_scale.sentence((link.rate_bps for link in found.links), found.scale):
        console.say(f"{said} Payloads are divided by {found.scale:g}, too.", style="dim")
    for line in placed:
        console.show_line(line)


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


def _read_step(gradients: str, compute: str) -> tuple[int, float]:
    """Parse the gradient bytes and compute seconds of a step.

    Raises:
        UserError: one of them cannot be parsed, or the compute time is zero.
    """
    from testbed.core.units import Unreadable, parse_size_bytes, parse_step_s

    try:
        size_bytes = parse_size_bytes(gradients)
    except Unreadable as error:
        raise UserError(f"--gradients: {error}") from error
    try:
        compute_s = parse_step_s(compute)
    except Unreadable as error:
        raise UserError(f"--compute: {error}") from error
    if compute_s == 0:
        raise UserError("--compute must be greater than 0; write a duration such as 1 s or 200 ms")
    return size_bytes, compute_s


@verb.verb(verb.LOOK, "testbed lint my.yaml", "testbed lint topologies/*.yaml experiments/*.yaml")
def lint(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Topology or experiment files."), Sent(named="files")
    ],
    as_json: AsJson = False,
) -> int:
    """Check files and list every mistake with its line and the fix. Exit status 2 if there are any.

    A warning is no mistake: the file can be run, and the line says what that costs.
    """
    findings: list[Finding] = []
    for name in dict.fromkeys(files):
        findings += _findings(name)
    wrong = [it for it in findings if not it.warning]
    if as_json:
        console.show_json(
            [{key: it for key, it in each.items() if it or key != "warning"} for each in tables.plain(findings)]
        )
    else:
        for finding in findings:
            console.show_line(str(finding))
        clean = "no mistakes" if len(files) == 1 else f"no mistakes in {len(files)} files"
        console.say(clean if not wrong else f"{len(wrong)} mistake{'s' if len(wrong) > 1 else ''}")
    return UserError.exit_code if wrong else 0


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
def doctor(as_json: AsJson = False) -> int:
    """Check what this host supports; for each missing capability, show the reason and the fix.

    Exit status 3 if the testbed cannot run on this host.
    """
    from testbed.host import doctor as host

    checks = host.examine()
    able, trains = host.can_run(checks), host.can_train(checks)
    if as_json:
        console.show_json({"can_run": able, "can_train": trains, "checks": tables.plain(checks)})
    else:
        console.show(tables.checks(checks))
        fixes = tables.fixes(checks)
        for line in ["Fixes:", *fixes, ""] if fixes else []:
            console.show(line)
        if trains:
            attempt = invocation.command("run", "metro-40km")
            console.show(Text(f"This host can run the testbed. Try: {attempt}", style=tables.GOOD))
        elif able:
            torch = next(check for check in checks if check.name == "torch")
            fibers = invocation.command("up", "metro-40km", "--no-agents")
            partly = f"This host can bring up fibers ({fibers}) but cannot train. Fix:"
            console.show(Text(f"{partly} {torch.fix}", style=tables.UNSURE))
        else:
            lacking = ", ".join(check.name for check in checks if check.needed and check.state == "missing")
            console.show(Text(f"This host cannot run the testbed. Missing: {lacking}", style=tables.BAD))
    return 0 if able else TestbedError.exit_code


@verb.verb(verb.LABS, "testbed observe", "testbed observe metro-40km --port 19090", acts_here=True)
def observe(
    name: Annotated[str | None, typer.Argument(metavar="[LAB]", help="Lab to use (default: that of --lab).")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")] = 9090,
    lab: LabName = None,
    on: str | None = None,
) -> int | None:
    """Forward a local port to the Prometheus of a lab that was brought up with --observe, until Ctrl-C.

    Listens on 127.0.0.1 only, with --on too: on this host, and by SSH on the other one.
    """
    chosen = name or lab
    if on is not None:
        words = ("observe", "--quiet", "--port", "0", *(("-l", chosen) if chosen else ()))
        what = f"lab {chosen} on {on}" if chosen else f"the lab on {on}"
        return on_host.forward(on, words, port, functools.partial(_say_observed, what))
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
