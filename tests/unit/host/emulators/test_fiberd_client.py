"""The client against helpers that misbehave, and fiberd's line protocol under sanitizers. Needs no privileges."""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import host_stalls
import pytest
from builders.noop import NoopEmulator
from builders.processes import write_program
from builders.tables import table

from testbed.core.physics import impairment
from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.topology import names, topology_limits
from testbed.errors import HostError, LabError, MissingTool, UnknownName
from testbed.host import installation
from testbed.host.emulators import fiberd as client
from testbed.host.emulators.emulator import Emulator
from testbed.host.emulators.fiberd import Fiberd

FIBERD = Path(__file__).resolve().parents[4] / "testbed" / "fiberd"
NORTH = EmulatedDirection("north:west", "north-a", "north-b", Impairment(delay_s=2e-4))


Start = Callable[[str], Fiberd]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a Python program with this body in place of fiberd; it has `link`, its control socket as a file."""

    def start(body: str) -> Fiberd:
        head = f"#!{sys.executable}\nimport socket, sys\nlink = socket.socket(fileno=0).makefile('rw', buffering=1)\n"
        program = write_program(tmp_path / "helper", head + body)
        monkeypatch.setattr(client, "find_binary", lambda: program)
        return Fiberd.start("x", [NORTH], 0, tmp_path / "log")

    return start


def install_words() -> list[str]:
    """Return the words of the command that compiles a missing fiberd, after Python's path."""
    with pytest.raises(MissingTool) as caught:
        client.find_binary()
    assert caught.value.tool == "fiberd"
    python, *words = shlex.split(caught.value.install, comments=True)
    assert Path(python).name.startswith("python")
    assert words[:3] == ["-m", "pip", "install"]
    return words


def test_missing_binary_names_a_command_that_compiles_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of this checkout, by this Python, and with no package by a name that is on no index."""
    monkeypatch.setattr(client, "_BINARY", tmp_path / "fiberd")
    *_, option, folder = install_words()
    assert option == "--editable"
    assert (Path(folder) / "hatch_build.py").samefile(FIBERD.parents[1] / "hatch_build.py")


@table(
    "origin, last",
    {
        "a checkout": ({"url": "file://CHECKOUT", "dir_info": {}}, "file://CHECKOUT"),
        "a repository": (
            {"url": "https://x/y.git", "vcs_info": {"vcs": "git", "commit_id": "4711"}},
            "git+https://x/y.git@4711",
        ),
        "a wheel": ({"url": "file:///tmp/x.whl", "archive_info": {}}, "FOLDER"),
        "unknown": ({}, "FOLDER"),
    },
)
def test_installed_elsewhere_the_command_names_what_it_was_installed_from(
    origin: dict[str, Any], last: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hatch_build.py").touch()
    text = json.dumps(origin).replace("CHECKOUT", str(tmp_path))
    monkeypatch.setattr(client, "_BINARY", tmp_path / "fiberd")
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "site-packages" / "testbed")
    distribution = types.SimpleNamespace(read_text={"direct_url.json": text}.get)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)
    words = install_words()
    assert last.replace("CHECKOUT", str(tmp_path)) in words
    assert "scale-across-testbed" not in words


def test_one_that_never_answers(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.2)
    began = time.monotonic()
    with pytest.raises(LabError, match=r"did not answer within 0\.2 s"):
        start("link.read()")
    assert host_stalls.elapsed_s(began) < 3  # it ended on request


def test_one_that_falls_silent_later_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its end then takes the fibers down: it would be a black hole behind ports that are up."""
    emulator = start(
        """
for line in link:
    if line == "stats\\n":
        link.read()
    link.write("ok scheduling=SCHED_OTHER priority=0 spin_us=0\\n" if line == "go\\n" else "ok\\n")
"""
    )
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.2)
    with pytest.raises(LabError, match=r"did not answer within 0\.2 s and was killed"):
        emulator.stats()
    assert emulator.wait(5) == -9
    with pytest.raises(LabError, match="was killed"):
        emulator.set({"north:west": Impairment()})
    emulator.stop()


def test_one_that_dies_is_quoted(start: Start) -> None:
    with pytest.raises(LabError, match="ended with status 4: no such device"):
        start("print('no such device', file=sys.stderr); sys.exit(4)")


def test_answers_that_come_in_pieces(start: Start) -> None:
    emulator = start(
        """
for line in link:
    answer = "ok scheduling=SCHED_OTHER priority=-20 spin_us=0\\n" if line == "go\\n" else "ok\\n"
    for letter in answer:
        link.write(letter)
        link.flush()
"""
    )
    assert emulator.info.scheduling == "SCHED_OTHER, nice -20"
    emulator.set({"north:west": Impairment()})
    emulator.stop()
    assert emulator.wait(0) == 0


def test_noop_is_an_emulator() -> None:
    emulator: Emulator = NoopEmulator([NORTH])
    emulator.set({"north:west": Impairment(loss=0.5)})
    assert [stats.direction for stats in emulator.stats()] == ["north:west"]
    with pytest.raises((LabError, UnknownName)):
        emulator.set({"south:west": Impairment()})
    emulator.stop()
    assert emulator.wait(1) == 0


# ---- the line protocol -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    binary = tmp_path_factory.mktemp("fiberd") / "fiberd"
    base: list[str | Path] = [compiler, "-std=c11", "-D_GNU_SOURCE", "-g", "-o", binary, *sorted(FIBERD.glob("*.c"))]
    flags = ["-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([*base, *flags, "-lm"], capture_output=True).returncode != 0:
        subprocess.run([*base, "-lm"], check=True)
    return binary


Line = Callable[[bytes], list[str]]


@pytest.fixture
def line(sanitized: Path) -> Iterator[Line]:
    """Sends bytes to fiberd, and returns an answer for each newline."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen([sanitized], stdin=theirs.fileno(), stderr=subprocess.PIPE)
    ours.settimeout(5)
    with ours, ours.makefile("r", errors="replace", newline="\n") as answers:

        def ask(data: bytes) -> list[str]:
            ours.sendall(data)
            return [answers.readline().rstrip("\n") for _ in range(data.count(b"\n"))]

        yield ask
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors.decode()


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("ping", "ok"),
        ("stats", "ok"),
        ("", "error empty line"),
        ("fly", "error fly: unknown command (available: add, set, get, flush, go, record, recorded, stats, ping)"),
        ("add x", "error add: expected NAME INGRESS EGRESS"),
        ("add x lo lo", "error x: expected two different ends"),
        ("add x nosuch0 lo", "error nosuch0: cannot find the interface: No such device"),
        (f"add {'x' * 96} a b", "error a name is too long"),
        (f"add {'l' * 40}:{'s' * 40} nosuch0 b", "error nosuch0: cannot find the interface: No such device"),
        ("set", "error set: unknown direction"),
        ("set x loss=0", "error x: unknown direction"),
        ("x" * 3000, "error a line is too long"),
    ],
)
def test_commands(line: Line, command: str, answer: str) -> None:
    assert line(command.encode() + b"\nping\n") == [answer, "ok"]


def test_lines_in_pieces_and_together(line: Line) -> None:
    assert line(b"ping\n" * 5000) == ["ok"] * 5000
    assert line(b"pi") == []
    assert line(b"ng\npin") == ["ok"]
    assert line(b"g\n") == ["ok"]


def test_garbage_lines(line: Line) -> None:
    rng = random.Random(5)
    for _ in range(300):
        words = [
            rng.choice([b"set", b"add", b"go ", b"=", b" ", b"\0", rng.randbytes(5)]) for _ in range(rng.randrange(40))
        ]
        garbage = b" ".join(words).replace(b"\n", b"").replace(b"go", b"gx")
        assert line(garbage + b"\n")[0].startswith("error")


def test_there_is_room_for_as_many_directions_as_it_is_told(sanitized: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        process = subprocess.Popen([sanitized, "--directions", "0"], stdin=theirs.fileno())
        theirs.close()
        ours.settimeout(5)
        ours.sendall(b"add north:west lo lo2\n")
        assert ours.makefile("r").readline() == "error north:west: more than 0 directions\n"
    assert process.wait(10) == 0


def test_it_gets_the_limit_of_topologies_and_no_more_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", started := Mock(side_effect=OSError("not started")))
    limit = 2 * topology_limits.MOST_LINKS
    many = [EmulatedDirection(f"l{i}:b", f"a{i}", f"b{i}", Impairment()) for i in range(limit + 1)]
    with pytest.raises(LabError, match="513 directions are too many for fiberd; use at most 512"):
        Fiberd.start("/nowhere", many, 0, tmp_path / "log")
    started.assert_not_called()
    with pytest.raises(HostError, match="not started"):
        Fiberd.start("/nowhere", many[1:], 0, tmp_path / "log")
    argv = started.call_args.args[0]
    assert argv[argv.index("--directions") + 1] == str(limit)


def test_limits_that_c_declares_as_well_are_the_same() -> None:
    """What a topology may ask for, fiberd accepts: it has no limit below that of ``core``."""
    control, fiber = ((FIBERD / name).read_text() for name in ("control.c", "fiber.h"))
    delay = re.search(r"MAX_DELAY_NS = (\d+) \* NANOSECONDS", control)
    rates = re.search(r"MIN_RATE_BPS = ([\d.e]+), MAX_RATE_BPS = ([\d.e]+);", control)
    overhead = re.search(r"parse_integer\(value, 0, (\d+), &impairment->overhead_bytes\)", control)
    name = re.search(r"char name\[(\d+)\];", fiber)
    assert delay and rates and overhead and name
    assert float(delay[1]) == impairment.MOST_DELAY_S
    assert (float(rates[1]), float(rates[2])) == (impairment.LEAST_RATE_BPS, impairment.MOST_RATE_BPS)
    assert int(overhead[1]) == impairment.MOST_OVERHEAD_BYTES
    assert "UINT16_MAX, &impairment->largest_bytes" in control and impairment.MOST_LARGEST_BYTES == 0xFFFF
    assert names.LONGEST + len(":") + names.LONGEST < int(name[1])
    # Host names (HOST_NAME_MAX): the last node of a site.
    assert names.LONGEST + max(len("-gw"), len(f"-{topology_limits.MOST_NODES_PER_SITE - 1}")) <= 64


@table(
    "options, error",
    {
        "a negative seed": (["--seed", "-1"], "--seed"),
        "too high a priority": (["--priority", "100"], "--priority"),
        "a parent without a number": (["--parent", "x"], "--parent"),
        "a negative number of directions": (["--directions", "-1"], "--directions"),
        "an unknown option": (["--what"], "--what"),
        "no socket as stdin": ([], "stream socket"),
    },
)
def test_bad_options(sanitized: Path, options: list[str], error: str) -> None:
    done = subprocess.run([sanitized, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    assert done.returncode == 2 and error in done.stderr
