"""Verbs of the driver containerlab: the file it deploys, and the image its containers are made from."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import console, verb
from testbed.cli.verb import Overrides, TopologyArgument
from testbed.errors import StorageError


class What(StrEnum):
    """What `image` makes."""

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
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the lab; default: the topology's.")] = "",
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Of all containers; default: this version's.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of printing it.")
    ] = None,
) -> None:
    """Print the containerlab topology of a lab: sites, gateways, plant and management network as containers.

    It is what `testbed up --driver containerlab` deploys. By itself it brings the sites up with dark fibers; the
    testbed puts the light in, with delay, rate and loss, and measures it.
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
    "testbed image build --wheels /media/wheels   # without an index",
    "testbed image build --with validate          # with the libraries that testbed validate tries",
    "testbed image base   # a base without a registry: debootstrap, as root",
)
def image(
    what: Annotated[What, typer.Argument(help="build: the image of this version; base: an image to build it on.")],
    base: Annotated[str, typer.Option(metavar="IMAGE", help="Build on this image (Python >= 3.11).")] = "",
    wheels: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Take packages from here first."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="torch with CUDA (several GB) in place of its CPU build.")] = False,
    tag: Annotated[str, typer.Option(metavar="NAME:TAG", help="Call the image so.")] = "",
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="EXTRA", help="Install this extra of the testbed too; may be repeated."),
    ] = None,
) -> None:
    """Make the image of a lab's containers: torch for CPUs, the training agents, ip, ping and iperf3.

    Packages are fetched by this Python's pip, so that whatever lets this host install packages lets it build the image.
    """
    from testbed.host.drivers import images

    say = console.say
    if what is What.base:
        name = images.make_base(say=say)
    else:
        name = images.build(base, wheels=wheels, gpu=gpu, tag=tag, extras=with_ or (), say=say)
    console.show_line(name)
