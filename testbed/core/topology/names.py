"""Valid names of sites, links and ducts, which become interfaces, hosts and targets of faults.

The kernel limits interface names to 15 characters (IFNAMSIZ, include/uapi/linux/if.h); ``<site>-255`` and
``<link>-a`` must fit. Sites, nodes, gateways, links and ducts share one name space, so that a fault's target is never
ambiguous.
"""

from __future__ import annotations

import re
from typing import Final

from testbed.core.units import Unreadable
from testbed.core.user_text import shown

__all__ = ["LONGEST", "check_name"]

LONGEST: Final = {"site": 11, "link": 13, "duct": 32, "topology": 32}

_SHAPE: Final = re.compile(r"[a-z](?:-?[a-z0-9])*", re.ASCII)

_RESERVED: Final = frozenset({"all", "any", "default", "host", "lo", "localhost", "none", "plant"}) | frozenset(
    {"fabric", "fabric0", "mgmt", "mgmt0", "management", "gw", "step", "link", "site", "duct", "node"}
)

# ip-link(8), ip-address(8), ip-route(8): in the place of a name, ip reads these keywords and any prefix of them.
# fmt: off
_IP_WORDS: Final = (
    "add", "address", "addrgenmode", "alias", "allmulticast", "arp", "bridge", "broadcast", "carrier", "change",
    "delete", "dev", "down", "dynamic", "event", "from", "group", "gso_max_size", "help", "index", "label",
    "link-netnsid", "local", "master", "metric", "mode", "mtu", "multicast", "name", "netns", "nomaster",
    "noprefixroute", "numtxqueues", "oif", "onlink", "parentdev", "peer", "permanent", "primary", "promisc",
    "proto", "protodown", "scope", "secondary", "set", "show", "src", "state", "table", "tentative", "to",
    "trailers", "txqueuelen", "type", "up", "via", "vf", "vlan", "vrf", "xdp",
)
# fmt: on


def check_name(kind: str, name: str) -> None:
    """Check that ``name`` is valid for a ``kind``, a key of :data:`LONGEST`.

    Raises:
        Unreadable: with the reason.
    """
    longest = LONGEST[kind]
    if not _SHAPE.fullmatch(name):
        fix = "use lower-case letters, digits and single dashes, starting with a letter and not ending with a dash"
        raise Unreadable(f"invalid {kind} name {shown(name)}", fix)
    if len(name) > longest:
        raise Unreadable(f"{kind} name {shown(name)} has {len(name)} characters", f"use at most {longest}")
    if name in _RESERVED:
        raise Unreadable(f"{shown(name)} is a reserved name", "choose another name")
    if kind == "link":
        if len(name) < 2:
            raise Unreadable(f"link name {shown(name)} is too short", "use at least 2 characters")
        taken = [word for word in _IP_WORDS if word.startswith(name)]
        if taken:
            raise Unreadable(f"the ip command reads {shown(name)} as '{taken[0]}'", "choose another name")
