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

__all__ = ["in_child", "in_namespace"]

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
    found: dict[str, str] = json.loads(answer) if answer else {"unshare": "the attempt timed out"}
    return found


def _trials() -> dict[str, str]:
    clone_newnet = 0x40000000  # sched.h; os.unshare needs Python 3.12
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
            except Exception as error:  # NetlinkError of pyroute2, or any other effect of an unusual kernel
                found[name] = f"not supported by this kernel ({_name(error)})"

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
        attempt(
            "altname",
            lambda: ip.link("property_add", index=index("trial-b"), altname="trial-of-a-name-of-39-characters-in-all"),
        )
    return found


def _name(error: Exception) -> str:
    """Return the errno's name (``ENOENT``) if the exception carries one, as NetlinkError does; else its class name."""
    return errno.errorcode.get(getattr(error, "code", 0), type(error).__name__)
