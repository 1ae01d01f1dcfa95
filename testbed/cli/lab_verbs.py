"""Verbs for labs: up, down, status, exec, logs, certify."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import certificate_table, console, lab_tables, tables, topology_tables, verb
from testbed.cli.console import Line, Note, Shown
from testbed.cli.options import (
    AllowUncertified,
    AsJson,
    Driver,
    Emulator,
    FiberOption,
    LabArguments,
    LabName,
    LabNameToMake,
    NodeArgument,
    Overrides,
    Strict,
    TopologyArgument,
    read_overrides,
)
from testbed.cli.verb import Result
from testbed.errors import FidelityError, LabError, NoisyHost, TestbedError, UnknownName, UserError
from testbed.host.linux.signals import handled

if TYPE_CHECKING:
    from testbed.core.certification.certificate import Certificate
    from testbed.core.topology.model import Topology
    from testbed.lab.api import Choice, FiberStatus, Lab

WATCH_EVERY_S = 1.0


@verb.verb(
    verb.LABS,
    "testbed up metro-40km",
    "testbed up metro-40km --set links.north.km=80 --set scale=100",
    "testbed up my.yaml --name mine --no-agents",
    "testbed up metro-40km --observe            # with Prometheus; then observe",
    "testbed up regional-ring --dry-run         # print the plan, one step per line",
)
def up(
    topology: TopologyArgument,
    set_: Overrides = None,
    name: LabNameToMake = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan without applying it.", show_default=False)
    ] = False,
    agents: Annotated[bool, typer.Option("--agents/--no-agents", help="Start a training agent per rank.")] = True,
    driver: Driver = "auto",
    emulator: Emulator = "auto",
    observe: Annotated[
        bool,
        typer.Option("--observe", help="Run a Prometheus in the lab (see the verb observe).", show_default=False),
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="If bring-up fails, keep the partial lab for inspection.", show_default=False),
    ] = False,
    strict: Strict = False,
    allow_uncertified: AllowUncertified = False,
    as_json: AsJson = False,
) -> Result:
    """Bring up a lab: sites, fibers and training agents; then measure and certify every fiber."""
    from testbed.lab import api

    wanted = api.load(topology, read_overrides(set_))
    if dry_run:
        choice = api.choose(wanted, name, driver, emulator)
        return _planned(wanted, name or wanted.name, agents, observe, choice)
    with console.progress() as progress:
        lab = api.up(
            wanted,
            name=name,
            agents=agents,
            driver=driver,
            emulator=emulator,
            observe=observe,
            keep=keep,
            strict=strict,
            allow_uncertified=allow_uncertified,
            progress=progress,
        )
    assignments = [word for assignment in set_ or () for word in ("--set", assignment)]
    return Result(
        data=lambda: {
            "lab": lab.name,
            "topology": lab.topology.name,
            "certificate": lab.certificate.to_dict() if lab.certificate else None,
            **topology_tables.full_scale_facts(lab.topology),
        },
        tables=() if console.quiet() else _brought_up(lab, observe, invocation.command("show", topology, *assignments)),
    )


def _planned(topology: Topology, name: str, agents: bool, observe: bool, choice: Choice) -> Result:
    from testbed.lab import api

    steps = [str(step) for step in api.plan(topology, agents, choice.emulator, observe, choice.driver)]
    return Result(
        data=lambda: {"lab": name, **dataclasses.asdict(choice), "steps": steps},
        tables=[Note(f"lab {name}, {choice}", ""), *map(Line, steps)],
    )


def _brought_up(lab: Lab, observed: bool, show: str) -> Iterator[Shown]:
    from testbed.core.physics import validity
    from testbed.core.topology.survey import validity_of

    yield certificate_table.links_measured(lab.topology, lab.certificate)
    if lab.certificate:
        yield from _remarks(lab.certificate, lab.topology)
    yield from map(Note, validity.summary(validity_of(lab.topology), show))
    yield Note(f"Lab {lab.name} is up. Next:", "")
    yield from (Note(f"  {line}", "cyan") for line in _next_commands(lab, observed))


def _remarks(measured: Certificate, topology: Topology) -> Iterator[Note]:
    yield Note(certificate_table.footnote(measured, topology.scale))
    yield from (Note(note, "yellow") for note in certificate_table.notes(measured))


def _next_commands(lab: Lab, observed: bool) -> Iterator[str]:
    from testbed.host import lab_owner

    first, last = lab.topology.node_names[0], lab.topology.node_names[-1]
    on = lab_owner.flag(lab.name)
    how = invocation.current()
    yield how.command("exec", *on, first, "--", "ping", "-c", "3", last)
    if lab.topology.links:
        yield how.command("cut", *on, lab.topology.links[0].name, "--for", "10s")
    if observed:
        yield how.command("observe", *on)
    python = "python" if lab.status().driver == "containerlab" else how.python
    yield how.command("launch", *on, "--", python, "your_training.py")
    yield how.command("status", *on, "--watch")
    yield how.command("down", lab.name)


@verb.verb(verb.LABS, "testbed down", "testbed down metro-40km other", "testbed down --all")
def down(
    labs: LabArguments = None,
    all_: Annotated[bool, typer.Option("--all", help="Take down every lab on this host.", show_default=False)] = False,
    lab: LabName = None,
) -> None:
    """Take labs down, removing only what they created; silent when there is nothing to remove.

    Works from the lab's journal alone, even after a crash or kill of any process.
    """
    from testbed.lab import api

    if all_ and labs:
        raise UserError("name labs or use --all, not both")
    names = api.lab_names() if all_ else labs or ([lab] if lab else api.only_mine())
    failed: list[TestbedError] = []
    for name in dict.fromkeys(names):
        whose = api.strangers(name)
        try:
            if api.down(name):
                if whose:
                    console.say(whose, style="yellow")
                console.say(f"{name}: down")
        except TestbedError as error:  # one failure must not leave the other labs up
            failed.append(error)
    failed.sort(key=lambda error: error.exit_code)
    for failure in failed[:-1]:
        console.error(str(failure))
    if failed:
        raise failed[-1]


@verb.verb(
    verb.LABS,
    "testbed status",
    "testbed status -l metro-40km --watch",
    "testbed status --fiber north:west",
    "testbed status --json",
)
def status(
    fiber: FiberOption = None,
    lab: LabName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second.", show_default=False)] = False,
    as_json: AsJson = False,
) -> Result:
    """Show links as their gateways see them, active faults, ranks, and what is wrong, if anything.

    Of a link: *km*, its length; *carrier*, whether the gateway of each site sees light; *verdict*, of the last
    certificate; *faults* in force, with their effect now; *packets* sent toward each site since the lab came up;
    *drops*, packets lost on it for any cause, cuts and configured loss included. Of a rank: its current *step*
    and its *train_loss* in nats per byte. Rates are those of the lab; below the tables are those at full scale.

    --fiber shows the values that the emulator applies to one fiber now, with the owner of each, and its counters.
    Exit status 3: the values cannot be read, or the emulator has other values than are in force.
    """
    target = verb.attach(lab)
    look = _status_of(target) if fiber is None else _fiber_status_of(target, fiber)
    if not watch:
        return look()
    if not as_json and console.out().is_terminal:
        _draw(look)
    while True:
        verb.show(look(), as_json)
        time.sleep(WATCH_EVERY_S)


def _status_of(lab: Lab) -> Callable[[], Result]:
    def look() -> Result:
        status = lab.status()
        notes = map(Note, lab_tables.status_notes(status))
        return Result(
            data=lambda: tables.plain(status),
            tables=[lab_tables.status_line(status), *lab_tables.of_status(status), *notes],
        )

    return look


def _fiber_status_of(lab: Lab, target: str) -> Callable[[], Result]:
    """Return what looks at a fiber; each look after the first one also has what passed per second since the last."""
    from testbed.core.fields import json_values

    last: dict[str, FiberStatus] = {}

    def look() -> Result:
        fibers = lab.fiber(target)
        shown = list(_of_fibers(fibers, lab.topology.scale, last))
        last.update({fiber.direction: fiber for fiber in fibers})
        return Result(
            data=lambda: [json_values(fiber) for fiber in fibers],
            tables=shown,
            status=LabError.exit_code if any(fiber.differences for fiber in fibers) else 0,
        )

    return look


def _of_fibers(fibers: Sequence[FiberStatus], scale: float, last: dict[str, FiberStatus]) -> Iterator[Shown]:
    from testbed.core.physics import full_scale

    for fiber in fibers:
        yield lab_tables.fiber_line(fiber)
        yield from lab_tables.of_fiber(fiber, scale, last.get(fiber.direction))
    yield from map(Note, filter(None, (full_scale.sentence(lab_tables.rates(fibers), scale), lab_tables.FIBER_LEGEND)))


def _draw(look: Callable[[], Result]) -> NoReturn:
    from rich.console import Group
    from rich.live import Live

    with Live(Group(*look().tables), console=console.out(), auto_refresh=False) as live:
        while True:
            live.update(Group(*look().tables), refresh=True)
            time.sleep(WATCH_EVERY_S)


@verb.verb(
    verb.LABS,
    "testbed exec east-0 -- ping -c 3 west-0",
    "testbed exec east-gw ip route              # gateways and the plant too",
    "testbed exec east-0 bash",
    own_status=125,
    passes_on_arguments=True,
    reads_stdin=True,
)
def exec_(
    node: NodeArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="[--] COMMAND...", help="Program and arguments, passed on unchanged.")
    ],
    lab: LabName = None,
) -> int:
    """Run a program inside a node, attached to this terminal, and return its exit status.

    In a namespace the program runs as root, unlike those of launch: it can change every file of this host. Exit
    status 125: an error of the testbed itself; 126: the command cannot be executed; 127: command not found.
    Options of exec itself come before NODE.
    """
    argv = command[1:] if command[0] == "--" else command
    if not argv:
        usage = invocation.command("exec", *(("-l", lab) if lab else ()), node, "--", "COMMAND")
        raise UserError(f"missing command to run in {node}; write: {usage}")
    target = verb.attach_to_change(lab)
    if target.runs_as_root and sys.stderr.isatty():
        console.say(f"note: the command runs as root in {node}, and can change every file of this host")
    # The terminal sends Ctrl-C to both processes, and the program decides what it means. Not SIG_IGN, which it would
    # inherit.
    with handled({signal.SIGINT: lambda number: None}):
        return target.exec(node, argv)


@verb.verb(
    verb.LABS,
    "testbed ssh-config   # > FILE; then: ssh -F FILE east-0 hostname",
    "testbed ssh-config -l metro-40km",
)
def ssh_config(lab: LabName = None) -> None:
    """Print an ssh_config(5) for tools that insist on ssh: ssh -F FILE east-0 runs commands in that node.

    They run as programs of launch do: as the user who called sudo, else the owner of the working directory, else uid
    60700. That user and root can use it, on this host and in nodes. Keys are made once per lab and user. Nothing
    listens: each connection is an sshd -i in the node, reached through a Unix socket, so its bytes cross no fiber. It
    needs OpenSSH's server on this host, and works until the lab is taken down.
    """
    console.show_line(verb.attach_to_change(lab).ssh_config())


@verb.verb(
    verb.LABS,
    "testbed logs",
    "testbed logs east-0 -f",
    "testbed logs 3                             # rank 3",
    "testbed logs --job j1 -f",
)
def logs(
    what: Annotated[
        str | None, typer.Argument(metavar="[NODE|RANK]", help="Node or rank (default: the lab's own logs).")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.", show_default=False)
    ] = False,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Output of a job's ranks, as in j1 (default: all).")
    ] = None,
    lab: LabName = None,
) -> None:
    """Show logs of the lab (keeper, emulator, agents, Prometheus), or of one node or rank.

    Of a node or rank: the output of its program in the lab's latest run, or in --job's. With --job alone: of all ranks
    of the job, each line after its rank; -f then ends with the job. An id of a job is never a node's name.
    """
    target, empty = verb.attach(lab), True
    try:
        for line in target.logs(what, follow) if job is None else target.logs(what, follow, job):
            console.show_line(line)
            empty = False
    except UnknownName as error:
        if job is not None or what is None or what not in (lab_job.id for lab_job in target.jobs()):
            raise
        of_job = invocation.command("logs", *(("-l", lab) if lab else ()), "--job", what)
        raise UserError(f"{error}; for the output of job {what}: {of_job}") from error
    if empty and job is not None:
        console.say(f"no output of job {job} {'by ' + what + ' ' if what else ''}yet")
    elif empty and what is not None:
        console.say(f"no output of {what} yet: no program has written any since lab {target.name} came up")


@verb.verb(verb.LABS, "testbed certify", "testbed certify --thorough --json", "testbed certify --strict")
def certify(
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Send more packets; up to a minute.", show_default=False)
    ] = False,
    strict: Strict = False,
    lab: LabName = None,
    as_json: AsJson = False,
) -> Result:
    """Measure every fiber of a running lab and issue a fidelity certificate.

    Verdicts and exit statuses: "certified", 0. "certified, noisy host", 0 (3 with --strict): all fibers are within
    tolerance, and the host delays packets. "outside tolerance", 1. "not measurable on this host now", 3: the host
    delays too many packets to judge a fiber.

    Checks delay, jitter, loss and its bursts, order, duplicates, corruption and rate of each direction, and the round
    trip of each link. The default takes about a second and resolves a loss of 1 %; --thorough takes up to a minute and
    resolves 0.1 %.

    Columns: *target*, the delay that the fiber shall have, one way; *error*, how much later the median packet is;
    *jitter*, how far the delays spread; *lost*, packets lost of those sent; *rate*, the bits per second that
    arrived, with the full-scale rate below; *verdict*: ok, bad, not told (too few packets to decide), or not measured
    (the host delayed too many packets).

    The reference is the healthy topology, so an active fault puts its fiber outside tolerance. Ranks
    are not checked; see testbed status.
    """
    target = verb.attach_to_change(lab)
    measured = target.certify(thorough, (lambda text: console.say(text, style="dim")) if thorough else None)
    return Result(
        data=lambda: {**measured.to_dict(), **topology_tables.full_scale_facts(target.topology)},
        tables=_measured(measured, target.topology, strict),
        status=_status(measured, strict),
    )


def _measured(measured: Certificate, topology: Topology, strict: bool) -> Iterator[Shown]:
    yield certificate_table.links_measured(topology, measured)
    yield from _remarks(measured, topology)
    yield tables.verdict(measured.verdict)
    yield from (f"  {why}" for why in measured.why or measured.unmeasured)
    if _status(measured, strict) == NoisyHost.exit_code:
        yield Note(measured.remedy, "")


def _status(measured: Certificate, strict: bool) -> int:
    """Return the exit status of a certificate, the same as that of `up`."""
    from testbed.core.certification import admission

    try:
        admission.refuse(measured, strict=strict)
    except (FidelityError, NoisyHost) as error:
        return error.exit_code
    return 0
