"""The docker daemon, through its SDK: one client a process, and its exceptions in our words.

The SDK is imported when it is needed: it costs a tenth of a second, and labs of namespaces do without.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.errors import HostError, MissingTool, NotAllowed, TestbedError

if TYPE_CHECKING:
    from docker import DockerClient

__all__ = ["INSTALL", "NotThere", "client", "refuse_silence", "translated", "why_not"]

INSTALL: Final = "sudo tools/install-containerlab.sh (in the testbed's repository; docs/containerlab.md)"
ANSWER_BOUND_S: Final = 60
_SOCKET: Final = Path("/var/run/docker.sock")
_DOES_NOT_RUN: Final = "docker does not run; start it: service docker start"
_NO_PERMISSION: Final = "no permission for docker's socket; use sudo, or join the group docker"


class NotThere(HostError):
    """Docker has no container or image of that name."""


@functools.cache
def client() -> DockerClient:
    """Connected to the daemon that DOCKER_HOST names, else to the local socket.

    Raises MissingTool, NotAllowed or HostError.
    """
    if not os.environ.get("DOCKER_HOST") and not _SOCKET.exists():
        if shutil.which("dockerd") is None:
            raise MissingTool("docker", INSTALL)
        raise HostError(_DOES_NOT_RUN)
    import docker

    with translated("reach the docker daemon"):
        try:
            made = docker.from_env(timeout=ANSWER_BOUND_S)
        except ValueError as error:
            raise HostError(f"DOCKER_HOST={os.environ.get('DOCKER_HOST', '')} is no address: {error}") from error
        made.ping()
        return made


def why_not() -> str:
    """Why docker cannot be used here; empty if it can."""
    try:
        client()
    except TestbedError as error:
        return str(error)
    return ""


def refuse_silence() -> None:
    """Raise NotAllowed or HostError if nobody listens at docker's socket: at a thousandth of what the SDK costs."""
    kind, _, path = (os.environ.get("DOCKER_HOST") or f"unix://{_SOCKET}").partition("://")
    if kind != "unix":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(ANSWER_BOUND_S)
        try:
            asking.connect(path)
        except PermissionError as error:
            raise NotAllowed(_NO_PERMISSION) from error
        except OSError as error:
            raise HostError(_DOES_NOT_RUN) from error


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Foreign exceptions of a block of SDK calls become ours; ``doing`` completes "could not …"."""
    try:
        yield
    except Exception as error:
        if ours := _translation(error, doing):
            raise ours from error
        raise


def _translation(error: Exception, doing: str) -> TestbedError | None:
    import docker.errors
    import requests

    words = str(error)
    if isinstance(error, docker.errors.NotFound):
        return NotThere(f"could not {doing}: docker has none ({error.explanation})")
    if isinstance(error, docker.errors.APIError):
        return HostError(f"could not {doing}: docker says: {error.explanation or error}")
    if isinstance(error, docker.errors.ContainerError):
        said = error.stderr or b""
        last = (said.decode(errors="replace") if isinstance(said, bytes) else said).strip().splitlines()[-1:]
        return HostError(f"could not {doing}: it ended with status {error.exit_status}: {' '.join(last)}")
    if not isinstance(error, docker.errors.DockerException | requests.exceptions.RequestException):
        return None
    if "PermissionError" in words or "Permission denied" in words:
        return NotAllowed(f"could not {doing}: {_NO_PERMISSION}")
    if "FileNotFoundError" in words or "ConnectionRefused" in words or "Connection refused" in words:
        return HostError(f"could not {doing}: {_DOES_NOT_RUN}")
    if isinstance(error, requests.exceptions.Timeout) or "timed out" in words:  # while it connects, it is wrapped
        return HostError(f"could not {doing}: docker did not answer within {ANSWER_BOUND_S} s")
    return HostError(f"could not {doing}: {words}")
