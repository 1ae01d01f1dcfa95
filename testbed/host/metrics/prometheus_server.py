"""Run a Prometheus server inside a network namespace, without privileges."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from testbed.core.prometheus import scrape_config
from testbed.errors import HostError, LabError, MissingTool, StorageError
from testbed.host import installation, runner
from testbed.host.linux import namespace, process

__all__ = ["PrometheusServer", "end_left_in", "find", "prepare", "rules"]

READY_BOUND_S: Final = 20.0
READY_EVERY_S: Final = 0.05
ANSWER_BOUND_S: Final = 2.0
STOP_BOUND_S: Final = 3.0
NOBODY: Final = 65534
"""User and group that own no files (Debian Policy, 9.2.2). The server reads its configuration and writes its data."""


def find() -> str:
    """Return the path of the program. Raises MissingTool.

    Debian's package also starts a server on the host, which is independent of a lab's.
    """
    path = shutil.which("prometheus")
    if path is None:
        raise MissingTool("prometheus", installation.apt("prometheus"), "--observe needs it")
    return path


def rules() -> str:
    """Return the text of the rules of every observed lab."""
    return (resources.files("testbed.core.prometheus") / "assets" / scrape_config.RULES_FILE).read_text()


def prepare(folder: Path, files: dict[str, str]) -> None:
    """Create ``folder`` with ``files`` (text by relative path) and the data folder. Raises StorageError.

    The server can read them whatever the umask; access for others is up to the mode of the lab's folder.
    """
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o755)
            path.write_text(text)
            path.chmod(0o644)
        folder.chmod(0o755)
        data = folder / scrape_config.DATA_FOLDER
        data.mkdir()
        if os.geteuid() == 0:
            os.chown(data, NOBODY, NOBODY)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}") from error


class PrometheusServer:
    """A running server. It dies with the thread that started it."""

    def __init__(self, folder: Path, netns: Path, address: str, port: int, log: Path) -> None:
        """Start in ``folder``, created by :func:`prepare`; returns when the server is ready.

        Raises MissingTool, HostError, or LabError with its last output if it ended or was not ready in time.
        """
        self._netns, self._address, self._port, self._log = netns, address, port, log
        argv = _command(netns, scrape_config.arguments(f"{address}:{port}"))
        try:
            with log.open("ab") as output:
                # In its folder and with relative paths, because its user cannot read the folders above. At most one
                # core and a minimal environment, so that it does not disturb the ranks' timing.
                self._child = subprocess.Popen(
                    argv,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={"PATH": os.environ.get("PATH", os.defpath), "GOMAXPROCS": "1"},
                )
        except OSError as error:
            raise HostError(f"cannot start {argv[-1]}: {error.strerror}") from error
        self.pid = self._child.pid
        self.began = process.started(self.pid)
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> str:
        """Wait until it ends; return a description of how."""
        return process.how_ended(self._child.wait())

    def stop(self) -> None:
        """End it by SIGTERM, so that it closes its data, else by SIGKILL. Idempotent."""
        self._child.terminate()
        try:
            self._child.wait(STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _await_ready(self) -> None:
        until = time.monotonic() + READY_BOUND_S
        while not namespace.inside(self._netns, lambda: _is_ready(self._address, self._port)):
            if self._child.poll() is not None:
                raise LabError(f"prometheus {process.how_ended(self._child.returncode)}: {self._words()}")
            if time.monotonic() > until:
                raise LabError(f"prometheus was not ready within {READY_BOUND_S:g} s: {self._words()}")
            time.sleep(READY_EVERY_S)

    def _words(self) -> str:
        with contextlib.suppress(OSError):
            if lines := self._log.read_text(errors="replace").strip().splitlines():
                return " / ".join(lines[-3:])
        return "no output"


def _command(netns: Path, arguments: Sequence[str]) -> list[str]:
    nsenter, setpriv = runner.tool("nsenter"), runner.tool("setpriv")
    privileges = ["--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all", "--pdeathsig", "KILL"]
    if os.geteuid() == 0:
        privileges += [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # setpriv last, because a change of user clears the parent-death signal (prctl(2)).
    return [nsenter, f"--net={netns}", "--", setpriv, *privileges, "--", find(), *arguments]


def _is_ready(address: str, port: int) -> bool:
    """Return whether the server in the calling thread's network namespace is ready."""
    import http.client  # takes 10 ms, and every keeper imports this module

    connection = http.client.HTTPConnection(address, port, timeout=ANSWER_BOUND_S)
    try:
        connection.request("GET", "/-/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def end_left_in(folder: Path) -> None:
    """End a server by its working directory ``folder``, for callers that do not know its pid."""
    option = f"--config.file={scrape_config.CONFIG_FILE}".encode()
    there, left = folder.resolve(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # Read first: if the pid is recycled after the checks, its start time is another one.
                began = process.started(int(entry.name))
                if (entry / "cwd").readlink() == there and option in (entry / "cmdline").read_bytes().split(b"\0"):
                    left.append((int(entry.name), began))
    process.end_all(left)
