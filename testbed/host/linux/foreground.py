"""Run a program in the foreground: what is sent to this process alone reaches the program, and it ends with this one.

A terminal sends Ctrl-C, and a hang-up, to its whole foreground process group, so there the program is in this process's
group, where Ctrl-Z and pipelines work as in a shell; only signals of other processes are passed on. Without a
terminal the program has a process group of its own, and every signal is passed on to all of that group. So a program
gets each signal once, also one that is sent to the group of this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

__all__ = ["run"]

_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_GUARD: Final = 'read -r ended || kill -s KILL -- "-$1"'
"""Shell command of a process that ends a process group, $1, if the process at the other end of its stdin is killed."""


def run(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run on this process's standard streams; return the exit status, -n for signal n.

    SIGINT, SIGTERM and SIGHUP are the program's until it has ended; one that this process ignores (nohup) is not.
    Outside of the main thread, which alone gets signals, none is passed on.
    """
    own = dict(environment) if environment is not None else None
    if threading.current_thread() is not threading.main_thread():
        return subprocess.call(list(argv), env=own)
    heeded = {signum for signum in _PASSED_ON if signal.getsignal(signum) is not signal.SIG_IGN}
    terminal = _has_terminal()
    # Blocked, they are read one by one with their senders; no handler of this process runs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heeded, signal.SIGCHLD})
    try:
        with (
            subprocess.Popen(
                list(argv),
                env=own,
                process_group=None if terminal else 0,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
            ) as child,
            contextlib.nullcontext() if terminal else _guarded(child.pid),
        ):
            while (status := child.poll()) is None:
                heard = signal.sigwaitinfo({*heeded, signal.SIGCHLD})
                if heard.si_signo == signal.SIGCHLD:
                    continue
                if not terminal:
                    os.killpg(child.pid, heard.si_signo)
                elif heard.si_code <= 0:  # of a process (SI_USER and the like), not of the terminal
                    child.send_signal(heard.si_signo)
        return status
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _guarded(group: int) -> Iterator[None]:
    """End a process group if this process is killed in the block."""
    argv = ["/bin/sh", "-c", _GUARD, "sh", str(group)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True) as guard:
        assert guard.stdin is not None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                guard.stdin.write(b"ended\n")
                guard.stdin.flush()
