"""The docker SDK: one client per daemon and process, its exceptions translated to ``testbed.errors``.

The SDK is imported when it is first needed: the import takes 0.3 s, and the driver netns works without it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from testbed.errors import HostError, MissingTool, NotAllowed, TestbedError
from testbed.host import installation
from testbed.host.drivers.docker_endpoint import (
    ASK_BOUND_S,
    Elsewhere,
    Endpoint,
    ask,
    does_not_run,
    endpoint,
    no_permission,
)

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["NotThere", "client", "refuse_silence", "translated", "why_not"]

ANSWER_BOUND_S: Final = 60
"""Time limit of an SDK call; whether docker answers at all is known sooner (:func:`refuse_silence`)."""


class NotThere(HostError):
    """Docker has no container or image with that name."""


def client(where: Endpoint | None = None) -> DockerClient:
    """Return a client of this daemon; None: the one of :func:`~testbed.host.drivers.docker_endpoint.endpoint`.

    Raises as :func:`refuse_silence`.
    """
    return _connected(where or endpoint())


@functools.cache
def _connected(where: Endpoint) -> DockerClient:
    refuse_silence(where)
    import docker

    with translated("reach the docker daemon"):
        return docker.DockerClient(base_url=where.address, timeout=ANSWER_BOUND_S)


def why_not() -> str:
    """Return why docker cannot be used on this host; empty if it can."""
    try:
        client()
    except TestbedError as error:
        return str(error)
    return ""


def refuse_silence(where: Endpoint | None = None, bound_s: float = ASK_BOUND_S) -> None:
    """Raise UserError, NotAllowed, MissingTool or HostError unless docker answers in time and on this kernel.

    ``where`` as in :func:`client`.
    """
    where = where or endpoint()
    if not where.said_by and not where.socket.exists():
        if shutil.which("dockerd"):
            raise HostError(does_not_run())
        raise MissingTool("docker", installation.containerlab())
    kernel, ours = ask(where, "/version", bound_s).get("KernelVersion", ""), os.uname().release
    if kernel != ours:
        raise Elsewhere(
            f"docker at {where.socket} runs on another kernel ({kernel}, expected {ours}), as Docker Desktop does:"
            " a lab's links cannot be created there; install docker on this host, or use --driver netns"
        )


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate exceptions of a block of SDK calls to ``testbed.errors``; ``doing`` completes "could not …"."""
    try:
        yield
    except Exception as error:
        if ours := _translation(error, doing):
            raise ours from error
        raise


def _translation(error: Exception, doing: str) -> TestbedError | None:
    import docker.errors
    import requests

    message = str(error)
    if isinstance(error, docker.errors.NotFound):
        return NotThere(f"could not {doing}: not found ({error.explanation})")
    if isinstance(error, docker.errors.APIError):
        return HostError(f"could not {doing}: docker reports: {error.explanation or error}")
    if isinstance(error, docker.errors.ContainerError):
        stderr = error.stderr or b""
        last = (stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr).strip().splitlines()[-1:]
        return HostError(f"could not {doing}: it exited with status {error.exit_status}: {' '.join(last)}")
    if not isinstance(error, docker.errors.DockerException | requests.exceptions.RequestException):
        return None
    if "PermissionError" in message or "Permission denied" in message:
        return NotAllowed(f"could not {doing}: {no_permission()}")
    if "FileNotFoundError" in message or "ConnectionRefused" in message or "Connection refused" in message:
        return HostError(f"could not {doing}: {does_not_run()}")
    # A timeout while connecting is wrapped.
    if isinstance(error, requests.exceptions.Timeout) or "timed out" in message:
        return HostError(f"could not {doing}: docker did not answer within {ANSWER_BOUND_S} s")
    return HostError(f"could not {doing}: {message}")
