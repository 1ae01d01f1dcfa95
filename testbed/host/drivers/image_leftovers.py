"""Remove what builds of the testbed's images leave in docker: images without a name ("dangling").

A build in two stages leaves the first stage, a failed build its last step, and an image that is built anew the one that
had its name. Removed is only what can be told to be ours: images that this build made, images whose label names a
builder that has ended (:data:`BUILDER`), and earlier results, by their newest instruction. An image that somebody built
on ours has our labels too, but a newer instruction of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from testbed.core.plan.resources import LABEL
from testbed.errors import HostError
from testbed.host.drivers.docker_client import NotThere, client, translated
from testbed.host.linux import process

__all__ = ["BUILDER", "builder", "replaced", "sweep"]

BUILDER: Final = f"{LABEL}.build"
"""Label of unfinished images: the process that builds them. Empty in the result (agents/Dockerfile)."""

_FINISHED: Final = f"{BUILDER}="
_SETTLE_S: Final = 10.0
"""How long docker may take to end a build whose caller was interrupted."""


def builder() -> str:
    """Return the label of what this process builds: boot, pid and start time."""
    return f"{process.boot_id()}:{os.getpid()}:{process.started(os.getpid())}"


def replaced(name: str) -> set[str]:
    """Return the id of the image that has this name and is about to lose it, if there is one. Raises HostError."""
    try:
        with translated(f"look for the image {name}"):
            return {str(client().images.get(name).id).removeprefix("sha256:")}
    except NotThere:
        return set()


def sweep(made: Collection[str], say: Callable[[str], None]) -> None:
    """Remove nameless images of ours: ``made`` by this build or replaced by it (ids, perhaps shortened), and those of
    builds that ended.

    Tells about an image that labs still use; the next build removes it. Docker may still be ending a build that was
    interrupted: it is waited for, within seconds. Raises HostError.
    """
    mine, until = builder(), time.monotonic() + _SETTLE_S
    while True:
        with translated("list nameless images"):
            nameless = client().api.images(filters={"dangling": True})
            working = client().api.containers(filters={"label": f"{BUILDER}={mine}"})
        kept = [image["Id"] for image in nameless if _ours(image, made) and not _removed(image["Id"])]
        if not working and (not kept or not any(_unfinished(image, mine) for image in nameless if image["Id"] in kept)):
            break
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    for identifier in kept:
        say(f"{identifier.removeprefix('sha256:')[:12]}, an earlier image, stays while containers use it;"
            " the next build removes it")  # fmt: skip


def _ours(image: dict[str, Any], made: Collection[str]) -> bool:
    if any(image["Id"].removeprefix("sha256:").startswith(image_id) for image_id in made):
        return True
    label = (image.get("Labels") or {}).get(BUILDER)
    if label is None:
        return False
    if label:
        return label == builder() or not _alive(label)
    try:
        with translated("read an image's history"):
            steps = client().images.get(image["Id"]).history()
    except NotThere:
        return False
    return _FINISHED in str(steps[0]["CreatedBy"]).split()


def _unfinished(image: dict[str, Any], label: str) -> bool:
    return (image.get("Labels") or {}).get(BUILDER) == label


def _alive(label: str) -> bool:
    boot, _, pid_and_start = label.partition(":")
    pid, _, began = pid_and_start.partition(":")
    if not (pid.isdecimal() and began.isdecimal()):
        return False
    return boot == process.boot_id() and process.is_same(int(pid), int(began))


def _removed(identifier: str) -> bool:
    """Remove an image with its nameless parents; return False if a container uses it."""
    try:
        with translated("remove a nameless image"):
            client().api.remove_image(identifier)
    except NotThere:
        return True
    except HostError:
        return False
    return True
