"""Which docker daemon: the one that docker's own command would ask, if it is on this machine.

docker's command knows contexts (``docker context use``); its SDK and containerlab know DOCKER_HOST alone. So the
address is found once, here, in the order of docker's command line, and handed to all three: DOCKER_HOST,
DOCKER_CONTEXT, the context that is in use, the usual socket (docs.docker.com/engine/manage-resources/contexts).

A lab is made by one daemon, and its folder keeps which (``testbed.host.lab_nodes``): every later verb asks that one,
whatever the environment says by then.

Only a Unix socket will do. A lab's links are made in this machine's kernel, between namespaces that must be here; the
containers of a daemon that is reached over TCP or ssh are elsewhere.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from testbed.core.user_text import shown
from testbed.errors import HostError, NotAllowed, UserError

__all__ = [
    "ASK_BOUND_S",
    "DOES_NOT_RUN",
    "NO_PERMISSION",
    "USUAL",
    "Elsewhere",
    "Endpoint",
    "ask",
    "endpoint",
    "maker_of",
]

USUAL: Final = Path("/var/run/docker.sock")
DOES_NOT_RUN: Final = "docker does not run; start it: service docker start"
NO_PERMISSION: Final = "no permission for docker's socket; use sudo, or join the group docker"
ASK_BOUND_S: Final = 10.0
"""For what docker answers out of its memory: one that is frozen must not hold a command for ever."""


class Elsewhere(UserError):
    """That docker makes containers on another machine, or on another kernel of this one."""


@dataclass(frozen=True)
class Endpoint:
    """``socket`` is absolute; ``said_by`` is what named it, as in "DOCKER_HOST"; empty for the usual one. ``lab``: that
    one was made by this daemon, which is why it is asked."""

    socket: Path
    said_by: str = ""
    lab: str = ""

    @property
    def address(self) -> str:
        """For DOCKER_HOST, and docker's ``--host``."""
        return f"unix://{self.socket}"

    @property
    def silence(self) -> str:
        """Where nobody answers, and why it was asked there, to be appended; empty for the usual one."""
        if self.lab:
            return f" (nobody answers at {self.socket}, whose docker made lab {self.lab}, says {self.said_by})"
        return f" (nobody answers at {self.socket}, which {self.said_by} names)" if self.said_by else ""


def endpoint() -> Endpoint:
    """Raises Elsewhere, or UserError for a context that there is not."""
    if said := os.environ.get("DOCKER_HOST", ""):
        return _local(said, "DOCKER_HOST")
    context, where = os.environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not context:
        file = _configuration() / "config.json"
        context, where = str(_read(file).get("currentContext", "")), str(file)
    if context in ("", "default"):
        return Endpoint(USUAL)
    address = _address_of(context)
    if not address:
        raise UserError(f"{where}: there is no docker context {shown(context)}; see: docker context ls")
    return _local(address, f"docker's context {shown(context)} ({where})")


def maker_of(lab: str, address: str, said_by: str) -> Endpoint:
    """The daemon that made a lab, by the address that ``said_by`` keeps. Raises Elsewhere."""
    return Endpoint(_local(address, said_by).socket, said_by, lab)


def _configuration() -> Path:
    said = os.environ.get("DOCKER_CONFIG", "")
    return Path(said) if said else Path(os.environ.get("HOME", "/root"), ".docker")


def _read(path: Path) -> dict[str, Any]:
    """As docker does: what is not there says nothing; what cannot be read is no reason to do without docker."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _address_of(context: str) -> str:
    """Empty if there is no such context. Where docker keeps them: github.com/docker/cli, cli/context/store."""
    folder = hashlib.sha256(context.encode()).hexdigest()
    meta = _read(_configuration() / "contexts" / "meta" / folder / "meta.json")
    try:
        return str(meta["Endpoints"]["docker"]["Host"])
    except (KeyError, TypeError):
        return ""


def _local(address: str, said_by: str) -> Endpoint:
    kind, _, path = address.partition("://")
    if kind != "unix":
        raise Elsewhere(
            f"{said_by} says {shown(address)}: a lab's links are made in this machine's kernel, so docker must be"
            f" reached at a Unix socket of this machine, as in DOCKER_HOST=unix://{USUAL}"
        )
    return Endpoint(Path("/") / path if path else USUAL, said_by)


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, bound_s: float) -> None:
        super().__init__("docker", timeout=bound_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(where: Endpoint, path: str, bound_s: float = ASK_BOUND_S, **query: str) -> Any:
    """What docker answers to a GET (docs.docker.com/reference/api/engine): a hundredth of what its SDK's import costs.

    Raises NotAllowed, HostError.
    """
    connection = _Connection(where.socket, bound_s)
    try:
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
        answer = connection.getresponse()
        body = answer.read()
    except PermissionError as error:
        raise NotAllowed(NO_PERMISSION) from error
    except TimeoutError as error:
        words = f"docker did not answer within {bound_s:g} s{where.silence}; see: service docker status"
        raise HostError(words) from error
    except (OSError, http.client.HTTPException) as error:
        raise HostError(DOES_NOT_RUN + where.silence) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise HostError(f"docker says: {body.decode(errors='replace').strip() or answer.reason}")
    try:
        return json.loads(body)
    except ValueError as error:
        raise HostError(f"what answers at {where.socket} is no docker") from error
