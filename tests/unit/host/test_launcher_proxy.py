"""The launcher proxy between mpiexec in one container and its daemons in others; here all run on this host."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.processes import is_gone, until_ended, until_gone
from builders.tables import table
from oracles import oracle

from testbed.host import launcher_proxy, launcher_shim
from testbed.host.launcher_shim import Wanted

ROOT = Path(__file__).resolve().parents[3]
WATCHDOG = [sys.executable, "-m", "testbed_agents.watchdog", "--"]
BOUND_S = 20.0
ENDLESS = "echo daemon $$ runs; exec sleep 1000"


class Mpiexec:
    """A shell script in place of mpiexec. Its ``$1`` replaces ssh and reaches the hosts a and b."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "log"
        self.within = folder / "netns"
        self.within.symlink_to("/proc/self/ns/net")
        self.proxy: subprocess.Popen[bytes] | None = None

    def _reach(self) -> Path:
        return launcher_shim.client(self.folder, launcher_proxy.socket_of(self.folder), sys.executable)

    def start(self, script: str) -> None:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}",
        }
        with self._log.open("ab") as log:
            self.proxy = launcher_proxy.start(
                self.folder,
                [*WATCHDOG, "sh", "-c", script, "mpiexec", str(self._reach()), str(self._log)],
                {host: [*WATCHDOG, "env", f"WHERE={host}"] for host in ("a", "b")},
                within=self.within,
                owner=(os.getuid(), os.getgid()),
                environment=environment,
                log=log,
            )

    @property
    def output(self) -> list[str]:
        return self._log.read_text().splitlines()

    def ended(self) -> int:
        assert self.proxy is not None
        return self.proxy.wait(BOUND_S)

    def lines(self, *, status: int = 0) -> list[str]:
        """Wait for its end; return its output."""
        assert self.ended() == status, self.output
        return self.output

    def pid(self, role: str) -> int:
        """Wait for the line ``ROLE PID runs`` and return its PID."""
        pattern = re.compile(rf"^{role} (\d+) runs$", re.MULTILINE)
        oracle.until(lambda: pattern.search(self._log.read_text()), BOUND_S, f"{role} runs")
        return int(pattern.findall(self._log.read_text())[0])


def answers(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("status", "entered"))]


@pytest.fixture
def mpiexec(tmp_path: Path) -> Iterator[Mpiexec]:
    """Return an mpiexec in a folder whose path is longer than the limit of a socket's path."""
    folder = tmp_path / ("validate-" * 12)
    folder.mkdir()
    made = Mpiexec(folder)
    yield made
    if made.proxy is not None:
        made.proxy.kill()
        made.proxy.wait(BOUND_S)


def test_a_daemon_starts_where_it_was_asked_for_and_its_status_comes_back(mpiexec: Mpiexec) -> None:
    mpiexec.start(
        """"$1" -x b 'echo daemon in $WHERE;' exit 3; echo status $?; "$1" user@a true; echo status $?; exit 5"""
    )
    assert mpiexec.lines(status=5) == ["daemon in b", "status 3", "status 0"]


def test_a_command_has_the_streams_of_who_asked(mpiexec: Mpiexec) -> None:
    """Its stdin is the watchdog's; stdout and stderr are the client's own, one apart from the other."""
    folder = mpiexec.folder
    mpiexec.start(f""""$1" a 'echo out; echo err >&2' >'{folder}/out' 2>'{folder}/err'""")
    assert mpiexec.lines() == []
    assert [(folder / name).read_text() for name in ("out", "err")] == ["out\n", "err\n"]


@table(
    "script, why",
    {
        "a host a second time": (
            '"$1" a true; "$1" a echo entered; echo status $?',
            "unknown host a, or its daemon was started already",
        ),
        "a host of no lab": (
            '"$1" example.org echo entered; echo status $?',
            "unknown host example.org, or its daemon was started already",
        ),
        "no host": ('"$1" -x; echo status $?', "malformed request"),
    },
)
def test_each_host_of_the_lab_is_entered_once_and_no_other(mpiexec: Mpiexec, script: str, why: str) -> None:
    mpiexec.start(script)
    assert sorted(mpiexec.lines()) == sorted([f"launcher proxy: {why}", "status 255"])


def test_only_the_owner_may_ask(mpiexec: Mpiexec) -> None:
    mpiexec.start("exit 0")
    mpiexec.lines()
    (file,) = (path.stat() for path in mpiexec.folder.iterdir() if path.is_socket())
    assert (stat.S_IMODE(file.st_mode), file.st_uid, file.st_gid) == (0o600, os.getuid(), os.getgid())


def test_killed_it_takes_mpiexec_and_daemons_along(mpiexec: Mpiexec) -> None:
    mpiexec.start(f"""echo launcher $$ runs; "$1" a '{ENDLESS}'""")
    inside = [mpiexec.pid("launcher"), mpiexec.pid("daemon")]
    assert mpiexec.proxy is not None and not any(map(is_gone, inside))
    mpiexec.proxy.send_signal(signal.SIGKILL)
    until_ended(*inside)


def test_a_daemon_ends_with_mpiexec(mpiexec: Mpiexec) -> None:
    mpiexec.start(f"""setsid "$1" a '{ENDLESS}' & until grep -q ^daemon "$2"; do sleep 0.05; done; exit 7""")
    daemon = mpiexec.pid("daemon")
    assert mpiexec.ended() == 7
    until_ended(daemon)


def test_a_daemon_ends_with_its_requester(mpiexec: Mpiexec) -> None:
    mpiexec.start(f""""$1" a '{ENDLESS}' & until grep -q ^daemon "$2"; do sleep 0.05; done; kill $!; sleep 1000""")
    daemon = mpiexec.pid("daemon")
    until_gone(daemon)
    assert mpiexec.proxy is not None and mpiexec.proxy.poll() is None


def test_who_is_in_another_network_namespace_is_refused_and_uses_up_no_way(mpiexec: Mpiexec) -> None:
    """Every node has processes of the owner, so a namespace of another kind stands in for one without any."""
    mpiexec.within.unlink()
    mpiexec.within.symlink_to("/proc/self/ns/uts")
    mpiexec.start(
        f""""$1" a echo entered; echo status $?; ln -sfn /proc/self/ns/net '{mpiexec.within}'
        "$1" a echo entered; echo status $?"""
    )
    lines = mpiexec.lines()
    pattern = r"launcher proxy: refused process \d+: it is not in the management network"
    assert sum(bool(re.fullmatch(pattern, line)) for line in lines) == 1
    assert "launcher proxy: this process may not start programs: it is not in the management network" in lines
    assert answers(lines) == ["status 255", "entered", "status 0"]


def test_what_lies_in_the_users_folder_is_not_run(mpiexec: Mpiexec, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("select.py", "json.py", "testbed.py"):
        (mpiexec.folder / name).write_text("raise SystemExit('not mine')\n")
    monkeypatch.chdir(mpiexec.folder)
    mpiexec.start('"$1" a echo entered')
    assert mpiexec.lines() == ["entered"]


def test_out_of_descriptors_it_says_so_and_goes_on_when_there_are_some(mpiexec: Mpiexec) -> None:
    may_ask = mpiexec.folder / "may-ask"
    mpiexec.start(
        f"""echo launcher $$ runs; until [ -e '{may_ask}' ]; do sleep 0.05; done
        "$1" a echo entered a; echo status $?; echo second $$ runs; "$1" b echo entered b; echo status $?"""
    )
    mpiexec.pid("launcher")
    assert mpiexec.proxy is not None
    soft, hard = resource.prlimit(mpiexec.proxy.pid, resource.RLIMIT_NOFILE)
    # The blocked accept(2) already has the descriptor of the next connection.
    resource.prlimit(mpiexec.proxy.pid, resource.RLIMIT_NOFILE, (3, hard))
    may_ask.touch()
    mpiexec.pid("second")
    resource.prlimit(mpiexec.proxy.pid, resource.RLIMIT_NOFILE, (soft, hard))
    lines = mpiexec.lines()
    assert "launcher proxy: cannot start the requested command: Too many open files" in lines
    assert answers(lines) == ["status 255", "entered b", "status 0"]


def test_who_connects_and_says_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_proxy, "ASK_BOUND_S", 0.1)
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    script = 'until [ -e "$0" ]; do sleep 0.05; done'
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as silent:
        listener.bind("reach.socket")
        listener.listen()
        arguments = (listener, ["sh", "-c", script, str(tmp_path / "end")], dict[str, str](), Path("/proc/self/ns/net"))
        serving = threading.Thread(target=launcher_proxy.serve, args=arguments)
        serving.start()
        try:
            silent.settimeout(BOUND_S / 2)
            silent.connect("reach.socket")
            assert silent.recv(1) == b""
        finally:
            (tmp_path / "end").touch()
            serving.join()
            listener.shutdown(socket.SHUT_RDWR)


def test_who_is_refused_cannot_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Nobody:
        def refusal(self, peer: launcher_proxy.Peer) -> str:
            return "it is a stranger"

        def enter(self, peer: launcher_proxy.Peer, wanted: launcher_proxy.Wanted) -> str:
            return "never asked"

    monkeypatch.setattr(launcher_proxy, "REPORT_EVERY_S", 1000.0)
    path = tmp_path / "socket"
    with launcher_proxy.bind(path, 0o600) as listener:
        serving = threading.Thread(target=launcher_proxy.listen, args=(listener, Nobody()), daemon=True)
        serving.start()
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                assert b"stranger" in client.recv(1000)
        listener.shutdown(socket.SHUT_RDWR)
    serving.join(BOUND_S)
    assert capsys.readouterr().err.count("refused process") == 1


class Anybody:
    """Rules by which everybody may start anything."""

    def refusal(self, peer: launcher_proxy.Peer) -> str:
        return ""

    def enter(self, peer: launcher_proxy.Peer, wanted: Wanted) -> launcher_proxy.Entered | str:
        return launcher_proxy.Entered(["sh", "-c", wanted.command])


@table(
    "request_line, answer",
    {
        "a zero byte": (b'["a", "echo \\u0000"]\n', "cannot start the requested command"),
        "half a character": (b'["a", "echo \\ud800"]\n', "cannot start the requested command"),
        "endless nesting": (b"[" * 100_000 + b"\n", "malformed request"),
        "another encoding": (b"\xff\n", "malformed request"),
        "no words": (b"[]\n", "malformed request"),
        "an option alone": (b'["-l"]\n', "malformed request"),
    },
)
def test_whoever_asks_for_what_cannot_be_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_line: bytes, answer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind("reach.socket")
        listener.listen()
        threading.Thread(target=launcher_proxy.listen, args=(listener, Anybody()), daemon=True).start()
        client.connect("reach.socket")
        client.settimeout(BOUND_S)
        client.sendall(request_line)
        assert answer in client.recv(1000).decode()
        listener.shutdown(socket.SHUT_RDWR)
