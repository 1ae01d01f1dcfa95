"""The verb ``capture``: packets of a fiber into a file, or to a program that reads along."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import console, lab_tables, verb
from testbed.cli.on_host import Written
from testbed.cli.options import FiberArgument, LabName, quantity
from testbed.cli.streams import ReaderGone
from testbed.core.units import format_size, parse_duration_s, parse_size_bytes
from testbed.errors import TestbedError, UserError
from testbed.host.linux.signals import ENDING, handled

if TYPE_CHECKING:
    from testbed.lab.capture import Capture

__all__ = ["capture"]

STDOUT = "-"


@verb.verb(
    verb.LABS,
    "testbed capture north:west -w x.pcap --for 10s",
    "testbed capture north:west -w y.pcap --before   # what is sent into the fiber",
    "testbed capture north -w heads.pcap -s 96       # both directions, headers",
)
def capture(
    fiber: FiberArgument,
    write: Annotated[
        str,
        typer.Option("--write", "-w", metavar="FILE", help="pcapng file to write; - is stdout, for a program."),
        Written(dash=True),
    ],
    for_s: Annotated[
        float | None,
        quantity(
            parse_duration_s,
            "--for",
            metavar="TIME",
            help="End after this time: 10s, 2min; without it, at Ctrl-C.",
            zero="; omit it to capture until Ctrl-C",
        ),
    ] = None,
    before: Annotated[
        bool,
        typer.Option("--before", help="Capture what the sender's port sends into the fiber.", show_default=False),
    ] = False,
    snaplen: Annotated[
        int | None, typer.Option("--snaplen", "-s", metavar="BYTES", help="Keep so many bytes of each packet.")
    ] = None,
    most: Annotated[
        int | None,
        quantity(
            parse_size_bytes,
            "--most",
            metavar="SIZE",
            help="End at this size, 100 MB or 4 GB; a stream to stdout never (default: 1 GB).",
        ),
    ] = None,
    lab: LabName = None,
) -> None:
    """Capture packets of a fiber as they arrive at the gateway behind it, after delay and loss, until Ctrl-C.

    The file is pcapng with nanoseconds, for tcpdump, tshark and Wireshark, and belongs to you behind sudo too. Of a
    whole link (north) it has both directions, as two interfaces in the order of time. With -w - a program reads along,
    such as tshark -r -. Packets larger than the MTU are super-packets: segments that a host hands over at once.

    A run in progress is marked as captured, since capturing costs CPU. Exit status 0 also after Ctrl-C; 3 if the disk
    is full, where what was written is kept, or if the lab fails.
    """
    from testbed.lab.capture import LONGEST_SNAPLEN, MOST_BYTES

    to_stdout = write == STDOUT
    if to_stdout and sys.stdout.isatty():
        raise UserError("-w - writes binary data, and stdout is a terminal; pipe it: ... -w - | tshark -r -")
    most_bytes = most if most is not None else None if to_stdout else MOST_BYTES
    target = verb.attach_to_change(lab)
    stop = threading.Event()

    def interrupt(number: int) -> None:
        # The second one ends the program at once: the reader of stdout may take nothing.
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    # SIGINT also where a script's background job ignores it: `kill -INT` is how a script ends a capture.
    with handled(dict.fromkeys(ENDING, interrupt)):
        running = target.capture(
            fiber,
            sys.stdout.fileno() if to_stdout else write,
            before=before,
            for_s=for_s,
            most_bytes=most_bytes,
            snaplen=snaplen or LONGEST_SNAPLEN,
        )
        _say_begun(target.name, running, for_s, most_bytes)
        try:
            while not stop.is_set() and not running.wait(0.1):
                pass
            running.stop()
        except TestbedError:
            _say(running)
            raise
    _say(running)
    if running.ending == "reader":
        raise ReaderGone("the reader of the output has closed it")


def _say_begun(lab: str, capture: Capture, for_s: float | None, most_bytes: int | None) -> None:
    way = "sent into the fiber" if capture.before else "received from the fiber"
    what = ", ".join(f"{fiber.direction} ({way} at {fiber.gateway})" for fiber in capture.found)
    ends = "ends by itself; Ctrl-C ends it sooner" if for_s else "Ctrl-C ends it"
    limit = f", or a file of {format_size(most_bytes)} (--most)" if most_bytes is not None else ""
    console.say(f"{lab}: capturing {what}; {ends}{limit}")


def _say(capture: Capture) -> None:
    for line in lab_tables.captured(capture):
        console.say(line)
