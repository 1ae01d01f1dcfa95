"""A module as a program, forked from the test: what it imports is imported already, which costs seconds of torch."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn


class ForkedProgram:
    """Stands in for ``subprocess.Popen([python, "-m", module, ...], stdin=PIPE, stdout=PIPE, text=True)``."""

    def __init__(self, argv: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        stdin, to_program = os.pipe()
        from_program, stdout = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _live(argv[2:], (stdin, stdout, stderr.fileno()), env)
        os.close(stdin)
        os.close(stdout)
        self.stdin, self.stdout = os.fdopen(to_program, "w"), os.fdopen(from_program)
        self.returncode: int | None = None

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{self.pid} did not end within {timeout:g} s")
            else:
                time.sleep(0.005)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _live(argv: Sequence[str], streams: tuple[int, int, int], env: Mapping[str, str]) -> NoReturn:
    status: Any = 0
    try:
        for target, source in enumerate(streams):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # or the input of another program would not end with its test
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        os.environ.clear()
        os.environ.update(env)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
        sys.argv = list(argv)
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)
