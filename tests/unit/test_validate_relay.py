"""The relay between an mpiexec in a container and its daemons in others. Here they all run on leashes of this host."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oracle
import pytest

from testbed.lab.validate import relay

ROOT = Path(__file__).resolve().parents[2]
LEASH = [sys.executable, "-m", "testbed_agents.leash", "--"]
BOUND_S = 20.0
ENDLESS = "echo daemon $$ runs; exec sleep 1000"


class Mpiexec:
    """A shell script in place of mpiexec, whose ``$1`` stands for ssh and knows the hosts a and b."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "log"
        self.relay: subprocess.Popen[bytes] | None = None

    def start(self, script: str) -> None:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}",
        }
        with self._log.open("ab") as log:
            self.relay = relay.start(
                self.folder,
                [*LEASH, "sh", "-c", script, "mpiexec", str(relay.program(self.folder)), str(self._log)],
                {host: [*LEASH, "env", f"WHERE={host}"] for host in ("a", "b")},
                owner=(os.getuid(), os.getgid()),
                environment=environment,
                log=log,
            )

    @property
    def said(self) -> list[str]:
        return self._log.read_text().splitlines()

    def ended(self) -> int:
        assert self.relay is not None
        return self.relay.wait(BOUND_S)

    def pid(self, who: str) -> int:
        """As its line ``WHO PID runs`` says; waits for it."""
        pattern = re.compile(rf"^{who} (\d+) runs$", re.MULTILINE)
        oracle.until(lambda: pattern.search(self._log.read_text()) is not None, BOUND_S, f"{who} runs")
        found = pattern.search(self._log.read_text())
        assert found is not None
        return int(found[1])


@pytest.fixture
def mpiexec(tmp_path: Path) -> Iterator[Mpiexec]:
    """In a folder whose name is longer than that of a socket may be."""
    folder = tmp_path / ("validate-" * 12)
    folder.mkdir()
    made = Mpiexec(folder)
    yield made
    if made.relay is not None:
        made.relay.kill()
        made.relay.wait(BOUND_S)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_daemon_starts_where_it_was_asked_for_and_its_status_comes_back(mpiexec: Mpiexec) -> None:
    mpiexec.start(
        """"$1" -x b 'echo daemon in $WHERE;' exit 3; echo status $?; "$1" user@a true; echo status $?; exit 5"""
    )
    assert mpiexec.ended() == 5, mpiexec.said
    assert mpiexec.said == ["daemon in b", "status 3", "status 0"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('"$1" a true; "$1" a echo entered; echo status $?', "reach: no way leads to a, or none any more"),
        ('"$1" example.org echo entered; echo status $?', "reach: no way leads to example.org, or none any more"),
        ('"$1" -x; echo status $?', "reach: what it was called with makes no sense"),
    ],
)
def test_each_host_of_the_lab_is_entered_once_and_no_other(mpiexec: Mpiexec, script: str, why: str) -> None:
    mpiexec.start(script)
    assert mpiexec.ended() == 0, mpiexec.said
    assert sorted(mpiexec.said) == sorted([why, "status 255"])


def test_only_the_owner_may_ask(mpiexec: Mpiexec) -> None:
    mpiexec.start("exit 0")
    assert mpiexec.ended() == 0, mpiexec.said
    (socket,) = (it for it in mpiexec.folder.iterdir() if it.is_socket())
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert (socket.stat().st_uid, socket.stat().st_gid) == (os.getuid(), os.getgid())


def test_killed_it_takes_mpiexec_and_daemons_along(mpiexec: Mpiexec) -> None:
    mpiexec.start(f"""echo launcher $$ runs; "$1" a '{ENDLESS}'""")
    inside = [mpiexec.pid("launcher"), mpiexec.pid("daemon")]
    assert mpiexec.relay is not None and not any(map(gone, inside))
    mpiexec.relay.send_signal(signal.SIGKILL)
    oracle.until(lambda: all(map(gone, inside)), BOUND_S, "mpiexec and the daemon end")


def test_a_daemon_ends_with_mpiexec(mpiexec: Mpiexec) -> None:
    mpiexec.start(f"""setsid "$1" a '{ENDLESS}' & until grep -q ^daemon "$2"; do sleep 0.05; done; exit 7""")
    daemon = mpiexec.pid("daemon")
    assert mpiexec.ended() == 7
    oracle.until(lambda: gone(daemon), BOUND_S, "the daemon ends")


def test_a_daemon_ends_with_whoever_asked_for_it(mpiexec: Mpiexec) -> None:
    mpiexec.start(f""""$1" a '{ENDLESS}' & until grep -q ^daemon "$2"; do sleep 0.05; done; kill $!; sleep 1000""")
    daemon = mpiexec.pid("daemon")
    oracle.until(lambda: gone(daemon), BOUND_S, "the daemon ends")
    assert mpiexec.relay is not None and mpiexec.relay.poll() is None
