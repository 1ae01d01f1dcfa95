"""Which docker daemon to use: the one that docker's own command would use, if it is on this machine.

containerlab reads DOCKER_HOST only, so the address is resolved once, here, in the order of docker's command line, and
passed to containerlab, to docker's command and to the SDK: DOCKER_HOST, DOCKER_CONTEXT, the current context, the
default socket (docs.docker.com/engine/manage-resources/contexts). Contexts are read by the SDK.

A lab is created by one daemon, which its folder records (``testbed.host.lab_nodes``); every later verb uses that one,
whatever the environment names.

Only a Unix socket is accepted. A lab's links are created in this machine's kernel, between local namespaces; the
containers of a daemon that is reached over TCP or ssh are on another machine.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from testbed.core.user_text import shown
from testbed.errors import HostError, NotAllowed, UserError
from testbed.host import installation
from testbed.host.linux import invocation

__all__ = [
    "ASK_BOUND_S",
    "USUAL",
    "Elsewhere",
    "Endpoint",
    "ask",
    "does_not_run",
    "endpoint",
    "maker_of",
    "no_permission",
]

USUAL: Final = Path("/var/run/docker.sock")
ASK_BOUND_S: Final = 10.0
"""Time limit of requests that docker answers from memory: a frozen daemon must not block a command."""


def does_not_run() -> str:
    """Return the message for a daemon that is installed but does not answer."""
    start = "systemctl start docker" if Path("/run/systemd/system").is_dir() else "service docker start"
    otherwise = installation.containerlab()  # which starts dockerd itself
    return f"docker is not running; start it: {invocation.as_root(start)}, or where that fails: {otherwise}"


def no_permission() -> str:
    """Return the message for a user who may not use the daemon."""
    return f"no permission for docker's socket; join the group docker, or {invocation.again()}"


class Elsewhere(UserError):
    """The daemon creates containers on another machine, or on another kernel of this one."""


@dataclass(frozen=True)
class Endpoint:
    """The socket of a docker daemon.

    Attributes:
        socket: absolute path.
        said_by: what named it, as in "DOCKER_HOST"; empty for the default socket.
        lab: the lab that this daemon created, if that is why it is used.
    """

    socket: Path
    said_by: str = ""
    lab: str = ""

    @property
    def address(self) -> str:
        """For DOCKER_HOST, and docker's ``--host``."""
        return f"unix://{self.socket}"

    @property
    def silence(self) -> str:
        """A clause for error messages: which socket does not answer, and why it was used. Empty for the default one."""
        if self.lab:
            return f" (no answer at {self.socket}, the docker that created lab {self.lab} according to {self.said_by})"
        return f" (no answer at {self.socket}, set by {self.said_by})" if self.said_by else ""


def endpoint() -> Endpoint:
    """Return the daemon that docker's command would use. Raises Elsewhere; UserError for an unknown context."""
    if host := os.environ.get("DOCKER_HOST", ""):
        return _local(host, "DOCKER_HOST")
    file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker", "config.json")
    name, source = os.environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name and os.access(file, os.R_OK):  # as docker does: a file that cannot be read configures nothing
        from docker.context.config import get_current_context_name

        name, source = get_current_context_name(), str(file)
    if not name or name == "default":
        return Endpoint(USUAL)
    return _local(_host_of(name, source, file.parent), f"docker's context {shown(name)} ({source})")


def maker_of(lab: str, address: str, said_by: str) -> Endpoint:
    """Return the daemon that created a lab, from the address recorded in ``said_by``. Raises Elsewhere."""
    return Endpoint(_local(address, said_by).socket, said_by, lab)


def _host_of(context: str, source: str, configuration: Path) -> str:
    """Return the address of a docker context. Raises UserError if there is none of that name.

    Not by the SDK's ``Context.load_context``: without config.json that searches below the working directory, which may
    belong to any user.
    """
    from docker.context.config import METAFILE, get_context_id

    meta = configuration / "contexts" / "meta" / get_context_id(context) / METAFILE
    try:
        host = json.loads(meta.read_bytes())["Endpoints"]["docker"]["Host"] if os.access(meta, os.R_OK) else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{source}: cannot read docker context {shown(context)}: {error}") from error
    if not host:
        raise UserError(f"{source}: unknown docker context {shown(context)}; list them with: docker context ls")
    return str(host)


def _local(address: str, said_by: str) -> Endpoint:
    kind, _, path = address.partition("://")
    if kind != "unix":
        raise Elsewhere(
            f"{said_by} is {shown(address)}, expected a Unix socket of this machine, as in"
            f" DOCKER_HOST=unix://{USUAL}: a lab's links are created in this machine's kernel"
        )
    return Endpoint(Path("/") / path if path else USUAL, said_by)


def ask(where: Endpoint, path: str, bound_s: float = ASK_BOUND_S, **query: str) -> Any:
    """Send a GET request (docs.docker.com/reference/api/engine) and return the decoded answer.

    It takes a hundredth of the time of the SDK's import. Raises NotAllowed, HostError.
    """
    import http.client  # takes 10 ms; the driver netns sends docker no request

    connection = http.client.HTTPConnection("docker", timeout=bound_s)
    try:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.sock.settimeout(bound_s)
        connection.sock.connect(str(where.socket))
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
        answer = connection.getresponse()
        body = answer.read()
    except PermissionError as error:
        raise NotAllowed(no_permission()) from error
    except TimeoutError as error:
        message = f"docker did not answer within {bound_s:g} s{where.silence}; see: service docker status"
        raise HostError(message) from error
    except (OSError, http.client.HTTPException) as error:
        raise HostError(does_not_run() + where.silence) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise HostError(f"docker reports: {body.decode(errors='replace').strip() or answer.reason}")
    try:
        return json.loads(body)
    except ValueError as error:
        raise HostError(f"expected docker at {where.socket}, got an answer that is not JSON") from error
