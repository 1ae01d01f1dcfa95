"""What has to be tried to be known, tried in a child process inside a network namespace of its own.

The kernel removes the namespace when the child ends, however it ends: nothing is left behind.
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

__all__ = ["in_child", "in_namespace"]

_TIMEOUT_S: Final = 20.0


def in_child(work: Callable[[], str], timeout_s: float) -> str | None:
    """What ``work`` returned in a forked child; None when it died or took longer than ``timeout_s``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of the parent's may run here: no handlers, no flushing of its buffers.
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
    """For each trial why it failed; empty when it did not."""
    answer = in_child(lambda: json.dumps(_trials()), _TIMEOUT_S)
    found: dict[str, str] = json.loads(answer) if answer else {"unshare": "the trial did not end"}
    return found


def _trials() -> dict[str, str]:
    clone_newnet = 0x40000000  # sched.h; os.unshare came with Python 3.12
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newnet) != 0:
        return {"unshare": f"not permitted ({os.strerror(ctypes.get_errno()).lower()})"}
    from pyroute2 import IPRoute

    found = {"unshare": ""}
    with IPRoute() as ip:

        def attempt(name: str, work: Callable[[], object]) -> None:
            try:
                work()
                found[name] = ""
            except Exception as error:  # pyroute2's NetlinkError, or whatever else a strange kernel makes of it
                found[name] = f"not in this kernel ({_name(error)})"

        def index(name: str) -> int:
            return int(ip.link_lookup(ifname=name)[0])

        def redirect(kind: str, **words: object) -> None:
            mirred = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": index("trial-b")}
            clsact_ingress = 0xFFFFFFF2
            ip.tc(
                "add-filter",
                kind,
                index("trial-a"),
                parent=clsact_ingress,
                prio=1,
                protocol=3,
                action=[mirred],
                **words,
            )

        attempt("veth", lambda: ip.link("add", ifname="trial-a", kind="veth", peer={"ifname": "trial-b"}))
        attempt("bridge", lambda: ip.link("add", ifname="trial-br", kind="bridge"))
        attempt("netem", lambda: ip.tc("add", "netem", index("trial-a"), handle="1:", delay=1000))
        attempt("clsact", lambda: ip.tc("add", "clsact", index("trial-a")))
        attempt("redirect", lambda: redirect("u32", target=0, keys=["0x0/0x0+0"]))
        attempt(
            "clsact again", lambda: (ip.tc("del", "clsact", index("trial-a")), ip.tc("add", "clsact", index("trial-a")))
        )
        attempt("matchall", lambda: redirect("matchall"))
    return found


def _name(error: Exception) -> str:
    """``ENOENT`` of pyroute2's NetlinkError, which carries an errno; else what the exception is called."""
    return errno.errorcode.get(getattr(error, "code", 0), type(error).__name__)
