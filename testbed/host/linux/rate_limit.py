"""Rate limits of interfaces: a token bucket as the root qdisc, packed by hand (linux/pkt_sched.h, net/sched/sch_tbf.c).

Every kernel that emulates a fiber by netem has tbf, and so have those without netem. A request is answered by the
kernel, and what it has then is read back: a limit that is not in force must not be believed.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from typing import Final

from testbed.host.linux.rtnetlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    RTM_DELQDISC,
    RTM_NEWQDISC,
    TCA_KIND,
    TCA_OPTIONS,
    attribute,
    attributes,
    dump,
    exchange,
    message,
)

__all__ = ["TokenBucket", "limit", "limit_of", "unlimit"]

RTM_GETQDISC = 38
TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST = 1, 4, 6
TC_H_ROOT, HANDLE, TC_LINKLAYER_ETHERNET = 0xFFFFFFFF, 0x10000, 1
_U32: Final = 2**32 - 1


@dataclass(frozen=True)
class TokenBucket:
    """``rate`` bytes per second, of which ``burst`` may pass at once; up to ``queue`` bytes wait, others are lost."""

    rate: int
    burst: int
    queue: int


def limit(raw: socket.socket, link: int, bucket: TokenBucket) -> None:
    """Attach the limit to the egress of ``link``, which must not have one. Raises OSError."""
    rate = struct.pack("=BBHhHI", 0, TC_LINKLAYER_ETHERNET, 0, 0, 0, min(bucket.rate, _U32))
    body = attribute(TCA_TBF_PARMS, rate + bytes(12) + struct.pack("=III", bucket.queue, 0, 0))
    if bucket.rate > _U32:
        body += attribute(TCA_TBF_RATE64, struct.pack("=Q", bucket.rate))
    body += attribute(TCA_TBF_BURST, struct.pack("=I", bucket.burst))
    request = struct.pack("=BxxxiIII", 0, link, HANDLE, TC_H_ROOT, 0)
    request += attribute(TCA_KIND, b"tbf\0") + attribute(TCA_OPTIONS, body)
    exchange(raw, [message(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, request)])


def unlimit(raw: socket.socket, link: int) -> None:
    """Remove the limit; a missing one is no error. Raises OSError."""
    try:
        exchange(raw, [message(RTM_DELQDISC, 0, struct.pack("=BxxxiIII", 0, link, 0, TC_H_ROOT, 0))])
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENODEV):
            raise


def limit_of(raw: socket.socket, link: int) -> int:
    """Return the rate of the limit of ``link`` in bytes per second, as the kernel has it; 0 without one.

    Raises OSError.
    """
    rate = 0
    for kind, answer in dump(raw, RTM_GETQDISC, bytes(20)):
        if kind == RTM_NEWQDISC and struct.unpack_from("=i", answer, 4)[0] == link:
            rate = rate or _rate_of(attributes(answer[20:]))
    return rate


def _rate_of(qdisc_attributes: dict[int, bytes]) -> int:
    if qdisc_attributes.get(TCA_KIND, b"").rstrip(b"\0") != b"tbf":
        return 0
    options = attributes(qdisc_attributes.get(TCA_OPTIONS, b""))
    if TCA_TBF_RATE64 in options:
        return int(struct.unpack_from("=Q", options[TCA_TBF_RATE64])[0])
    return int(struct.unpack_from("=I", options[TCA_TBF_PARMS], 8)[0])
