"""Is the key that a host offers the one that is known of it? By known_hosts files, as in sshd(8).

Read line by line: a line with a marker, or one that cannot be read, must not make the others unreadable. What a line
with ``@cert-authority`` vouches for is not checked here, so a host known by it alone is refused, with that reason.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

__all__ = ["HostKey", "Judgement", "KnownHost", "judge", "key_types", "read", "read_revoked"]

Marker: TypeAlias = Literal["", "@revoked", "@cert-authority"]
Kind: TypeAlias = Literal["known", "unknown", "changed", "revoked", "authority"]

_MARKERS: tuple[Marker, ...] = ("@revoked", "@cert-authority")


@dataclass(frozen=True)
class HostKey:
    """A public key: its type (``ssh-ed25519``) and its bytes as on the wire (RFC 4253, 6.6)."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -l`` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class KnownHost:
    """A line of a known_hosts file; ``names`` is its first field, or second after a marker."""

    file: str
    line: int
    marker: Marker
    names: str
    key: HostKey

    def is_of(self, name: str) -> bool:
        """Whether the line is of the host ``name`` (``[name]:port`` for a port other than 22)."""
        if self.names.startswith("|"):
            return _is_hash_of(self.names, name)
        patterns = self.names.split(",")
        if any(_matches(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
            return False
        return any(_matches(pattern, name) for pattern in patterns if not pattern.startswith("!"))


@dataclass(frozen=True)
class Judgement:
    """What the files say of an offered key, and the line that says it; ``unknown`` has none."""

    kind: Kind
    by: KnownHost | None = None


def read(file: str, text: str) -> list[KnownHost]:
    """Read a known_hosts file; lines that cannot be read are left out, as ssh does."""
    hosts = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines() ends lines at other characters, too
        fields = line.split()
        marker: Marker = ""
        for candidate in _MARKERS:
            if fields and fields[0] == candidate:
                marker, fields = candidate, fields[1:]
        if len(fields) < 3 or fields[0].startswith(("#", "@")):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        if _type_of(blob) == fields[1]:
            hosts.append(KnownHost(file, number, marker, fields[0], HostKey(fields[1], blob)))
    return hosts


def read_revoked(file: str, text: str) -> list[KnownHost]:
    """Read a file of keys that are revoked whatever the host (``RevokedHostKeys`` of ssh_config(5)), one a line.

    Raises ValueError for a line that is no key: a revocation must not be overlooked.
    """
    revoked = []
    for number, line in enumerate(text.split("\n"), 1):
        if fields := line.partition("#")[0].split():
            keys = read(file, f"@revoked * {' '.join(fields)}")
            if not keys:
                raise ValueError(f"{file}:{number}: expected a public key")
            revoked.append(replace(keys[0], line=number))
    return revoked


def judge(hosts: Iterable[KnownHost], names: Sequence[str], offered: HostKey) -> Judgement:
    """Return what is known of the host's key; what is said of the first of ``names`` that has a line counts.

    A revocation counts whatever else is written, in any file. Of a name without the port only the same key counts, as
    in ssh: another key may be another server's, at port 22.
    """
    lines = list(hosts)
    for name in names:
        of_host = [host for host in lines if host.is_of(name)]
        for host in of_host:
            if host.marker == "@revoked" and host.key == offered:
                return Judgement("revoked", host)
    for name in names:
        plain = [host for host in lines if not host.marker and host.is_of(name)]
        for host in plain:
            if host.key == offered:
                return Judgement("known", host)
        if plain and name == names[0]:
            same_type = [host for host in plain if host.key.type == offered.type]
            return Judgement("changed", (same_type or plain)[0])
    for name in names:
        for host in lines:
            if host.marker == "@cert-authority" and host.is_of(name):
                return Judgement("authority", host)
    return Judgement("unknown")


def key_types(hosts: Iterable[KnownHost], names: Sequence[str]) -> list[str]:
    """Return the types of keys known of the host, each once, in order; the host is to be asked for one of these."""
    lines = list(hosts)
    for name in names:
        if types := [host.key.type for host in lines if not host.marker and host.is_of(name)]:
            return list(dict.fromkeys(types))
    return []


def _matches(pattern: str, name: str) -> bool:
    # Of fnmatch's signs only * and ? are known_hosts': [ is part of "[name]:port".
    escaped = pattern.lower().replace("[", "[[]")
    return fnmatch.fnmatchcase(name.lower(), escaped)


def _is_hash_of(hashed: str, name: str) -> bool:
    """``|1|SALT|HASH``: HMAC-SHA1 of the name (ssh-keygen -H)."""
    try:
        _, version, salt, digest = hashed.split("|")
        if version != "1":
            return False
        expected = base64.b64decode(digest, validate=True)
        return hmac.compare_digest(
            hmac.new(base64.b64decode(salt, validate=True), name.encode(), "sha1").digest(), expected
        )
    except (ValueError, binascii.Error):
        return False


def _type_of(blob: bytes) -> str:
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii", "replace")
