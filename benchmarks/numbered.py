"""Send numbered packets and count arrivals: `python numbered.py receive PORT` and `send ADDRESS PORT COUNT PPS`.

Also an even load: `sink PORT` and `load ADDRESS PORT PPS SECONDS BYTES`, which prints the achieved packets per second.
After a stall it does not catch up, unlike iperf3, whose flood fills every queue.

The receiver counts missing packets and the runs that they form, independently of an emulator's own counters. Uses the
standard library only, so it runs in any namespace. The receiver prints ``ready``, then
``{"received", "lost", "runs", "overrun"}``; ``overrun`` counts packets dropped because its socket was full, and the
other counts are valid only if it is 0.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

NUMBER = struct.Struct("!II")  # number, count
PADDING = bytes(64)
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
BATCH = 25
END_MARKS = 40
SILENCE_S = 5.0
PR_SET_TIMERSLACK = 29  # linux/prctl.h


def receive(port: int) -> dict[str, int]:
    """Receive until an end mark (number equal to the count), or ``SILENCE_S`` without a packet; return the counts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inlet:
        inlet.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        inlet.settimeout(20.0)
        inlet.bind(("", port))
        print("ready", flush=True)
        buffer = bytearray(256)
        arrived = bytearray()
        number = count = -1
        try:
            while number != count or count < 0:
                inlet.recv_into(buffer)
                number, count = NUMBER.unpack_from(buffer)
                if not arrived:
                    arrived = bytearray(count + 1)
                    inlet.settimeout(SILENCE_S)
                arrived[number] = 1
        except TimeoutError:
            pass
        with Path("/proc/self/net/udp").open() as table:
            overrun = sum(int(line.split()[-1]) for line in table if f":{port:04X} 00000000:0000" in line)
    came = bytes(arrived[:-1])
    runs = (b"\x01" + came).count(b"\x01\x00")
    return {"received": came.count(1), "lost": came.count(0), "runs": runs, "overrun": overrun}


def send(address: str, port: int, count: int, pps: float) -> None:
    """Send ``count`` packets at ``pps``, in small batches, then the end marks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outlet:
        due = time.monotonic()
        for first in range(0, count, BATCH):
            due = max(due + BATCH / pps, time.monotonic() - 0.002)  # do not catch up by a flood after a stall
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            for number in range(first, min(first + BATCH, count)):
                outlet.sendto(NUMBER.pack(number, count) + PADDING, (address, port))
        for _ in range(END_MARKS):
            time.sleep(0.02)
            outlet.sendto(NUMBER.pack(count, count) + PADDING, (address, port))


def load(address: str, port: int, pps: float, seconds: float, payload: int) -> float:
    """Send packets of ``payload`` bytes when due, at most 16 late ones at once; return the achieved rate in pps."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # otherwise each sleep lasts 50 us longer
    os.nice(-10)  # the measurement is of a loaded fiber, not of a loaded machine
    content, sent = bytes(payload), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outlet:
        due = began = time.monotonic()
        while due < began + seconds:
            now = time.monotonic()
            if due > now:
                time.sleep(due - now)
            outlet.sendto(content, (address, port))
            sent += 1
            due = max(due + 1 / pps, now - 16 / pps)
    return sent / (time.monotonic() - began)


def judged(found: dict[str, int], loss: float, burst: float = 0.0) -> dict[str, Any]:
    """Evaluate arrivals against a configured ``loss`` in bursts of ``burst`` packets on average (0: independent).

    The number of lost packets among n has the variance n P (1 - P) (1 + rho) / (1 - rho), where rho is the correlation
    of neighbours: 0 if independent, 1 - p - r in bursts. It is approximated as normal, which is close for n P of 100
    and more. ``interval`` contains 99 % of all such counts; ``inside_1e6`` is false once in a million.
    """
    sent = found["received"] + found["lost"]
    correlation = 0.0
    if burst:
        r = 1.0 / burst
        correlation = 1.0 - r - loss * r / (1.0 - loss)
    deviation = math.sqrt(sent * loss * (1 - loss) * (1 + correlation) / (1 - correlation))
    off = abs(found["lost"] - sent * loss)
    return {
        **found,
        "sent": sent,
        "loss": loss,
        "burst": burst,
        "interval": [max(0.0, sent * loss - 2.576 * deviation), sent * loss + 2.576 * deviation],
        "inside": off <= 2.576 * deviation,
        "inside_1e6": off <= 4.892 * deviation,
        "mean_run": found["lost"] / found["runs"] if found["runs"] else 0.0,
    }


if __name__ == "__main__":
    if sys.argv[1] == "load":
        print(load(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])))
    elif sys.argv[1] == "sink":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unread:
            unread.bind(("", int(sys.argv[2])))
            signal.pause()
    elif sys.argv[1] == "receive":
        print(json.dumps(receive(int(sys.argv[2]))))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
