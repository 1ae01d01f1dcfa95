"""How a program is run in a container: by ``docker exec``, ended with whoever asked for it."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import MissingTool
from testbed.host import runner
from testbed.host.drivers.docker_client import INSTALL
from testbed.host.drivers.docker_endpoint import Endpoint

__all__ = ["PROGRAMS", "ContainerPlace"]

PROGRAMS: Final = "/opt/testbed/bin"
"""Where an image has its Python, and the programs of what was installed into it (agents/Dockerfile)."""

_WATCHDOG: Final = ("python", "-m", "testbed_agents.watchdog")


@dataclass(frozen=True)
class ContainerPlace:
    """Where a program of a container runs: ``docker exec``, as ``user`` (``uid:gid``; empty: the container's own).
    ``docker`` is the daemon that has the container."""

    name: str
    docker: Endpoint
    user: str = ""
    leashed = True
    """What runs inside ends with whoever asked for it (testbed_agents/watchdog.py): docker would let it go on."""

    def enter(
        self, argv: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """The argument list that runs ``argv`` inside; it ends when its stdin does. Raises MissingTool.

        Variables of ``environment`` are handed on; whoever starts it has them in its environment.
        """
        # Names only: docker takes the values from its own environment, and no argument list shows them to other users.
        options = ["--interactive", *(f"--env={key}" for key in environment or {})]
        options += ["--workdir", str(folder)] if folder else []
        return [*self._exec(options), *_WATCHDOG, "--", *argv]

    def visit(self, argv: Sequence[str]) -> int:
        """Run a program for a person, with our stdin, stdout and stderr, a terminal if they are one; its status."""
        if sys.stdin.isatty() and sys.stdout.isatty():
            return self._visit_with_terminal(argv)
        return runner.run_under_watchdog([*self._exec(["--interactive"]), *_WATCHDOG, "--stdin", "--", *argv])

    def _visit_with_terminal(self, argv: Sequence[str]) -> int:
        """Beside it stands one that ends the program if we are gone, or docker's command is: docker would not."""
        token = secrets.token_hex(8)
        beside = [*self._exec(["--interactive"]), *_WATCHDOG, "--visit", token]
        command = [*self._exec(["--interactive", "--tty", f"--env=TESTBED_VISIT={token}"]), *argv]
        with subprocess.Popen(
            beside, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        ) as watch:
            assert watch.stdin is not None
            status = subprocess.call(command)
            if status >= 0:
                with contextlib.suppress(OSError):
                    watch.stdin.write(b"E")
        return 128 - status if status < 0 else status

    def speak(self, argv: Sequence[str]) -> list[str]:
        """The argument list of a program that is spoken to over its stdin, and ends with it by itself."""
        return [*self._exec(["--interactive"]), *argv]

    def _exec(self, options: Sequence[str]) -> list[str]:
        tool = shutil.which("docker")
        if tool is None:
            raise MissingTool("docker", INSTALL)
        options = [*options, *(["--user", self.user] if self.user else [])]
        return [tool, "--host", self.docker.address, "exec", *options, self.name]
