"""Verbs about live labs: up, down, status, exec, logs, certify."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import certificate_table, console, tables, verb
from testbed.cli.verb import (
    AllowUncertified,
    AsJson,
    Driver,
    Emulator,
    LabArguments,
    LabName,
    NodeArgument,
    Overrides,
    TopologyArgument,
)
from testbed.errors import TestbedError, UserError

if TYPE_CHECKING:
    from testbed.core.certification.certificate import Certificate
    from testbed.core.topology.model import Topology
    from testbed.lab.api import Choice, Lab

WATCH_EVERY_S = 1.0


@verb.verb(
    verb.LABS,
    "testbed up metro-40km",
    "testbed up metro-40km --set links.north.km=80 --set scale=100",
    "testbed up my.yaml --name mine --no-agents",
    "testbed up metro-40km --observe            # with Prometheus; then: testbed observe",
    "testbed up regional-ring --dry-run         # what would be done, one step a line",
)
def up(
    topology: TopologyArgument,
    set_: Overrides = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the lab. [default: the topology's]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, do nothing.", show_default=False)] = False,
    agents: Annotated[bool, typer.Option("--agents/--no-agents", help="A training agent per rank.")] = True,
    driver: Driver = "auto",
    emulator: Emulator = "auto",
    observe: Annotated[
        bool,
        typer.Option("--observe", help="Add a Prometheus that scrapes it: testbed observe.", show_default=False),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave what stands when it fails, to look at it.", show_default=False)
    ] = False,
    allow_uncertified: AllowUncertified = False,
    as_json: AsJson = False,
) -> None:
    """Bring a lab up: sites, fibers, agents; measure every fiber before it is believed."""
    from testbed.lab import api

    wanted = api.load(topology, verb.read_overrides(set_))
    if dry_run:
        _show_plan(wanted, name or wanted.name, agents, observe, api.choose(wanted, name, driver, emulator), as_json)
        return
    with console.progress() as progress:
        lab = api.up(
            wanted,
            name=name,
            agents=agents,
            driver=driver,
            emulator=emulator,
            observe=observe,
            keep=keep,
            allow_uncertified=allow_uncertified,
            progress=progress,
        )
    if as_json:
        measured = lab.certificate.to_dict() if lab.certificate else None
        console.show_json({"lab": lab.name, "topology": lab.topology.name, "certificate": measured})
    elif not console.quiet():
        _show_links(lab)
        _say_next(lab, observe)


def _show_plan(topology: Topology, name: str, agents: bool, observe: bool, choice: Choice, as_json: bool) -> None:
    from testbed.lab import api

    steps = [str(step) for step in api.plan(topology, agents, choice.emulator, observe, choice.driver)]
    if as_json:
        console.show_json({"lab": name, **dataclasses.asdict(choice), "steps": steps})
        return
    console.say(f"lab {name}, {choice}")
    for step in steps:
        console.show_line(step)


def _show_links(lab: Lab) -> None:
    from testbed.core.physics import validity
    from testbed.core.topology.survey import validity_of

    console.show(certificate_table.links_measured(lab.topology, lab.certificate))
    if lab.certificate:
        _say_of(lab.certificate)
    for line in validity.summary(validity_of(lab.topology)):
        console.say(line, style="dim")


def _say_of(measured: Certificate) -> None:
    console.say(certificate_table.footnote(measured), style="dim")
    for note in certificate_table.notes(measured):
        console.say(note, style="yellow")


def _this_python() -> str:
    """The Python that we run with, as one would type it: it has what the agents have, the system's may not."""
    try:
        return str(Path(sys.executable).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return sys.executable


def _say_next(lab: Lab, observed: bool) -> None:
    first, last = lab.topology.node_names[0], lab.topology.node_names[-1]
    lines = [f"testbed exec {first} -- ping -c 3 {last}"]
    if lab.topology.links:
        lines.append(f"testbed cut {lab.topology.links[0].name} --for 10s")
    if observed:
        lines.append("testbed observe")
    python = "python" if lab.status().driver == "containerlab" else _this_python()
    lines += [f"testbed launch -- {python} your_training.py", "testbed status --watch", f"testbed down {lab.name}"]
    console.say(f"Lab {lab.name} is up. Next:")
    for line in lines:
        console.say(f"  {line}", style="cyan")


@verb.verb(verb.LABS, "testbed down", "testbed down metro-40km other", "testbed down --all")
def down(
    labs: LabArguments = None,
    all_: Annotated[bool, typer.Option("--all", help="Every lab on this host.", show_default=False)] = False,
    lab: LabName = None,
) -> None:
    """Remove labs, and nothing that is not theirs; silent when there is nothing to remove.

    Works after a crash or kill of any process, from the lab's journal alone.
    """
    from testbed.lab import api

    if all_ and labs:
        raise UserError("either name labs or say --all, not both")
    names = api.lab_names() if all_ else labs or ([lab] if lab else _only_lab())
    failed: list[TestbedError] = []
    for name in dict.fromkeys(names):
        try:
            if api.down(name):
                console.say(f"{name}: down")
        except TestbedError as error:  # one that will not go keeps no other up
            failed.append(error)
    failed.sort(key=lambda error: error.exit_code)
    for each in failed[:-1]:
        console.error(str(each))
    if failed:
        raise failed[-1]


def _only_lab() -> Sequence[str]:
    from testbed.lab import api

    names = api.lab_names()
    if len(names) > 1:
        raise UserError(f"{len(names)} labs are up: {', '.join(names)}; name the ones to remove, or say --all")
    return names


@verb.verb(verb.LABS, "testbed status", "testbed status -l metro-40km --watch", "testbed status --json")
def status(
    lab: LabName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second.", show_default=False)] = False,
    as_json: AsJson = False,
) -> None:
    """Links as their gateways see them, faults, ranks; what is wrong, if anything."""
    target = verb.attach(lab)
    if not watch:
        _show_status(target, as_json)
    elif as_json or not console.out().is_terminal:
        _repeat(lambda: _show_status(target, as_json))
    else:
        _watch(target)


def _show_status(lab: Lab, as_json: bool) -> None:
    found = lab.status()
    if as_json:
        console.show_json(tables.plain(found))
        return
    console.show(tables.status_line(found))
    for each in tables.status(found):
        console.show(each)


def _repeat(work: Callable[[], None]) -> None:
    while True:
        work()
        time.sleep(WATCH_EVERY_S)


def _watch(lab: Lab) -> None:
    from rich.console import Group
    from rich.live import Live

    def look() -> Group:
        found = lab.status()
        return Group(tables.status_line(found), *tables.status(found))

    with Live(look(), console=console.out(), auto_refresh=False) as live:
        _repeat(lambda: live.update(look(), refresh=True))


@verb.verb(
    verb.LABS,
    "testbed exec east-0 -- ping -c 3 west-0",
    "testbed exec east-gw ip route              # gateways and the plant too",
    "testbed exec east-0 bash",
    ours=125,
    passes_words_on=True,
)
def exec_(
    node: NodeArgument,
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="Passed on as it is.")],
    lab: LabName = None,
) -> int:
    """Run a program inside a node, with your terminal; its exit status is ours.

    125 is the testbed's own, 126 a command that cannot be run, 127 one that is not there. Options of exec itself come
    before NODE.
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise UserError(f"what is to run in {node}? Write: testbed exec {node} -- COMMAND")
    target = verb.attach(lab)
    with _ctrl_c_is_for_the_child():
        return target.exec(node, words)


@contextlib.contextmanager
def _ctrl_c_is_for_the_child() -> Iterator[None]:
    """The terminal sends it to both of us: what it means is the program's to say, as in a shell.

    A handler that does nothing, not SIG_IGN: that one the child would inherit.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@verb.verb(
    verb.LABS, "testbed logs", "testbed logs east-0 -f", "testbed logs 3                             # of rank 3"
)
def logs(
    what: Annotated[str | None, typer.Argument(metavar="[NODE|RANK]", help="[default: the lab's own]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they grow.", show_default=False)] = False,
    lab: LabName = None,
) -> None:
    """Logs of the lab (keeper, emulator, agents, Prometheus), or of one node or rank."""
    for line in verb.attach(lab).logs(what, follow):
        console.show_line(line)


@verb.verb(verb.LABS, "testbed certify", "testbed certify --thorough --json")
def certify(
    thorough: Annotated[bool, typer.Option("--thorough", help="More packets: a minute.", show_default=False)] = False,
    lab: LabName = None,
    as_json: AsJson = False,
) -> int:
    """Measure every fiber of a live lab now: the fidelity certificate. Exit status 1: outside tolerance.

    Each direction by itself: delay, jitter, loss and its bursts, order, duplicates, corruption, rate; and the round
    trip of each link. A fast one takes about a second and tells a loss of a percent; with --thorough, up to a minute,
    one of a thousandth. The healthy topology is what it compares with: a fault that stands on a fiber is outside
    tolerance. Of ranks it says nothing: testbed status does.
    """
    target = verb.attach(lab)
    measured = target.certify(thorough, (lambda text: console.say(text, style="dim")) if thorough else None)
    if as_json:
        console.show_json(measured.to_dict())
        return 0 if measured.certified else 1
    console.show(certificate_table.links_measured(target.topology, measured))
    _say_of(measured)
    word = tables.verdict("certified") if measured.certified else tables.verdict("bad").append(": outside tolerance")
    console.show(word)
    for why in measured.why:
        console.show(f"  {why}")
    return 0 if measured.certified else 1
