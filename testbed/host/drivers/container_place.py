"""Run a program in a container by ``docker exec``; it ends with the process that started it."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import HostError, MissingTool, TestbedError
from testbed.host import installation, runner
from testbed.host.drivers.docker_endpoint import Endpoint
from testbed.host.linux import program_user
from testbed.host.linux.program_user import Access, ProgramUser

__all__ = ["PROGRAMS", "ContainerPlace"]

PROGRAMS: Final = "/opt/testbed/bin"
"""Folder of an image with its Python and the scripts of installed packages (agents/Dockerfile)."""

_FIRST: Final = 'for path; do if [ -e "$path" ]; then printf %s "$path"; exit; fi; done'
"""Shell command that prints the first of its arguments that exists."""

_WATCHDOG: Final = ("python", "-m", "testbed_agents.watchdog")


@dataclass(frozen=True)
class ContainerPlace:
    """A container that programs run in, by ``docker exec``.

    Attributes:
        name: of the container.
        docker: the daemon that has the container.
        user: ``uid:gid``; empty: the container's own user.
    """

    name: str
    docker: Endpoint
    user: str = ""
    watched = True
    """Programs inside run under a watchdog (testbed_agents/watchdog.py): docker would leave them running."""

    def enter(
        self,
        argv: Sequence[str],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        tied: bool = True,
        framed: bool = False,
    ) -> list[str]:
        """Return the argument list that runs ``argv`` inside; the program ends at EOF on its stdin, ``tied`` or not.

        ``framed``: its stdin takes frames (testbed_agents/watchdog.py), signals among them; the first one to send is
        the end of input.
        The variables of ``environment`` are passed on by name, so the caller must start the list with them set.
        Raises MissingTool.
        """
        # Names only: docker reads the values from its own environment, so argument lists do not expose them to others.
        options = ["--interactive", *(f"--env={key}" for key in environment or {})]
        options += ["--workdir", str(folder)] if folder else []
        return [*self._exec(options), *_WATCHDOG, *(["--stdin"] if framed else []), "--", *argv]

    def enter_watched(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], watchdog: Sequence[str]
    ) -> list[str]:
        """Return :meth:`enter`: the image's own watchdog does what ``watchdog`` would."""
        return self.enter(argv, folder, environment)

    def visit(self, argv: Sequence[str]) -> int:
        """Run a program on the caller's standard streams, as a terminal if they are one; return its status."""
        if sys.stdin.isatty() and sys.stdout.isatty():
            return self._visit_with_terminal(argv)
        return runner.run_under_watchdog([*self._exec(["--interactive"]), *_WATCHDOG, "--stdin", "--", *argv])

    def _visit_with_terminal(self, argv: Sequence[str]) -> int:
        """Run with a second ``docker exec`` whose watchdog ends the program if this process or docker's command ends.

        Docker itself leaves the program running.
        """
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

    def output(self, argv: Sequence[str], folder: Path = Path("/")) -> str:
        """Run a short program as the place's user in the folder ``/``, whatever ``folder`` is; return its output.

        Raises HostError, MissingTool.
        """
        docker_argv = [*self._exec(["--workdir", "/"]), *argv]
        bound_s = runner.LOOK_BOUND_S
        try:
            done = subprocess.run(
                docker_argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=bound_s
            )
        except subprocess.TimeoutExpired as error:
            raise HostError(f"docker exec in {self.name} did not end within {bound_s:g} s") from error
        if done.returncode != 0:
            raise HostError(f"docker exec in {self.name} failed: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    def existing(self, paths: Iterable[str]) -> str:
        """Return the first of ``paths`` that exists inside; empty if none does, or the container cannot be asked."""
        try:
            return self.output(["sh", "-c", _FIRST, "sh", *paths]).strip()
        except TestbedError:
            return ""

    def first_refused(self, user: ProgramUser, wanted: Iterable[tuple[Access, Path]]) -> Path | None:
        """As :meth:`testbed.host.runner.Place.first_refused`. Raises HostError."""
        return program_user.first_refused(user, wanted, self.output)

    def home(self, user: ProgramUser) -> str:
        """Return HOME of programs of ``user``: docker's. Raises HostError."""
        return self.output(["sh", "-c", 'echo "$HOME"']).strip()

    def inherited(self) -> Mapping[str, str]:
        """Return nothing: a container has variables of its own."""
        return {}

    def with_tmp(self, folder: Path) -> ContainerPlace:
        """Return this place: a container has a /tmp of its own."""
        return self

    def speak(self, argv: Sequence[str]) -> list[str]:
        """Return the argument list of a program that is controlled over its stdin and ends by itself at EOF."""
        return [*self._exec(["--interactive"]), *argv]

    def _exec(self, options: Sequence[str]) -> list[str]:
        tool = shutil.which("docker")
        if tool is None:
            raise MissingTool("docker", installation.containerlab())
        options = [*options, *(["--user", self.user] if self.user else [])]
        return [tool, "--host", self.docker.address, "exec", *options, self.name]
