"""The leash as a process, with pipes in place of SSH: a stream that blocks does not keep it from hearing or ending."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import host_stalls
import pytest
from oracles import oracle

PATIENCE_S = 10.0


def frame(sign: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">cI", sign, len(content)) + content


def start(*words: str, **more: object) -> bytes:
    return frame(b"s", json.dumps({"words": words, "environment": {}, **more}).encode())


class Leash:
    def __init__(self, state: Path) -> None:
        words = [sys.executable, "-m", "testbed.host.remote.leash"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith(b"testbed-leash ")

    def say(self, *frames: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(frames))
        self.process.stdin.flush()

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def leash(tmp_path: Path) -> Iterator[Leash]:
    held = Leash(tmp_path)
    yield held
    held.process.kill()
    held.process.wait()
    for pipe in (held.process.stdin, held.process.stdout, held.process.stderr):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]


def gone(pid: int) -> None:
    oracle.until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE_S, f"process {pid} has ended")


def test_what_a_command_does_not_read_keeps_no_signal_from_it(leash: Leash) -> None:
    leash.say(start("sh", "-c", "echo $$; exec sleep 60", reads_stdin=True))
    pid = int(leash.line())
    leash.say(frame(b"d", bytes(1 << 20)), frame(b"d", bytes(1 << 20)), frame(b"i"))
    assert leash.end() == 128 + signal.SIGINT
    gone(pid)


def test_all_of_stdin_arrives_at_a_slow_reader(leash: Leash) -> None:
    leash.say(start("sh", "-c", "sleep 0.3; sha256sum", reads_stdin=True))
    content = os.urandom(3 << 20)
    leash.say(*(frame(b"d", content[at : at + 1000_000]) for at in range(0, len(content), 1000_000)), frame(b"e"))
    there = subprocess.run(["sha256sum"], input=content, capture_output=True, check=True).stdout.strip()
    assert leash.line() == there
    assert leash.end() == 0


def test_a_client_that_goes_while_a_run_is_sent_ends_the_leash(leash: Leash, tmp_path: Path) -> None:
    run = tmp_path / "metro-1"
    run.mkdir()
    (run / "run.json").write_text('{"status": "finished"}')
    (run / "big").write_bytes(bytes(4 << 20))
    leash.say(frame(b"g", json.dumps({"path": str(run)}).encode()))
    assert leash.process.stdout is not None
    size = int.from_bytes(leash.process.stdout.read(4), "big")  # then nothing more is read: the pipe is full
    assert leash.process.stdout.read(size) == b"metro-1"
    assert leash.process.stdin is not None
    leash.process.stdin.close()
    assert leash.end() == 129


def test_a_run_with_a_link_is_not_sent(leash: Leash, tmp_path: Path) -> None:
    run = tmp_path / "metro-1"
    run.mkdir()
    (run / "run.json").write_text('{"status": "finished"}')
    (run / "passwords").symlink_to("/etc/shadow")
    leash.say(frame(b"g", json.dumps({"path": str(run)}).encode()))
    assert leash.process.stdout is not None
    assert leash.process.stdout.read(4) == b"\xff" * 4
    assert leash.process.stdout.read(500).strip() == b"passwords is neither a file nor a folder"


def test_sigterm_to_the_leash_ends_its_command(leash: Leash) -> None:
    leash.say(start("sh", "-c", "echo $$; exec sleep 60"))
    pid = int(leash.line())
    leash.process.terminate()
    assert leash.end() == 128 + signal.SIGINT
    gone(pid)


def test_a_background_process_on_the_terminal_is_not_waited_for(leash: Leash) -> None:
    script = "trap '' HUP; sleep 60 & echo $!; echo last"
    leash.say(start("sh", "-c", script, terminal={"stdout": True, "rows": 24, "columns": 80}))
    pid = int(leash.line())
    try:
        assert leash.line() == b"last"
        assert leash.end() == 0
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_frame_that_is_none_ends_the_command(leash: Leash) -> None:
    leash.say(start("sh", "-c", "echo $$; exec sleep 60"))
    pid = int(leash.line())
    leash.say(b"no frame")
    assert leash.end() == 3
    gone(pid)


STUBBORN = "import os, signal, time; [signal.signal(it, signal.SIG_IGN) for it in (2, 15, 1)]; os.write(1, b'\\n')"


@pytest.mark.parametrize(
    ("verb", "within_s"), [("exec", 5.0), pytest.param("status", 12.0, marks=pytest.mark.thorough)]
)
def test_a_program_that_ignores_signals_is_gone_soon(leash: Leash, verb: str, within_s: float) -> None:
    script = f"{STUBBORN}; pid = os.fork(); pid or os.setpgrp(); os.write(1, b'%d\\n' % os.getpid())\n"
    leash.say(start(sys.executable, "-c", f"{script}time.sleep(60)", verb=verb))
    assert leash.line() == b""
    pids = [int(leash.line()), int(leash.line())]
    began_t = time.monotonic()
    assert leash.process.stdin is not None
    leash.process.stdin.close()
    if verb == "status":
        with pytest.raises(subprocess.TimeoutExpired):
            leash.process.wait(5.0)
        assert all(Path(f"/proc/{pid}").exists() for pid in pids), "what undoes has time for it"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert leash.end() == 128 + signal.SIGKILL
    assert host_stalls.elapsed_s(began_t) < within_s
    for pid in pids:
        gone(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: needs root")
def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    script = 'mount -t tmpfs -o nr_inodes=1 none "$0" && mount --bind "$0" /var/tmp && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, str(full), sys.executable, "-m", "testbed.host.remote.leash"]
    done = subprocess.run(words, input=b"", capture_output=True, timeout=20)
    assert done.returncode == 3
    assert done.stderr.decode().count("\n") == 1
    assert "expected to store what the client sends in /var/tmp of" in done.stderr.decode()
    assert "No space left on device; free space there" in done.stderr.decode()


def test_a_command_does_not_survive_a_leash_that_is_killed(leash: Leash) -> None:
    leash.say(start("sh", "-c", "echo $$; exec sleep 60"))
    pid = int(leash.line())
    leash.process.kill()
    gone(pid)


def test_only_words_of_sent_files_begin_with_the_folder(leash: Leash) -> None:
    leash.say(start("echo", "{folder}", "{folder}/there/x", "a{folder}/there/x"))
    first, second, third = leash.line().decode().split()
    assert (first, third) == ("{folder}", "a{folder}/there/x")
    assert second.startswith("/var/tmp/testbed-on-")
    assert second.endswith("/there/x")
    assert leash.end() == 0
