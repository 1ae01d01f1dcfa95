"""The verb ``capture``: packets of a fiber into a file, or to a program that reads along."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import console, verb
from testbed.cli.on_host import Written
from testbed.cli.streams import ReaderGone
from testbed.cli.verb import FiberArgument, LabName
from testbed.core.units import format_size, parse_duration_s, parse_size_bytes
from testbed.errors import TestbedError, UserError

if TYPE_CHECKING:
    from testbed.lab.capture import Capture

__all__ = ["capture"]

STDOUT = "-"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after this time: 10s, 2min; without it, at Ctrl-C.")
    ] = None,
    before: Annotated[
        bool,
        typer.Option("--before", help="Capture what the sender's port sends into the fiber.", show_default=False),
    ] = False,
    snaplen: Annotated[
        int | None, typer.Option("--snaplen", "-s", metavar="BYTES", help="Keep so many bytes of each packet.")
    ] = None,
    most: Annotated[
        str | None,
        typer.Option(
            "--most", metavar="SIZE", help="End at this size, 100 MB or 4 GB; a stream to stdout never (default: 1 GB)."
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
    for_s = _read_duration_s(lasting)
    most_bytes = _read_size(most) if most is not None else None if to_stdout else MOST_BYTES
    target = verb.attach_to_change(lab)
    with _ended_by_signals() as stop:
        found = target.capture(
            fiber,
            sys.stdout.fileno() if to_stdout else write,
            before=before,
            for_s=for_s,
            most_bytes=most_bytes,
            snaplen=snaplen or LONGEST_SNAPLEN,
        )
        _say_begun(target.name, found, for_s, most_bytes)
        try:
            while not stop.is_set() and not found.wait(0.1):
                pass
            found.stop()
        except TestbedError:
            _say(found)
            raise
    _say(found)
    if found.ending == "reader":
        raise ReaderGone("the reader of the output has closed it")


def _say_begun(lab: str, found: Capture, for_s: float | None, most_bytes: int | None) -> None:
    way = "sent into the fiber" if found.before else "received from the fiber"
    what = ", ".join(f"{it.direction} ({way} at {it.gateway})" for it in found.found)
    ends = "ends by itself; Ctrl-C ends it sooner" if for_s else "Ctrl-C ends it"
    limit = f", or a file of {format_size(most_bytes)} (--most)" if most_bytes is not None else ""
    console.say(f"{lab}: capturing {what}; {ends}{limit}")


def _say(found: Capture) -> None:
    from testbed.cli import fiber_tables

    for line in fiber_tables.captured(found):
        console.say(line)


def _read_duration_s(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise UserError(f"--for: {error}") from error
    if seconds == 0:
        raise UserError("--for must be greater than 0; omit it to capture until Ctrl-C")
    return seconds


def _read_size(text: str) -> int:
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise UserError(f"--most: {error}") from error


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """Yield what the first Ctrl-C, SIGTERM or SIGHUP sets: the ordinary end. The second one ends the program at once,
    as where the program that reads stdout takes nothing."""
    stop = threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # SIGINT also where a script's background job ignores it: `kill -INT` is how a script ends a capture.
    heeded = [it for it in _SIGNALS if it != signal.SIGHUP or signal.getsignal(it) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, heard) for number in heeded}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
