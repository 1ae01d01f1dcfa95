"""What ``ssh -G HOST`` prints: the settings with which ssh itself would connect (ssh_config(5))."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["SshSettings", "expanded", "jump_words", "parse"]

DEFAULT_PORT = 22


@dataclass(frozen=True)
class SshSettings:
    """How to reach a host.

    Attributes:
        host: address or name that is connected to (HostName).
        port: TCP port.
        user: login name.
        identity_files: private keys in order, as written (``~`` not expanded); those that do not exist included.
        agent: path of the agent's socket, ``SSH_AUTH_SOCK`` for the usual one, empty for none.
        identities_only: whether keys of the agent that no identity file names are not tried.
        known_hosts: files of host keys in order, as written; the user's before the host's.
        revoked: file of host keys that are refused whatever else is known of them; empty for none.
        key_alias: name under which the host's key is known instead of its own; empty for none.
        jumps: hosts to go through, in order, each as ssh takes it.
        command: ProxyCommand; empty for none.
    """

    host: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    agent: str = "SSH_AUTH_SOCK"
    identities_only: bool = False
    known_hosts: tuple[str, ...] = ()
    revoked: str = ""
    key_alias: str = ""
    jumps: tuple[str, ...] = ()
    command: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names to look the host's key up by, in order: as known_hosts writes them (sshd(8)). ssh, too, looks for the
        name without a port where the one with it is unknown."""
        name = self.key_alias or self.host.lower()
        if self.key_alias or self.port == DEFAULT_PORT:
            return (name,)
        return f"[{name}]:{self.port}", name


def parse(printed: str) -> SshSettings:
    """Parse the output of ``ssh -G``. Raises ValueError if host, port or user are missing."""
    settings: dict[str, list[str]] = {}
    for line in printed.splitlines():
        key, _, value = line.strip().partition(" ")
        settings.setdefault(key.lower(), []).append(value.strip())
    missing = [key for key in ("hostname", "port", "user") if not any(settings.get(key, ()))]
    if missing:
        raise ValueError(f"ssh -G prints no {' or '.join(missing)}")
    agent = _one(settings, "identityagent", "SSH_AUTH_SOCK")
    return SshSettings(
        host=settings["hostname"][0],
        port=int(settings["port"][0]),
        user=settings["user"][0],
        identity_files=tuple(settings.get("identityfile", ())),
        agent="" if agent == "none" else agent,
        identities_only=_one(settings, "identitiesonly") == "yes",
        known_hosts=tuple(_files(settings, ("userknownhostsfile", "globalknownhostsfile"))),
        revoked=revoked if (revoked := _one(settings, "revokedhostkeys")) != "none" else "",
        key_alias=_one(settings, "hostkeyalias"),
        jumps=tuple(jump for jump in _one(settings, "proxyjump").split(",") if jump and jump != "none"),
        command="" if _one(settings, "proxycommand") == "none" else _one(settings, "proxycommand"),
    )


def jump_words(jump: str) -> list[str]:
    """Return the words with which ssh takes a host of ProxyJump, ``[user@]host[:port]``: a port is an option for it."""
    if jump.startswith("ssh://"):
        return ["--", jump]
    user, _, place = jump.rpartition("@")
    if bracketed := re.fullmatch(r"\[(.*)\](?::(\d+))?", place):
        host, port = bracketed[1], bracketed[2] or ""
    else:
        host, _, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
    return [*(("-l", user) if user else ()), *(("-p", port) if port else ()), "--", host]


def expanded(path: str, tokens: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return a path of ``ssh -G`` with its tokens (``%d``) and variables (``${HOME}``) expanded; ssh leaves them in it.

    What has no value stays as it is: no file has that name.
    """

    def value(match: re.Match[str]) -> str:
        token, variable = match.groups()
        return environment.get(variable, match[0]) if variable else {"%": "%", **tokens}.get(token, match[0])

    return re.sub(r"%(.)|\$\{(\w+)\}", value, path)


def _one(settings: dict[str, list[str]], key: str, default: str = "") -> str:
    return settings.get(key, [default])[0]


def _files(settings: dict[str, list[str]], keys: Sequence[str]) -> list[str]:
    # `ssh -G` prints names apart by blanks, and does not quote: a name with a blank in it cannot be told from two.
    return [name for key in keys for name in _one(settings, key).split() if name != "none"]
