"""Traffic control requests of the netem emulator, packed by hand, and what ``tc`` says of them afterwards.

pyroute2 0.9.7 cannot say what is needed here (netem with a rate fails, Gilbert-Elliott is silently ignored, there are
no nanoseconds and no 64-bit rates). Layouts: linux/pkt_sched.h, linux/pkt_cls.h, net/sched/sch_netem.c, sch_tbf.c.
What stands in the kernel is always read back by another program, ``tc``, and compared: :func:`differences`.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from testbed.errors import HostError, MissingTool
from testbed.host.rtnetlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_NEWLINK,
    attribute,
    message,
)

__all__ = ["Netem", "Tbf", "clsact", "differences", "no_qdiscs", "qdiscs", "redirect", "segments_per_packet"]

RTM_NEWQDISC, RTM_DELQDISC, RTM_NEWTFILTER = 36, 37, 44
TCA_KIND, TCA_OPTIONS = 1, 2
TC_H_ROOT, TC_H_CLSACT, CLSACT_INGRESS = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFFFFF2
NETEM_HANDLE, NETEM_CLASS, TBF_HANDLE = 0x10000, 0x10001, 0x20000
"""``1:``, its only class ``1:1``, and ``2:`` below it."""

TCA_NETEM_RATE, TCA_NETEM_RATE64, TCA_NETEM_LATENCY64 = 6, 8, 10
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_LINKLAYER_ETHERNET = 1
IFLA_GSO_MAX_SEGS = 40
ETH_P_ALL = 3
TC_ACT_STOLEN, TCA_EGRESS_REDIR = 4, 1

IN_ORDER_RATE: Final = 2**62
"""Bytes per second. A netem with a rate never lets a packet overtake the one before it (netem_enqueue: time_to_send is
counted from that of the last packet); at this one a packet itself takes no time, so only the order is left."""

_TC_TIMEOUT_S: Final = 10.0
_U32: Final = 2**32 - 1


@dataclass(frozen=True)
class Netem:
    """The root qdisc of an egress: delay, chance, and a cap on packets under way.

    Attributes:
        delay_ns: before a packet goes to the child.
        limit: packets under way, those of the child included.
        loss: probability, 0..1; the kernel holds it in steps of 2**-32.
    """

    delay_ns: int
    limit: int
    loss: float = 0.0

    def request(self, link: int, fresh: bool) -> bytes:
        """Attach it to interface ``link`` (``fresh``), or give the one that is there all of these values at once."""
        body = struct.pack("=IIIIII", 0, self.limit, round(self.loss * _U32), 0, 0, 0)
        body += attribute(TCA_NETEM_LATENCY64, struct.pack("=q", self.delay_ns))
        # Always said: a netem that is changed without a rate keeps the one it had.
        body += attribute(TCA_NETEM_RATE64, struct.pack("=Q", IN_ORDER_RATE))
        body += attribute(TCA_NETEM_RATE, struct.pack("=IiIi", _U32, 0, 0, 0))
        return _qdisc(link, NETEM_HANDLE, TC_H_ROOT, "netem", body, fresh)


@dataclass(frozen=True)
class Tbf:
    """The child of netem: packets wait for their turn at ``rate`` bytes per second, at most ``limit`` bytes of them.

    ``overhead`` bytes are added to each packet when its time at the rate is counted, not when it is in the queue.
    ``burst`` bytes may pass at once; super-packets above it are segmented.
    """

    rate: int
    limit: int
    burst: int
    overhead: int

    def request(self, link: int, fresh: bool) -> bytes:
        """As :meth:`Netem.request`; what waits goes on waiting, at the new rate."""
        rate = struct.pack("=BBHhHI", 0, TC_LINKLAYER_ETHERNET, self.overhead, 0, 0, min(self.rate, _U32))
        none = struct.pack("=BBHhHI", 0, 0, 0, 0, 0, 0)
        body = attribute(TCA_TBF_PARMS, rate + none + struct.pack("=III", self.limit, 0, 0))
        if self.rate > _U32:
            body += attribute(TCA_TBF_RATE64, struct.pack("=Q", self.rate))
        body += attribute(TCA_TBF_BURST, struct.pack("=I", self.burst))
        return _qdisc(link, TBF_HANDLE, NETEM_CLASS, "tbf", body, fresh)


def clsact(link: int) -> bytes:
    """The hook that filters of :func:`redirect` hang on."""
    return _qdisc(link, 0xFFFF0000, TC_H_CLSACT, "clsact", b"", True)


def redirect(link: int, other: int, kind: str) -> bytes:
    """Everything that ``link`` receives goes out of ``other``. ``kind``: ``matchall``, or ``u32`` for old kernels."""
    mirred = struct.pack("=IIiiiiI", 0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, other)  # struct tc_mirred
    action = attribute(1, attribute(1, b"mirred\0") + attribute(2, attribute(2, mirred)))
    if kind == "matchall":
        options = attribute(2, action)  # TCA_MATCHALL_ACT
    else:
        # struct tc_u32_sel: terminal, one key, which masks everything away
        selector = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + struct.pack("=IIii", 0, 0, 0, 0)
        options = attribute(5, selector) + attribute(7, action)  # TCA_U32_SEL, TCA_U32_ACT
    info = 1 << 16 | socket.htons(ETH_P_ALL)  # priority 1, every protocol
    body = struct.pack("=BxxxiIII", 0, link, 0, CLSACT_INGRESS, info)
    body += attribute(TCA_KIND, kind.encode() + b"\0") + attribute(TCA_OPTIONS, options)
    return message(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, body)


def no_qdiscs(link: int) -> tuple[bytes, bytes]:
    """Take netem (and tbf with it) and clsact (and its filter) away from an interface."""
    return tuple(message(RTM_DELQDISC, 0, struct.pack("=BxxxiIII", 0, link, 0, parent, 0))
                 for parent in (TC_H_ROOT, TC_H_CLSACT))  # type: ignore[return-value]  # fmt: skip


def segments_per_packet(link: int, most: int) -> bytes:
    """Let no super-packet of more than ``most`` segments out of an interface: 1 is segmentation offload off for all
    protocols (gso_features_check in net/core/dev.c), which the many switches of ethtool are only by name."""
    body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, link, 0, 0)
    return message(RTM_NEWLINK, 0, body + attribute(IFLA_GSO_MAX_SEGS, struct.pack("=I", most)))


def _qdisc(link: int, handle: int, parent: int, kind: str, options: bytes, fresh: bool) -> bytes:
    body = struct.pack("=BxxxiIII", 0, link, handle, parent, 0) + attribute(TCA_KIND, kind.encode() + b"\0")
    if options:
        body += attribute(TCA_OPTIONS, options)
    return message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL if fresh else 0, body)


# ---- read back


def qdiscs() -> dict[str, dict[str, dict[str, Any]]]:
    """``{interface: {kind: record}}`` of ``tc -s -r -j qdisc show`` in the network namespace of the calling thread.

    Raises MissingTool, HostError.
    """
    try:
        done = subprocess.run(
            ["tc", "-s", "-r", "-j", "qdisc", "show"], capture_output=True, text=True, timeout=_TC_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise MissingTool("tc", "apt-get install iproute2", "what the kernel was told is read back by it") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"tc did not answer: {error}") from error
    if done.returncode != 0:
        raise HostError(f"tc failed: {done.stderr.strip()}")
    try:
        return by_interface(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(f"tc said what is not understood: {done.stdout[:200]}") from error


def by_interface(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        if "dev" in record:
            found.setdefault(record["dev"], {})[record["kind"]] = dict(record)
    return found


def differences(found: Mapping[str, Mapping[str, Any]], netem: Netem, tbf: Tbf) -> list[str]:
    """What of ``found`` ({kind: record of tc}) is not as asked, each in words; empty when all is. Pure."""
    if "netem" not in found or "tbf" not in found:
        return [f"there is {', '.join(found) or 'no qdisc'} where netem and tbf were asked for"]
    options, below = found["netem"].get("options", {}), found["tbf"].get("options", {})
    pairs = [
        # tc prints whole microseconds; the kernel holds loss in steps of 2**-32.
        ("delay (s)", options.get("delay", {}).get("delay", 0.0), netem.delay_ns / 1e9, 1.01e-6, 1e-6),
        ("packet limit", options.get("limit"), netem.limit, 0, 0),
        ("loss", options.get("loss-random", {}).get("loss", 0.0), netem.loss, 1e-9, 1e-6),
        ("in-order rate", options.get("rate", {}).get("rate"), IN_ORDER_RATE, 0, 0),
        ("rate (B/s)", below.get("rate"), tbf.rate, 0, 0),
        ("queue (B)", below.get("limit"), tbf.limit, 0, 0),
        ("overhead (B)", below.get("overhead", 0), tbf.overhead, 0, 0),
    ]
    wrong = []
    for what, stands, asked, absolute, relative in pairs:
        if not isinstance(stands, int | float) or not math.isclose(stands, asked, rel_tol=relative, abs_tol=absolute):
            wrong.append(f"{what} is {stands}, asked for was {asked}")
    return wrong
