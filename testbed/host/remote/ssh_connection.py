"""Connect to another host by SSH as ssh itself would: its settings (``ssh -G``), its known_hosts files, its jump hosts.

paramiko is the client, with four differences from its own ways. Settings come from ssh, because paramiko ignores
``Include``. Files of host keys are read by :mod:`testbed.core.remote.known_hosts`, because one line with a marker makes
a whole file unreadable to paramiko (paramiko#771). A dead peer is noticed by TCP_USER_TIMEOUT, because paramiko's
keepalive asks for no answer. Signals go through the leash, because paramiko has none (paramiko#203).

Never learns a host's key, never forwards an agent, never asks for a password.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.remote import known_hosts, ssh_settings
from testbed.core.remote.known_hosts import HostKey, Judgement
from testbed.core.remote.ssh_settings import SshSettings
from testbed.errors import HostError, MissingTool, UserError
from testbed.host import installation

if TYPE_CHECKING:
    import paramiko

__all__ = ["DEAD_AFTER_S", "configuration", "connect"]

CONNECT_S, ANSWER_S = 10.0, 15.0
DEAD_AFTER_S = 30.0
"""A peer that acknowledges nothing for so long is dead (TCP_USER_TIMEOUT, RFC 5482)."""
KEEPALIVE_S = 5

_LONGEST_CHAIN = 8


def configuration() -> str:
    """Return the file that $TESTBED_SSH_CONFIG names in place of ~/.ssh/config; empty for none."""
    return os.environ.get("TESTBED_SSH_CONFIG", "")


def connect(where: str) -> paramiko.Transport:
    """Return an authenticated connection to ``where``, which is whatever ``ssh WHERE`` takes.

    Raises UserError (the host's key, or this user, is not accepted, or
    ssh's settings cannot be used), HostError (it cannot be reached), MissingTool (no ssh here).
    """
    settings = _settings(where)
    if settings.command:
        raise UserError(
            f"{where}: ssh connects by ProxyCommand, which --on cannot; write ProxyJump in ssh's configuration"
        )
    if len(settings.jumps) > _LONGEST_CHAIN:
        raise UserError(f"{where}: expected at most {_LONGEST_CHAIN} hosts in ProxyJump, got {len(settings.jumps)}")
    transport: paramiko.Transport | None = None
    for jump in settings.jumps:
        hop = _settings(jump)
        transport = _open(jump, hop, _through(transport, hop, jump))
    return _open(where, settings, _through(transport, settings, where))


def _settings(where: str) -> SshSettings:
    program = shutil.which("ssh")
    if program is None:
        raise MissingTool("ssh", installation.apt("openssh-client"), "it knows how to reach a host")
    if where.startswith("-"):
        raise UserError(f"expected a host, got {where!r}")
    chosen = ["-F", config] if (config := configuration()) else []
    try:
        done = subprocess.run([program, *chosen, "-G", "--", where], capture_output=True, text=True, timeout=CONNECT_S)
        if done.returncode:
            raise UserError(f"{where}: ssh refuses its configuration: {done.stderr.strip()}")
        return ssh_settings.parse(done.stdout)
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{where}: ssh -G cannot be used: {error}") from error


def _through(transport: paramiko.Transport | None, settings: SshSettings, where: str) -> Any:
    """Return a stream to the host: of TCP, or through a host in between."""
    import paramiko

    target = (settings.host, settings.port)
    try:
        if transport is not None:
            return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=CONNECT_S)
        stream = socket.create_connection(target, CONNECT_S)
        stream.getpeername()  # an attempt may fail just as it is looked at, and would seem to be made
    except (OSError, paramiko.SSHException) as error:
        why = getattr(error, "strerror", None) or error
        raise HostError(f"{where}: cannot connect to {settings.host} port {settings.port}: {why}") from error
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEAD_AFTER_S * 1000))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def _open(where: str, settings: SshSettings, stream: Any) -> paramiko.Transport:
    import paramiko

    known = _known(settings.known_hosts)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # errors are told here, once
    transport = paramiko.Transport(stream)
    try:
        transport.banner_timeout = transport.auth_timeout = ANSWER_S
        _prefer(transport, known_hosts.key_types(known, settings.names))
        transport.start_client(timeout=ANSWER_S)
        key = transport.get_remote_server_key()
        offered = HostKey(key.get_name(), key.asbytes())
        _accept(where, settings, offered, known_hosts.judge(known, settings.names, offered))
        _authenticate(where, settings, transport)
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        why = str(error) or "it was closed at once"
        raise HostError(f"{where}: no SSH connection to {settings.host} port {settings.port}: {why}") from error
    except BaseException:
        transport.close()
        raise
    transport.set_keepalive(KEEPALIVE_S)
    return transport


def _known(files: Sequence[str]) -> list[known_hosts.KnownHost]:
    found = []
    for name in files:
        with contextlib.suppress(OSError):
            found += known_hosts.read(name, Path(name).expanduser().read_text(errors="replace"))
    return found


_OF_RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


def _prefer(transport: paramiko.Transport, types: Sequence[str]) -> None:
    """Ask for a key of a known type, else a host that has several would offer one of which nothing is known."""
    options = transport.get_security_options()
    wanted = [each for kind in types for each in (_OF_RSA if kind == "ssh-rsa" else (kind,))]
    if usable := [it for it in wanted if it in options.key_types]:
        options.key_types = usable


def _accept(where: str, settings: SshSettings, offered: HostKey, judged: Judgement) -> None:
    """Raise UserError unless the host's key is known."""
    by = f"{judged.by.file}:{judged.by.line}" if judged.by else ""
    key = f"{offered.type} {offered.fingerprint}"
    files = " or ".join(settings.known_hosts) or "a known_hosts file"
    texts = {
        "unknown": f"its key is not known ({key}); compare it with the host's, then: ssh-keyscan -H -p {settings.port}"
        f" {settings.host} >> {files.split(' or ')[0]}",
        "changed": f"it offers another key ({key}) than {by} says; if the host was made anew, remove that line",
        "revoked": f"its key ({key}) is revoked by {by}",
        "authority": f"only the certificate authority of {by} vouches for it, which --on cannot check; add the host's"
        f" own key ({key}) to {files}",
    }
    if judged.kind != "known":
        raise UserError(f"{where}: refused: {texts[judged.kind]}")


def _authenticate(where: str, settings: SshSettings, transport: paramiko.Transport) -> None:
    """Try the keys that ssh would: of the agent, then of files. Raises UserError if none is accepted."""
    import paramiko

    tried: list[str] = []
    for name, key in _keys(settings, tried):
        try:
            transport.auth_publickey(settings.user, key)
        except paramiko.AuthenticationException:
            tried.append(name)
            continue
        if transport.is_authenticated():
            return
        tried.append(f"{name} (the host wants more than a key)")
    keys = ", ".join(tried) or "no key was found"
    raise UserError(
        f"{where}: {settings.user} is not let in at {settings.host}: {keys}; --on never asks for a password"
    )


def _keys(settings: SshSettings, tried: list[str]) -> list[tuple[str, paramiko.PKey]]:
    import paramiko

    found: list[tuple[str, paramiko.PKey]] = []
    of_files: set[bytes] = set()
    for name in settings.identity_files:
        path = Path(name).expanduser()
        with contextlib.suppress(OSError, ValueError, IndexError):
            of_files.add(paramiko.pkey.PublicBlob.from_file(f"{path}.pub").key_blob)
        if not path.is_file():
            continue
        try:
            found.append((name, paramiko.PKey.from_path(path)))
        except (paramiko.PasswordRequiredException, TypeError):
            tried.append(f"{name} (has a passphrase: add it to ssh-agent)")
        except (paramiko.SSHException, OSError, ValueError) as error:
            tried.append(f"{name} ({error})")
    agent: list[tuple[str, paramiko.PKey]] = []
    if settings.agent:
        before = os.environ.get("SSH_AUTH_SOCK")
        if settings.agent != "SSH_AUTH_SOCK":
            os.environ["SSH_AUTH_SOCK"] = str(Path(settings.agent).expanduser())
        try:
            with contextlib.suppress(paramiko.SSHException, OSError):
                agent = [(f"agent's {it.get_name()} key", it) for it in paramiko.Agent().get_keys()]
        finally:
            if before is not None:
                os.environ["SSH_AUTH_SOCK"] = before
    if settings.identities_only:
        agent = [(name, key) for name, key in agent if key.asbytes() in of_files]
    return [*agent, *found]
