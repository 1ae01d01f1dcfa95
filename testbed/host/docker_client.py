"""The docker daemon, through its SDK: one client a process, and its exceptions in our words."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import docker
import docker.errors
import requests

from testbed.errors import HostError, MissingTool, NotAllowed, TestbedError

__all__ = ["INSTALL", "client", "translated", "why_not"]

INSTALL = "sudo tools/install-containerlab.sh (in the testbed's repository; docs/containerlab.md)"
ANSWER_BOUND_S = 60


@functools.cache
def client() -> docker.DockerClient:
    """Connected to the daemon that DOCKER_HOST names, else to the local socket.

    Raises MissingTool, NotAllowed or HostError.
    """
    with translated("reach the docker daemon"):
        made = docker.from_env(timeout=ANSWER_BOUND_S)
        made.ping()
        return made


def why_not() -> str:
    """Why docker cannot be used here; empty if it can."""
    try:
        client()
    except TestbedError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Foreign exceptions of a block of SDK calls become ours; ``doing`` completes "could not …"."""
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise HostError(f"could not {doing}: there is no such image ({error.explanation})") from error
    except docker.errors.APIError as error:
        raise HostError(f"could not {doing}: docker says: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        words = str(error)
        if "PermissionError" in words or "Permission denied" in words:
            raise NotAllowed(
                f"could not {doing}: no permission for docker's socket; run with sudo, or join the group docker"
            ) from error
        if "FileNotFoundError" in words or "No such file" in words:
            raise MissingTool(
                "docker", INSTALL, "its socket is not there: it is not installed, or not running"
            ) from error
        if "ConnectionRefused" in words or "Connection refused" in words:
            raise HostError(
                f"could not {doing}: docker is installed but does not run; start it: service docker start"
            ) from error
        raise HostError(f"could not {doing}: {words}") from error
