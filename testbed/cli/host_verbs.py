"""Verbs for other hosts and for containers: host, fetch, render, image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, on_host, verb
from testbed.cli.on_host import On, Sent, Written
from testbed.cli.options import Overrides, RunArgument, RunsFolder, read_overrides
from testbed.errors import StorageError, UserError


@verb.verb(
    verb.LOOK,
    "testbed render metro-40km",
    "testbed render metro-40km --output metro.clab.yml",
    "testbed render metro-40km --kubernetes -- --steps 100",
)
def render(
    topology: RunArgument,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- OPTIONS...]", help="With --kubernetes: further options of the run."),
    ] = None,
    set_: Overrides = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Print a Kubernetes Job of one run instead.", show_default=False)
    ] = False,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the lab, or of the Job (default: the topology's name).")
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            metavar="IMAGE", help="Image of the lab's containers, or of the pod (default: this version's image)."
        ),
    ] = "",
    claim: Annotated[
        str,
        typer.Option(metavar="NAME", help="With --kubernetes: PersistentVolumeClaim that the run directory goes to."),
    ] = "testbed-runs",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout."),
        Written(),
    ] = None,
) -> None:
    """Print the containerlab topology of a lab: sites, gateways, plant and management network as containers.

    This is the file that `testbed up --driver containerlab` deploys. Deployed without the testbed, the sites come up
    with dark fibers; the testbed lights the fibers, adds delay, rate and loss, and measures them.

    With --kubernetes: print a Job that runs a topology or an experiment in one pod, and a ConfigMap of its files.
    """
    from testbed.host.files import catalog

    if kubernetes:
        text = _kubernetes_job(topology, set_ or [], options or [], name, image, claim)
        follow_up = f"build and push the image, as the file says, and kubectl create -f {output}"
    else:
        from testbed.lab import containers

        if options:
            given = " ".join([topology, *options])
            raise UserError(f"expected one topology, got {given}; options of a run need --kubernetes")
        text = containers.render(catalog.load_topology(topology, read_overrides(set_)), name=name, image=image)
        follow_up = f"containerlab deploy --topo {output}"
    if output is None:
        console.show_line(text.rstrip("\n"))
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}") from error
    console.say(f"written to {output}; next: {follow_up}")


def _kubernetes_job(what: str, assignments: list[str], options: list[str], name: str, image: str, claim: str) -> str:
    """Return the Job of ``testbed run WHAT``; its options are read as `run` reads them."""
    from testbed.host.remote import departures
    from testbed.lab.run import kubernetes_job

    run = typer.main.get_command(verb.app).commands["run"]  # type: ignore[attr-defined]
    arguments = [*(word for assignment in assignments for word in ("--set", assignment)), *options, "--", what]
    try:
        context = run.make_context("run", arguments)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of typer's parser, whose errors have no public base
            raise
        raise UserError(f"options of the run: {error.format_message().rstrip('.')}") from error
    for option in ("on", "runs", "junit"):
        if on_host.source(context, option) == "COMMANDLINE":
            raise UserError(f"--{option} names a place outside of the pod; remove it (results go to --claim)")
    files = departures.Departures()
    marks = {**run.marks, "what": Sent()}  # kubernetes_job adds what an experiment names
    typed = [*on_host.typed_words(context, marks, False, files)]
    return kubernetes_job.render(
        what,
        ["run", *typed],
        [file.here for file in files.sent],
        overrides=read_overrides(context.params["set_"]),
        name=name,
        image=image,
        claim=claim,
    )


@verb.verb(
    verb.LOOK,
    "testbed image build",
    "testbed image build --wheels /media/wheels   # without a package index",
    "testbed image build --with validate          # with the libraries that testbed validate tests",
    "testbed image base   # a base image without a registry: debootstrap, as root",
)
def image(
    what: Annotated[
        Literal["build", "base"], typer.Argument(help="build: the image of this version; base: a base image for it.")
    ],
    base: Annotated[str, typer.Option(metavar="IMAGE", help="Build on this base image (Python >= 3.11).")] = "",
    wheels: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Look for packages in this folder first."),
        Sent(always=True),
    ] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Install torch with CUDA (several GB) instead of its CPU build.")
    ] = False,
    tag: Annotated[str, typer.Option(metavar="NAME:TAG", help="Name and tag of the image.")] = "",
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="EXTRA", help="Also install this extra of the testbed. May be repeated."),
    ] = None,
) -> None:
    """Build the image of a lab's containers: torch for CPUs, the training agents, ip, ping and iperf3.

    This Python's pip fetches the packages, so any host that can install packages can build the image.
    """
    from testbed.host.drivers import images

    say = console.say
    if what == "base":
        name = images.make_base(say=say)
    else:
        name = images.build(base, wheels=wheels, gpu=gpu, tag=tag, extras=with_ or (), say=say)
    console.show_line(name)


@verb.verb(
    verb.LOOK,
    "testbed host prepare lab1",
    "testbed host prepare lab1 -- --check      # what would change",
    "testbed host prepare lab1 -- -e testbed_host_containers=true   # docker and containerlab, too",
    passes_on_arguments=True,
)
def host(
    action: Annotated[Literal["prepare"], typer.Argument(help="prepare: install this version of the testbed there.")],
    where: Annotated[str, typer.Argument(metavar="HOST", help="Whatever ssh HOST takes.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS...]", help="Passed on to ansible-playbook.")
    ] = None,
    on: On = None,
) -> int:
    """Prepare another host, for use with --on.

    Runs the playbook of ansible/ (docs/ansible.md) over ssh, not over the connection of --on. Needs a checkout of the
    testbed, because what is committed there is installed, and ansible-playbook: `make client` sets both up. Docker and
    containerlab are left out unless asked for. --on and TESTBED_ON have no effect: the playbook runs from here.
    """
    from testbed.host.remote import preparation

    passed_on = list(options or ())
    status = preparation.prepare(where, passed_on[1:] if passed_on[:1] == ["--"] else passed_on)
    if status == 0 and "--check" not in passed_on:
        console.say(f"next: {invocation.command('run', 'metro-40km', '--on', where, root=False)}", style="cyan")
    return status


@verb.verb(
    verb.RUNS,
    "testbed fetch metro-40km-20261121-054212 --on lab1",
    "testbed ls runs --on lab1                  # which there are",
)
def fetch(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run on the host of --on, or its directory there.")
    ],
    runs: RunsFolder = None,
    on: On = None,
) -> None:
    """Bring a run of another host here: one that was detached, or whose client went before its end.

    The run must have ended. It arrives whole or not at all, byte for byte, and stays there, too.
    """
    if not on:
        raise UserError("fetch brings a run of another host here; name the host: --on HOST")
    console.show_line(str(on_host.fetch(on, run, runs)))
