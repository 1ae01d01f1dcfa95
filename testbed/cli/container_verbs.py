"""Verbs for the containerlab driver: render its topology file, build the container image."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import console, verb
from testbed.cli.verb import Overrides, TopologyArgument
from testbed.errors import StorageError


class What(StrEnum):
    """What `image` builds."""

    build = "build"
    base = "base"


@verb.verb(
    verb.LOOK,
    "testbed render metro-40km",
    "testbed render metro-40km --output metro.clab.yml",
)
def render(
    topology: TopologyArgument,
    set_: Overrides = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the lab (default: the topology's name).")] = "",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image of all containers (default: this version's image).")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
) -> None:
    """Print the containerlab topology of a lab: sites, gateways, plant and management network as containers.

    This is the file that `testbed up --driver containerlab` deploys. Deployed without the testbed, the sites come up
    with dark fibers; the testbed lights the fibers, adds delay, rate and loss, and measures them.
    """
    from testbed.host.files import catalog
    from testbed.lab import containers

    text = containers.render(catalog.load_topology(topology, verb.read_overrides(set_)), name=name, image=image)
    if output is None:
        console.show_line(text.rstrip("\n"))
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}") from error
    console.say(f"written to {output}; next: containerlab deploy --topo {output}")


@verb.verb(
    verb.LOOK,
    "testbed image build",
    "testbed image build --wheels /media/wheels   # without a package index",
    "testbed image build --with validate          # with the libraries that testbed validate tests",
    "testbed image base   # a base image without a registry: debootstrap, as root",
)
def image(
    what: Annotated[What, typer.Argument(help="build: the image of this version; base: a base image for it.")],
    base: Annotated[str, typer.Option(metavar="IMAGE", help="Build on this base image (Python >= 3.11).")] = "",
    wheels: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Look for packages in this folder first."),
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
    if what is What.base:
        name = images.make_base(say=say)
    else:
        name = images.build(base, wheels=wheels, gpu=gpu, tag=tag, extras=with_ or (), say=say)
    console.show_line(name)
