"""Connect to another host by SSH as ssh itself would: its settings (``ssh -G``), its known_hosts files, its jump hosts.

paramiko is the client, with four differences from its own ways. Settings come from ssh, because paramiko ignores
``Include``. Files of host keys are read by :mod:`testbed.core.remote.known_hosts`, because one line with a marker makes
a whole file unreadable to paramiko (paramiko#771). A dead peer is noticed by TCP_USER_TIMEOUT, and behind a jump host
by :func:`_watch`, because paramiko's keepalive asks for no answer. Signals go through the leash, because paramiko has
none (paramiko#203).

Never learns a host's key, never forwards an agent, never asks for a password.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.core.remote import known_hosts, ssh_settings
from testbed.core.remote.known_hosts import HostKey, Judgement
from testbed.core.remote.ssh_settings import SshSettings
from testbed.core.user_text import printable, shown
from testbed.errors import HostError, MissingTool, UserError

if TYPE_CHECKING:
    import paramiko

__all__ = ["DEAD_AFTER_S", "configuration", "connect"]

CONNECT_S, ANSWER_S = 10.0, 15.0
DEAD_AFTER_S = 30.0
"""A peer that acknowledges nothing for so long is dead (TCP_USER_TIMEOUT, RFC 5482)."""

_LONGEST_CHAIN = 8


def configuration() -> str:
    """Return the file that $TESTBED_SSH_CONFIG names in place of ~/.ssh/config; empty for none."""
    return os.environ.get("TESTBED_SSH_CONFIG", "")


def connect(where: str) -> paramiko.Transport:
    """Return an authenticated connection to ``where``, which is whatever ``ssh WHERE`` takes.

    Raises UserError (the host's key, or this user, is not accepted, or
    ssh's settings cannot be used), HostError (it cannot be reached), MissingTool (no ssh here).
    """
    if where.startswith("-") or not where.isprintable() or not where.strip():
        fix = "name a host of ssh's configuration, or user@host"
        raise UserError(f"expected a host as ssh takes it, got {shown(where)}; {fix}")
    opened: list[paramiko.Transport] = []
    try:
        for name, settings in _route(where, ("--", where)):
            opened.append(_open(name, settings, _through(opened[-1] if opened else None, settings, name)))
    except BaseException:
        for transport in reversed(opened):
            transport.close()
        raise
    return opened[-1]


def _route(where: str, place: Sequence[str], depth: int = 0) -> list[tuple[str, SshSettings]]:
    """Return the hosts of ProxyJump that lead to a host, in order, and the host itself, with their settings.

    As for ssh, the ProxyJump of the first of them counts, too, and that of the others does not.
    """
    settings = _settings(where, place)
    if settings.command:
        raise UserError(
            f"{where}: ssh connects by ProxyCommand, which --on cannot; write ProxyJump in ssh's configuration"
        )
    hops: list[tuple[str, SshSettings]] = []
    if depth + len(settings.jumps) > _LONGEST_CHAIN:
        raise UserError(f"{where}: expected at most {_LONGEST_CHAIN} hosts in ProxyJump, got more; is there a loop?")
    for jump in settings.jumps:
        way = ssh_settings.jump_words(jump)
        hops += [(jump, _settings(jump, way))] if hops else _route(jump, way, depth + 1)
    return [*hops, (where, settings)]


def _load_paramiko() -> None:
    """Import paramiko without invoke, which takes as long as all the rest.

    It serves ``Match exec`` in paramiko's reader of ssh_config alone; here ssh itself reads that.
    """
    without = "invoke" not in sys.modules
    if without:
        sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko  # noqa: F401
    finally:
        if without:
            del sys.modules["invoke"]


def _settings(where: str, place: Sequence[str]) -> SshSettings:
    """Return what ssh says of a host; ``place``: the words that name it."""
    program = shutil.which("ssh")
    if program is None:
        from testbed.host import installation  # takes as long as a key exchange

        raise MissingTool("ssh", installation.apt("openssh-client"), "it knows how to reach a host")
    chosen = ["-F", config] if (config := configuration()) else []
    argv = ["ssh", *chosen, "-G", *place]
    quiet = subprocess.DEVNULL
    try:
        with subprocess.Popen(
            [program, *argv[1:]], stdin=quiet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as asked:
            try:
                _load_paramiko()  # meanwhile
                output, refused = asked.communicate(timeout=CONNECT_S)
            except BaseException:
                asked.kill()
                raise
        if asked.returncode:
            raise UserError(_refused(where, refused, argv))
        return ssh_settings.parse(output)
    except ValueError as error:
        raise UserError(_refused(where, str(error), argv)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{where}: ssh -G cannot be used: {error}") from error


def _refused(where: str, complaint: str, asked: Sequence[str]) -> str:
    *_, why = complaint.strip().splitlines() or ["ssh -G failed"]  # warnings come before the reason
    why = "it is none for ssh" if complaint.lstrip().startswith("usage:") else printable(why)
    return f"{where}: expected a host as ssh takes it, but {why}; try: {shlex.join(asked)}"


def _through(transport: paramiko.Transport | None, settings: SshSettings, where: str) -> Any:
    """Return a stream to the host: of TCP, or through a host in between."""
    import paramiko

    target = (settings.host, settings.port)
    try:
        if transport is not None:
            return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=CONNECT_S)
        stream = socket.create_connection(target, CONNECT_S)
        stream.getpeername()  # an attempt may fail just as it is looked at, and would seem to be made
    except (OSError, UnicodeError, paramiko.SSHException) as error:
        why = getattr(error, "strerror", None) or getattr(error, "text", None) or error
        if isinstance(error, UnicodeError):  # of IDNA
            why = "expected a name of parts of 1 to 63 characters"
        raise HostError(f"{where}: cannot connect to {settings.host} port {settings.port}: {why}") from error
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEAD_AFTER_S * 1000))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def _open(where: str, settings: SshSettings, stream: Any) -> paramiko.Transport:
    import paramiko

    known_keys = _known(where, settings)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # errors are told here, once
    heard = _HeardStream(stream)
    transport = paramiko.Transport(heard)  # type: ignore[arg-type]
    try:
        transport.banner_timeout = transport.auth_timeout = ANSWER_S
        _prefer(transport, known_hosts.key_types(known_keys, settings.names))
        _prefer_fast_ciphers(transport)
        transport.start_client(timeout=ANSWER_S)
        key = transport.get_remote_server_key()
        offered = HostKey(key.get_name(), key.asbytes())
        _accept(where, settings, offered, known_hosts.judge(known_keys, settings.names, offered))
        _authenticate(where, settings, transport)
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        why = printable(str(error)) or "it was closed at once"
        raise HostError(f"{where}: no SSH connection to {settings.host} port {settings.port}: {why}") from error
    except BaseException:
        transport.close()
        raise
    _watch(transport, heard, DEAD_AFTER_S)
    return transport


def _known(where: str, settings: SshSettings) -> list[known_hosts.KnownHost]:
    known_keys = []
    for name in settings.known_hosts:
        with contextlib.suppress(OSError):
            known_keys += known_hosts.read(name, _path(name).read_text(errors="replace"))
    if settings.revoked:
        try:
            text = _path(settings.revoked).read_text(errors="replace")
            known_keys += known_hosts.read_revoked(settings.revoked, text)
        except (OSError, ValueError) as error:
            fix = "let RevokedHostKeys name a file of public keys, one a line; --on reads no KRL"
            raise UserError(f"{where}: refused: cannot tell whether its key is revoked: {error}; {fix}") from error
    return known_keys


def _path(name: str, tokens: Mapping[str, str] | None = None) -> Path:
    """Return a path of ssh's settings: of ``~`` and, where ``tokens`` are given, of these."""
    path = Path(name if tokens is None else ssh_settings.expanded(name, tokens, os.environ))
    try:
        return path.expanduser()
    except RuntimeError:  # no such user
        return path


def _tokens(settings: SshSettings) -> dict[str, str]:
    """Return what ``%`` and a letter stand for (TOKENS of ssh_config(5))."""
    here, user = socket.gethostname(), ""
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    return {
        "d": str(_path("~")), "h": settings.host, "p": str(settings.port), "r": settings.user,
        "k": settings.key_alias or settings.host, "i": str(os.getuid()), "u": user,
        "L": here.partition(".")[0], "l": here,
    }  # fmt: skip


_OF_RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")


def _prefer(transport: paramiko.Transport, types: Sequence[str]) -> None:
    """Ask for a key of a known type, else a host that has several would offer one of which nothing is known."""
    options = transport.get_security_options()
    wanted = [algorithm for kind in types for algorithm in (_OF_RSA if kind == "ssh-rsa" else (kind,))]
    if usable := [algorithm for algorithm in wanted if algorithm in options.key_types]:
        options.key_types = usable


def _prefer_fast_ciphers(transport: paramiko.Transport) -> None:
    """Ask for AES-GCM first: a gigabyte takes half the processor time of paramiko's own first choice, CTR and HMAC."""
    options = transport.get_security_options()
    # sorted() keeps the order otherwise.
    options.ciphers = sorted(options.ciphers, key=lambda cipher: "-gcm@" not in cipher)


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

    file_keys: list[tuple[str, paramiko.PKey]] = []
    of_files: set[bytes] = set()
    tokens = _tokens(settings)
    for name in settings.identity_files:
        path = _path(name, tokens)
        is_public = False
        for public in (f"{path}.pub", str(path)):  # the file itself may be the public key of one that the agent has
            with contextlib.suppress(OSError, ValueError, IndexError):
                of_files.add(paramiko.pkey.PublicBlob.from_file(public).key_blob)
                is_public = public == str(path)
        if is_public or not path.is_file():
            continue
        try:
            file_keys.append((name, paramiko.PKey.from_path(path)))
        except (paramiko.PasswordRequiredException, TypeError):
            tried.append(f"{name} (has a passphrase: add it to ssh-agent)")
        except Exception as error:  # of cryptography, too: a key of a kind that it does not know
            tried.append(f"{name} ({printable(str(error)) or type(error).__name__})")
    agent: list[tuple[str, paramiko.PKey]] = []
    if settings.agent:
        before = dict(os.environ)
        if settings.agent.startswith("$") and (variable := settings.agent[1:]) in os.environ:
            os.environ["SSH_AUTH_SOCK"] = os.environ[variable]
        elif settings.agent != "SSH_AUTH_SOCK":
            os.environ["SSH_AUTH_SOCK"] = str(_path(settings.agent, tokens))
        try:
            with contextlib.suppress(paramiko.SSHException, OSError):
                agent = [(f"agent's {key.get_name()} key", key) for key in paramiko.Agent().get_keys()]
        finally:
            if "SSH_AUTH_SOCK" in before:
                os.environ["SSH_AUTH_SOCK"] = before["SSH_AUTH_SOCK"]
            else:
                os.environ.pop("SSH_AUTH_SOCK", None)
    if settings.identities_only:
        agent = [(name, key) for name, key in agent if key.asbytes() in of_files]
    return [*agent, *file_keys]


# ---- watching the peer: TCP_USER_TIMEOUT sees the cable of the first host on the way alone: one after it may be dark
# while that host goes on to acknowledge


_ASKS_EVERY_S: Final = 5.0
_LOOKS_EVERY_S: Final = 1.0


class _HeardStream:
    """The stream below an SSH connection; ``byte_count`` is how much has arrived."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.byte_count = 0

    def recv(self, count: int) -> bytes:
        piece: bytes = self._stream.recv(count)
        self.byte_count += len(piece)
        return piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _watch(transport: paramiko.Transport, heard: _HeardStream, silence_s: float) -> None:
    """Close the connection once nothing has arrived for ``silence_s``, though the peer is asked for an answer."""
    for work in (lambda: _ask(transport), lambda: _look(transport, heard, silence_s)):
        threading.Thread(target=work, daemon=True, name="peer watch").start()


def _ask(transport: paramiko.Transport) -> None:
    with contextlib.suppress(Exception):  # paramiko raises many kinds where the connection is closed meanwhile
        while transport.is_active():
            transport.global_request("keepalive@openssh.com", wait=True)  # refused, which is an answer
            time.sleep(_ASKS_EVERY_S)


def _look(transport: paramiko.Transport, heard: _HeardStream, silence_s: float) -> None:
    # Looks are counted, not seconds: this process may have been stopped, and has not read yet what arrived meanwhile.
    before, silent = -1, 0
    while transport.is_active() and silent * _LOOKS_EVERY_S < silence_s:
        time.sleep(_LOOKS_EVERY_S)
        silent = silent + 1 if heard.byte_count == before else 0
        before = heard.byte_count
    transport.close()
