"""The leash as a process, with pipes in place of SSH: a stream that blocks does not keep it from hearing or ending."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import host_stalls
import pytest
from builders.processes import needs_root, until_ended

PATIENCE_S = 10.0


def frame(sign: bytes, content: bytes | Mapping[str, object] = b"") -> bytes:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack(">cI", sign, len(data)) + data


class Leash(subprocess.Popen[bytes]):
    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(self) -> None:
        words = [sys.executable, "-m", "testbed.host.remote.leash"]
        super().__init__(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.read_line().startswith(b"testbed-leash ")

    def send(self, *frames: bytes) -> None:
        self.stdin.write(b"".join(frames))
        self.stdin.flush()

    def start(self, *words: str, **options: object) -> None:
        self.send(frame(b"s", {"words": words, "environment": {}, **options}))

    def read_line(self) -> bytes:
        return self.stdout.readline().strip()

    def end(self) -> int:
        return self.wait(PATIENCE_S)


@pytest.fixture
def leash() -> Iterator[Leash]:
    with contextlib.suppress(BrokenPipeError), Leash() as held:
        yield held
        held.kill()


@pytest.fixture
def pid(leash: Leash) -> int:
    """Start a command that sleeps; return its process."""
    leash.start("sh", "-c", "echo $$; exec sleep 60")
    return int(leash.read_line())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (run := tmp_path / "metro-1").mkdir()
    (run / "run.json").write_text('{"status": "finished"}')
    return run


def test_what_a_command_does_not_read_keeps_no_signal_from_it(leash: Leash) -> None:
    leash.start("sh", "-c", "echo $$; exec sleep 60", reads_stdin=True)
    pid = int(leash.read_line())
    leash.send(frame(b"d", bytes(1 << 20)), frame(b"d", bytes(1 << 20)), frame(b"i"))
    assert leash.end() == 128 + signal.SIGINT
    until_ended(pid)


def test_all_of_stdin_arrives_at_a_slow_reader(leash: Leash) -> None:
    leash.start("sh", "-c", "sleep 0.3; sha256sum", reads_stdin=True)
    content = os.urandom(3 << 20)
    leash.send(*(frame(b"d", content[begin : begin + 1000_000]) for begin in range(0, 3 << 20, 1000_000)), frame(b"e"))
    assert leash.read_line() == f"{hashlib.sha256(content).hexdigest()}  -".encode()
    assert leash.end() == 0


def test_a_client_that_goes_while_a_run_is_sent_ends_the_leash(leash: Leash, run: Path) -> None:
    (run / "big").write_bytes(bytes(4 << 20))
    leash.send(frame(b"g", {"path": str(run)}))
    size = int.from_bytes(leash.stdout.read(4), "big")  # then nothing more is read: the pipe is full
    assert leash.stdout.read(size) == b"metro-1"
    leash.stdin.close()
    assert leash.end() == 129


def test_a_run_with_a_link_is_not_sent(leash: Leash, run: Path) -> None:
    (run / "passwords").symlink_to("/etc/shadow")
    leash.send(frame(b"g", {"path": str(run)}))
    assert leash.stdout.read(4) == b"\xff" * 4
    assert leash.stdout.read(500).strip() == b"passwords is neither a file nor a folder"


def test_sigterm_to_the_leash_ends_its_command(leash: Leash, pid: int) -> None:
    leash.terminate()
    assert leash.end() == 128 + signal.SIGINT
    until_ended(pid)


def test_a_background_process_on_the_terminal_is_not_waited_for(leash: Leash) -> None:
    script = "trap '' HUP; sleep 60 & echo $!; echo last"
    leash.start("sh", "-c", script, terminal={"stdout": True, "rows": 24, "columns": 80})
    pid = int(leash.read_line())
    try:
        assert leash.read_line() == b"last"
        assert leash.end() == 0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_frame_that_is_none_ends_the_command(leash: Leash, pid: int) -> None:
    leash.send(b"no frame")
    assert leash.end() == 3
    until_ended(pid)


STUBBORN = "import os, signal, time; [signal.signal(it, signal.SIG_IGN) for it in (2, 15, 1)]; os.write(1, b'\\n')"


@pytest.mark.parametrize(
    ("verb", "within_s"), [("exec", 5.0), pytest.param("status", 12.0, marks=pytest.mark.thorough)]
)
def test_a_program_that_ignores_signals_is_gone_soon(leash: Leash, verb: str, within_s: float) -> None:
    script = f"{STUBBORN}; pid = os.fork(); pid or os.setpgrp(); os.write(1, b'%d\\n' % os.getpid())\n"
    leash.start(sys.executable, "-c", f"{script}time.sleep(60)", verb=verb)
    assert leash.read_line() == b""
    pids = [int(leash.read_line()), int(leash.read_line())]
    began_t = time.monotonic()
    leash.stdin.close()
    if verb == "status":
        with pytest.raises(subprocess.TimeoutExpired):
            leash.wait(5.0)
        assert all(Path(f"/proc/{pid}").exists() for pid in pids), "what undoes has time for it"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert leash.end() == 128 + signal.SIGKILL
    assert host_stalls.elapsed_s(began_t) < within_s
    until_ended(*pids)


@needs_root
def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    script = 'mount -t tmpfs -o nr_inodes=1 none "$0" && mount --bind "$0" /var/tmp && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, str(full), sys.executable, "-m", "testbed.host.remote.leash"]
    done = subprocess.run(words, input=b"", capture_output=True, timeout=20)
    assert done.returncode == 3
    (line,) = done.stderr.decode().splitlines()
    assert "expected to store what the client sends in /var/tmp of" in line
    assert "No space left on device; free space there" in line


def test_a_command_does_not_survive_a_leash_that_is_killed(leash: Leash, pid: int) -> None:
    leash.kill()
    until_ended(pid)


def test_only_words_of_sent_files_begin_with_the_folder(leash: Leash) -> None:
    leash.start("echo", "{folder}", "{folder}/there/x", "a{folder}/there/x")
    first, second, third = leash.read_line().decode().split()
    assert (first, third) == ("{folder}", "a{folder}/there/x")
    assert second.startswith("/var/tmp/testbed-on-")
    assert second.endswith("/there/x")
    assert leash.end() == 0
