"""Probe kernel features by using them, in a child process with a network namespace of its own.

The kernel removes the namespace when the child ends, however it ends, so a probe leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Final

from testbed.host.emulators import tc
from testbed.host.linux import rtnetlink

__all__ = ["in_child", "in_namespace"]

_MTU: Final = 1500
_TIMEOUT_S: Final = 20.0


def in_child(work: Callable[[], str], timeout_s: float) -> str | None:
    """Run ``work`` in a forked child and return its result; None if the child died or exceeded ``timeout_s``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # No code of the parent may run here: no exit handlers, no flush of its buffers.
        try:
            os.write(writer, work().encode() or b"\n")
        finally:
            os._exit(0)
    os.close(writer)
    try:
        text = b""
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(reader, select.POLLIN)
        while poll.poll(timeout_s * 1e3):
            piece = os.read(reader, 65536)
            if not piece:
                return text.decode().strip("\n") if text else None
            text += piece
        return None
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def in_namespace() -> dict[str, str]:
    """Return, by name of the probe, why it failed; an empty string if it succeeded."""
    answer = in_child(lambda: json.dumps(_trials()), _TIMEOUT_S)
    answers: dict[str, str] = json.loads(answer) if answer else {"unshare": "the attempt timed out"}
    return answers


def _trials() -> dict[str, str]:
    clone_newnet = 0x40000000  # sched.h; os.unshare needs Python 3.12
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newnet) != 0:
        return {"unshare": f"not permitted ({os.strerror(ctypes.get_errno()).lower()})"}
    failures = {"unshare": ""}
    with contextlib.closing(rtnetlink.connect()) as raw:

        def attempt(name: str, *requests: Callable[[], bytes]) -> None:
            try:
                for request in requests:
                    rtnetlink.exchange(raw, [request()])
                failures[name] = ""
            except OSError as error:
                failures[name] = f"not supported by this kernel ({errno.errorcode.get(error.errno or 0, error)})"

        def index(name: str) -> int:
            return rtnetlink.index(raw, name)

        def clsact() -> bytes:
            return rtnetlink.clsact(index("trial-a"))

        def redirect(kind: str) -> bytes:
            return rtnetlink.redirect(index("trial-a"), index("trial-b"), kind)

        attempt("veth", lambda: rtnetlink.new_veth("trial-a", "trial-b", _MTU))
        attempt("bridge", lambda: rtnetlink.new_bridge("trial-br", _MTU))
        attempt(
            "netem", lambda: tc.Netem(delay_ns=1_000_000, limit=1000, in_order=False).request(index("trial-a"), True)
        )
        attempt("clsact", clsact)
        attempt("redirect", lambda: redirect("u32"))
        attempt("clsact again", lambda: rtnetlink.no_clsact(index("trial-a")), clsact)
        attempt("matchall", lambda: redirect("matchall"))
        attempt(
            "altname",
            lambda: rtnetlink.new_alternative(index("trial-b"), "trial-of-a-name-of-39-characters-in-all"),
        )
    return failures
