"""Names of a lab's interfaces: the full name where it fits, else a short one made from it, unique within the lab.

The kernel limits an interface name to 15 characters (IFNAMSIZ, include/uapi/linux/if.h), names of sites and links have
up to 40. A link ``north`` is ``north`` on both gateways, and ``north-a`` and ``north-b`` in the plant; a node or a
gateway is a port of its own name. Where such a name is too long, the part that a person chose is shortened to its first
characters and five of its hash: ``frankfurt-to-san-francisco-a`` is ``frankfu-k3x9q-a``. The full name becomes the
interface's alternative name, which ``ip`` takes in place of the other.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["LONGEST", "RESERVED", "InterfaceNames", "shortened"]

LONGEST: Final = 15
"""IFNAMSIZ is 16, with the final zero."""

RESERVED: Final = frozenset({"lo", "eth0", "fabric", "fabric0", "mgmt", "mgmt0", "ref0", "ref-a", "ref-b"})
"""Interfaces that a lab's namespaces have beside these."""

_HASHED: Final = 5
_ENDS: Final = ("-a", "-b")
_LINK_STEM: Final = LONGEST - len("-a")
_SITE_STEM: Final = LONGEST - len("-255")


def shortened(stem: str, most: int, turn: int = 0, hashed: int = _HASHED) -> str:
    """Return ``stem`` in at most ``most`` characters: its beginning, a dash, ``hashed`` characters of its hash.

    It depends on nothing but the arguments, so a name is the same on every machine and in every version. ``turn``
    selects another hash, for a name that is taken. A character of the hash has 5 bits.
    """
    digest = hashlib.sha256(f"{stem}\0{turn}".encode()).digest()
    suffix = base64.b32encode(digest)[:hashed].decode().lower()
    return f"{stem[: most - hashed - 1].rstrip('-')}-{suffix}"


class InterfaceNames:
    """The interfaces of one lab.

    Names that fit are never changed. The others are shortened one after the other in alphabetical order, so the order
    of the topology file does not matter; one that would equal any other interface of the lab takes its next hash. The
    name of an interface therefore changes with other names only in that case, about once in 30 million pairs of names
    that begin alike.
    """

    def __init__(self, sites: Mapping[str, Iterable[str]], links: Iterable[str]) -> None:
        """``sites`` has the suffixes of each site's ports (``-0``, ``-gw``); ``links`` are names."""
        wanted: dict[tuple[str, str], tuple[int, tuple[str, ...]]] = {
            ("link", name): (_LINK_STEM, ("", *_ENDS)) for name in links
        }
        wanted |= {("site", name): (_SITE_STEM, tuple(suffixes)) for name, suffixes in sites.items()}
        self._full: dict[str, str] = {}
        """By interface name: the full one."""
        self._names: dict[tuple[str, str, str], str] = {}
        """By kind, name and suffix."""
        used, long = set(RESERVED), dict[tuple[str, str], list[str]]()
        for key, (_, suffixes) in wanted.items():
            for suffix in suffixes:
                if len(full := key[1] + suffix) <= LONGEST:
                    self._names[*key, suffix] = full
                    used.add(full)
                else:
                    long.setdefault(key, []).append(suffix)
        for key in sorted(long):
            turn, most = 0, wanted[key][0]
            while not used.isdisjoint(made := {shortened(key[1], most, turn) + end for end in long[key]}):
                turn += 1
            used |= made
            for suffix in long[key]:
                name = self._names[*key, suffix] = shortened(key[1], most, turn) + suffix
                self._full[name] = key[1] + suffix

    def of_link(self, link: str) -> str:
        """Return the interface of a link on both of its gateways."""
        return self._names["link", link, ""]

    def ends(self, link: str) -> tuple[str, str]:
        """Return the interfaces of a link in the plant: ``-a`` faces ``between[0]``, ``-b`` faces ``between[1]``."""
        a, b = (self._names["link", link, suffix] for suffix in _ENDS)
        return a, b

    def port(self, site: str, place: str) -> str:
        """Return the interface toward ``place``, a node or the gateway of ``site``, in the fabric and in the management
        network."""
        return self._names["site", site, place.removeprefix(site)]

    def full(self, interface: str) -> str:
        """Return the full name of an interface, which is its own unless it was shortened."""
        return self._full.get(interface, interface)

    def alternative(self, interface: str) -> str:
        """Return the alternative name of an interface; empty if its own is the full one."""
        return self._full.get(interface, "")

    @property
    def short(self) -> Mapping[str, str]:
        """The full names of all shortened interfaces, by their short name."""
        return self._full
