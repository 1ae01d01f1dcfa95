"""Valid names of sites, links and ducts, which become interfaces, hosts and targets of faults.

Interfaces have shorter names where these do not fit (``interface_names.py``). Sites, nodes, gateways, links and ducts
share one name space, so that a fault's target is never ambiguous.
"""

from __future__ import annotations

import re
from typing import Final

from testbed.core.units import Unreadable
from testbed.core.user_text import shown

__all__ = ["LONGEST", "check_name"]

LONGEST: Final = 40
"""Characters of every name that a person chooses, labs included: enough for ``frankfurt-to-san-francisco``, while a
node's host name (64, HOST_NAME_MAX) and the paths of a lab's sockets (107, unix(7)) keep room for what is added."""

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
    """Check that ``name`` is valid for a ``kind``: site, link, duct or topology.

    Raises:
        Unreadable: with the reason.
    """
    if not _SHAPE.fullmatch(name):
        fix = "use lower-case letters, digits and single dashes, starting with a letter and not ending with a dash"
        raise Unreadable(f"invalid {kind} name {shown(name)}", fix)
    if len(name) > LONGEST:
        raise Unreadable(f"{kind} name {shown(name)} has {len(name)} characters", f"use at most {LONGEST}")
    if name in _RESERVED:
        raise Unreadable(f"{shown(name)} is a reserved name", "choose another name")
    if kind == "link":
        if len(name) < 2:
            raise Unreadable(f"link name {shown(name)} is too short", "use at least 2 characters")
        taken = [word for word in _IP_WORDS if word.startswith(name)]
        if taken:
            raise Unreadable(f"the ip command reads {shown(name)} as '{taken[0]}'", "choose another name")
