"""Traffic control requests of the netem emulator, packed by hand, and their verification by ``tc``.

Layouts: linux/pkt_sched.h, linux/pkt_cls.h, net/sched/sch_netem.c, sch_tbf.c. The kernel's values are always read back
by another program, ``tc``, and compared: :func:`differences`.
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

from testbed.core.physics.impairment import GilbertElliott
from testbed.errors import HostError, MissingTool
from testbed.host import installation
from testbed.host.linux.rtnetlink import (
    CLSACT_INGRESS,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_DELQDISC,
    RTM_NEWQDISC,
    TCA_KIND,
    TCA_OPTIONS,
    attribute,
    attributes,
    clsact,
    dump,
    ingress_filter,
    message,
    no_clsact,
    redirect,
    u32_key,
)

__all__ = [
    "Counters",
    "Netem",
    "Tbf",
    "clsact",
    "counters",
    "differences",
    "drop_larger",
    "drop_nothing",
    "larger_than",
    "no_qdiscs",
    "qdiscs",
    "redirect",
]

RTM_GETQDISC, RTM_DELTFILTER, TC_H_ROOT = 38, 45, 0xFFFFFFFF
TCA_STATS2, TCA_STATS_BASIC, TCA_STATS_QUEUE, TCA_STATS_PKT64 = 7, 1, 3, 8
NETEM_HANDLE, NETEM_CLASS, TBF_HANDLE = 0x10000, 0x10001, 0x20000
"""Handles ``1:``, its only class ``1:1``, and ``2:`` below it."""

TCA_NETEM_CORR, TCA_NETEM_DELAY_DIST, TCA_NETEM_REORDER, TCA_NETEM_CORRUPT, TCA_NETEM_LOSS = 1, 2, 3, 4, 5
TCA_NETEM_RATE, TCA_NETEM_RATE64, TCA_NETEM_LATENCY64, TCA_NETEM_JITTER64, TCA_NETEM_PRNG_SEED = 6, 8, 10, 11, 14
NETEM_LOSS_GE = 2
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_LINKLAYER_ETHERNET = 1
ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD
IPV6_HEADER_BYTES = 40
TC_ACT_SHOT = 2
PRIORITY_IPV4, PRIORITY_IPV6 = 1, 2
"""Priorities of filters: drops are matched before everything is redirected (PRIORITY_ALL)."""

IN_ORDER_RATE: Final = 2**62
"""Bytes per second. A netem with a rate never lets a packet overtake the previous one (netem_enqueue: time_to_send is
computed from that of the last packet). At this rate a packet takes no time, so only the ordering remains."""

DIST_SCALE: Final = 8192
"""NETEM_DIST_SCALE: an entry of a delay table, a signed 16-bit number, is in units of jitter / 8192."""

STEP: Final = 2.0**-32
"""Resolution of netem's probabilities."""

MOST_OFFSET_NS: Final = (2**15 - 1) * (2**31 - 1) // DIST_SCALE
"""8.6 s: the largest table entry times the largest jitter (INT_MAX, netem_change)."""

_TC_TIMEOUT_S: Final = 10.0
_U32: Final = 2**32 - 1


@dataclass(frozen=True)
class Netem:
    """The root qdisc of an egress: random impairments, delay, and a limit of packets in flight.

    Attributes:
        delay_ns: delay before a packet goes to the child.
        limit: packets in flight, including those of the child.
        loss: probability, 0..1; the kernel's resolution is 2**-32.
        chain: burst loss, replaces ``loss``.
        duplicate: probability that a clone of the packet is enqueued too, from the start, but not cloned again.
        corrupt: probability that one bit of the packet's linear part is flipped, after its checksum was completed.
        offsets_ns: one of these, with equal probability, is added to a packet's delay; empty: no jitter.
        in_order: no packet overtakes the previous one.
        seed: of the kernel's random numbers since Linux 6.7; older ones ignore it. None: the kernel's own.
    """

    delay_ns: int
    limit: int
    loss: float = 0.0
    chain: GilbertElliott | None = None
    duplicate: float = 0.0
    corrupt: float = 0.0
    offsets_ns: tuple[int, ...] = ()
    in_order: bool = True
    seed: int | None = None

    @property
    def jitter_ns(self) -> int:
        """Unit of the table: the smallest for which the largest entry fits into 16 bits."""
        return -(-max(map(abs, self.offsets_ns), default=0) * DIST_SCALE // (2**15 - 1))

    def request(self, link: int, fresh: bool, turn: int = 0) -> bytes:
        """Return the request that attaches the qdisc to ``link`` (``fresh``), or sets all values of the attached one.

        A fresh qdisc with a later ``turn`` replaces the previous one and drops its packets. Every request has every
        value: netem keeps what a change leaves out (rate, table, correlations, bit flips).
        """

        body = struct.pack("=IIIIII", 0, self.limit, _or_less(self.loss), 0, _or_less(self.duplicate), 0)
        body += attribute(TCA_NETEM_LATENCY64, struct.pack("=q", self.delay_ns))
        unit = self.jitter_ns
        body += attribute(TCA_NETEM_JITTER64, struct.pack("=q", unit))
        if unit:  # without jitter, a previous table has no effect
            entries = [round(offset * DIST_SCALE / unit) for offset in self.offsets_ns]
            body += attribute(TCA_NETEM_DELAY_DIST, struct.pack(f"={len(entries)}h", *entries))
        body += attribute(TCA_NETEM_CORR, bytes(12)) + attribute(TCA_NETEM_REORDER, bytes(8))
        body += attribute(TCA_NETEM_CORRUPT, struct.pack("=II", _or_less(self.corrupt), 0))
        if self.chain:
            body += attribute(TCA_NETEM_LOSS, attribute(NETEM_LOSS_GE, _gemodel(self.chain)))
        if self.in_order:
            body += attribute(TCA_NETEM_RATE64, struct.pack("=Q", IN_ORDER_RATE))
        body += attribute(TCA_NETEM_RATE, struct.pack("=IiIi", _U32 if self.in_order else 0, 0, 0, 0))
        if self.seed is not None:
            body += attribute(TCA_NETEM_PRNG_SEED, struct.pack("=Q", self.seed % 2**64))
        return _qdisc(link, NETEM_HANDLE + _shift(turn), TC_H_ROOT, "netem", body, fresh, turn)


def _or_less(probability: float) -> int:
    """Encode a probability for which the kernel tests ``value >= random`` and treats 0 as never."""
    return max(round(probability / STEP) - 1, 0)


def _gemodel(chain: GilbertElliott) -> bytes:
    """Encode struct tc_netem_gemodel: p, r, 1 - k are tested as ``random < value``, h as ``random > value`` (loss)."""
    below = [min(round(share / STEP), _U32) for share in (chain.p, chain.r, 1.0 - chain.k)]
    return struct.pack("=IIII", below[0], below[1], _or_less(chain.h), below[2])


@dataclass(frozen=True)
class Tbf:
    """The child of netem: a rate limit of ``rate`` bytes per second with a queue of ``limit`` bytes.

    ``overhead`` bytes are added to each packet for the rate, not for the queue. ``burst`` bytes may pass at once;
    larger super-packets are segmented.
    """

    rate: int
    limit: int
    burst: int
    overhead: int

    def request(self, link: int, fresh: bool, turn: int = 0) -> bytes:
        """As :meth:`Netem.request`; queued packets stay queued, at the new rate."""
        rate = struct.pack("=BBHhHI", 0, TC_LINKLAYER_ETHERNET, self.overhead, 0, 0, min(self.rate, _U32))
        none = struct.pack("=BBHhHI", 0, 0, 0, 0, 0, 0)
        body = attribute(TCA_TBF_PARMS, rate + none + struct.pack("=III", self.limit, 0, 0))
        if self.rate > _U32:
            body += attribute(TCA_TBF_RATE64, struct.pack("=Q", self.rate))
        body += attribute(TCA_TBF_BURST, struct.pack("=I", self.burst))
        return _qdisc(link, TBF_HANDLE + _shift(turn), NETEM_CLASS + _shift(turn), "tbf", body, fresh)


def larger_than(limit: int) -> tuple[tuple[int, int], ...]:
    """Return 16-bit (value, mask) pairs that together match every number above ``limit`` and no other, each once."""
    blocks, low = [], limit + 1
    while low < 1 << 16:
        # The largest aligned block that begins at `low`.
        size = low & -low
        blocks.append((low, 0x10000 - size))
        low += size
    return tuple(blocks)


def drop_larger(link: int, limit: int) -> list[bytes]:
    """Return requests that drop IP packets above ``limit`` bytes received by ``link``, before :func:`redirect`.

    u32 has no "greater than", so blocks of values match the total length (RFC 791) and the payload length (RFC 8200,
    without 40 bytes of header). The sender must not send super-packets, whose length is that of the whole.
    """
    gact = attribute(1, b"gact\0") + attribute(2, attribute(2, struct.pack("=IIiii", 0, 0, TC_ACT_SHOT, 0, 0)))
    action = attribute(1, gact)
    return [
        *(
            ingress_filter(link, PRIORITY_IPV4, ETH_P_IP, "u32", u32_key(mask, value, 0, action))
            for value, mask in larger_than(limit)
        ),
        *(
            ingress_filter(link, PRIORITY_IPV6, ETH_P_IPV6, "u32", u32_key(mask << 16, value << 16, 4, action))
            for value, mask in larger_than(max(0, limit - IPV6_HEADER_BYTES))
        ),
    ]


def drop_nothing(link: int) -> list[bytes]:
    """Return requests that remove the filters of :func:`drop_larger`, which must exist."""
    return [
        message(
            RTM_DELTFILTER,
            0,
            struct.pack("=BxxxiIII", 0, link, 0, CLSACT_INGRESS, priority << 16 | socket.htons(ethertype)),
        )
        for priority, ethertype in ((PRIORITY_IPV4, ETH_P_IP), (PRIORITY_IPV6, ETH_P_IPV6))
    ]


def no_qdiscs(link: int) -> tuple[bytes, bytes]:
    """Return requests that remove netem (with tbf) and clsact (with its filters) from an interface."""
    return message(RTM_DELQDISC, 0, struct.pack("=BxxxiIII", 0, link, 0, TC_H_ROOT, 0)), no_clsact(link)


def _shift(turn: int) -> int:
    """Alternate handles: the kernel changes a qdisc with the same handle, and replaces one with another."""
    return 0x20000 * (turn % 2)


def _qdisc(link: int, handle: int, parent: int, kind: str, options: bytes, fresh: bool, turn: int = 0) -> bytes:
    body = struct.pack("=BxxxiIII", 0, link, handle, parent, 0) + attribute(TCA_KIND, kind.encode() + b"\0")
    if options:
        body += attribute(TCA_OPTIONS, options)
    # Replace only a qdisc that this emulator attached, never another program's.
    flags = NLM_F_CREATE | (NLM_F_REPLACE if turn else NLM_F_EXCL)
    return message(RTM_NEWQDISC, flags if fresh else 0, body)


# ---- read back


@dataclass(frozen=True)
class Counters:
    """The kernel's counters of one qdisc: sent, dropped, and currently queued."""

    bytes: int
    packets: int
    drops: int
    qlen: int
    backlog: int


def counters(raw: socket.socket) -> dict[int, dict[str, Counters]]:
    """Return ``{interface: {kind: counters}}`` of all qdiscs in the socket's network namespace, without ``tc``.

    Raises OSError.
    """
    counters_by_link: dict[int, dict[str, Counters]] = {}
    for _, answer in dump(raw, RTM_GETQDISC, bytes(20)):
        (link,) = struct.unpack_from("=i", answer, 4)
        of_qdisc = attributes(answer[20:])
        statistics = attributes(of_qdisc.get(TCA_STATS2, b""))
        if TCA_STATS_BASIC in statistics and TCA_STATS_QUEUE in statistics:
            name = of_qdisc[TCA_KIND].rstrip(b"\0").decode()
            counters_by_link.setdefault(link, {})[name] = _counters_of(statistics)
    return counters_by_link


def _counters_of(statistics: Mapping[int, bytes]) -> Counters:
    """Decode struct gnet_stats_basic and gnet_stats_queue; newer kernels count packets in 64 bits."""
    octets, packets = struct.unpack_from("=QI", statistics[TCA_STATS_BASIC])
    if TCA_STATS_PKT64 in statistics:
        (packets,) = struct.unpack_from("=Q", statistics[TCA_STATS_PKT64])
    qlen, backlog, drops = struct.unpack_from("=III", statistics[TCA_STATS_QUEUE])
    return Counters(octets, packets, drops, qlen, backlog)


def qdiscs() -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``{interface: {kind: record}}`` of ``tc -s -r -j qdisc show`` in the calling thread's network namespace.

    Raises MissingTool, HostError.
    """
    try:
        done = subprocess.run(
            ["tc", "-s", "-r", "-j", "qdisc", "show"], capture_output=True, text=True, timeout=_TC_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise MissingTool("tc", installation.apt("iproute2"), "it verifies the kernel's netem settings") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"tc did not answer: {error}") from error
    if done.returncode != 0:
        raise HostError(f"tc failed: {done.stderr.strip()}")
    try:
        return by_interface(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(f"expected JSON from tc, got: {done.stdout[:200]}") from error


def by_interface(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    records_by_interface: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        if "dev" in record:
            records_by_interface.setdefault(record["dev"], {})[record["kind"]] = dict(record)
    return records_by_interface


def differences(records: Mapping[str, Mapping[str, Any]], netem: Netem, tbf: Tbf) -> list[str]:
    """Return one sentence per difference between ``records`` ({kind: record of tc}) and the requested qdiscs. Pure.

    tc prints times in whole microseconds, of the kernel's ticks of 64 ns (PSCHED_SHIFT, net/pkt_sched.h), each cut off,
    and probabilities with six digits. The kernel does not report the delay table,
    nor its seed before Linux 6.7.
    """
    if "netem" not in records or "tbf" not in records:
        return [f"expected netem and tbf, found {', '.join(records) or 'no qdisc'}"]
    options, below = records["netem"].get("options", {}), records["tbf"].get("options", {})

    def stands(group: str, key: str) -> Any:
        return options.get(group, {}).get(key, 0)

    chain = netem.chain or GilbertElliott(0.0, 0.0, h=1.0, k=1.0)
    delayed = "delay" in options or netem.delay_ns >= 1000
    microsecond, digits, exactly = (1.07e-6, 1e-6), (1.51 * STEP, 1e-5), (0.0, 0.0)
    pairs = [
        ("delay (s)", stands("delay", "delay"), netem.delay_ns / 1e9, microsecond),
        # tc prints no times if there is no delay.
        ("jitter's unit (s)", stands("delay", "jitter"), netem.jitter_ns / 1e9 if delayed else None, microsecond),
        ("correlation of jitter", stands("delay", "correlation"), 0, exactly),
        ("packet limit", options.get("limit"), netem.limit, exactly),
        ("loss", stands("loss-random", "loss"), netem.loss, digits),
        ("p of the loss", stands("loss-gemodel", "p"), chain.p, digits),
        ("r of the loss", stands("loss-gemodel", "r"), chain.r, digits),
        ("1-h of the loss", stands("loss-gemodel", "1-h"), 1.0 - chain.h, digits),
        ("1-k of the loss", stands("loss-gemodel", "1-k"), 1.0 - chain.k, digits),
        ("duplicate", stands("duplicate", "duplicate"), netem.duplicate, digits),
        ("corrupt", stands("corrupt", "corrupt"), netem.corrupt, digits),
        ("reorder", stands("reorder", "reorder"), 0, exactly),
        ("in-order rate", stands("rate", "rate"), IN_ORDER_RATE if netem.in_order else 0, exactly),
        ("seed", options.get("seed", netem.seed), netem.seed, exactly),
        ("rate (B/s)", below.get("rate"), tbf.rate, exactly),
        ("queue (B)", below.get("limit"), tbf.limit, exactly),
        ("overhead (B)", below.get("overhead", 0), tbf.overhead, exactly),
    ]
    return [
        f"{what} is {standing}, expected {asked}"
        for what, standing, asked, (absolute, relative) in pairs
        if asked is not None and not _is_close(standing, asked, absolute, relative)
    ]


def _is_close(standing: object, asked: float, absolute: float, relative: float) -> bool:
    if not isinstance(standing, int | float):
        return False
    if absolute == relative == 0:
        return standing == asked  # integers beyond the precision of a float
    return math.isclose(standing, asked, rel_tol=relative, abs_tol=absolute)
