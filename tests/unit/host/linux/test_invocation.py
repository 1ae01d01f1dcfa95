"""How the testbed was called, and the commands that a user of that shell can type."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed.core.remote.client_words import VARIABLE, ClientWords
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation

CAPABLE = 1 << 12 | 1 << 21


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, which is the working directory, with a virtual environment in it."""
    programs = tmp_path / "my checkout" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("testbed", "python"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.chdir(programs.parents[1])
    return programs


def host(folder: Path, *programs: str) -> str:
    """Return a PATH with these programs alone."""
    folder.mkdir(exist_ok=True)
    for name in programs:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def called(
    venv: Path, first: str, *, path: str = "", euid: int = 0, capabilities: int = CAPABLE, **more: str
) -> Invocation:
    return invocation.read([first, "up", "my.yaml"], venv / "python", {"PATH": path, **more}, euid, capabilities)


def test_from_a_checkout_the_path_is_that_which_was_typed(venv: Path) -> None:
    for first in (".venv/bin/testbed", str(venv / "testbed")):
        how = called(venv, first)
        assert how.command("down", "metro") == ".venv/bin/testbed down metro"
        assert how.python == ".venv/bin/python"


def test_elsewhere_the_path_is_whole_and_quoted(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "my checkout" / ".venv")
    assert called(venv, str(venv / "testbed")).command("down") == "bin/testbed down"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    line = called(venv, str(venv / "testbed")).command("down")
    assert shlex.split(line) == [str(venv / "testbed"), "down"]


def test_a_shell_that_finds_it_needs_no_path(venv: Path) -> None:
    assert called(venv, str(venv / "testbed"), path=str(venv)).command("down") == "testbed down"


def test_behind_sudo_only_system_folders_are_found(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host(tmp_path / "bin", "sudo") + ":" + str(venv)
    how = called(venv, str(venv / "testbed"), path=path, euid=1000, capabilities=0)
    assert how.command("ls", "libraries") == "testbed ls libraries", "which needs no root"
    assert how.command("up", "metro-40km") == "sudo .venv/bin/testbed up metro-40km"
    monkeypatch.setattr(invocation, "_SUDO_FINDS", (str(venv),))
    how = called(venv, str(venv / "testbed"), path=path, euid=1000, capabilities=0)
    assert how.command("up", "metro-40km") == "sudo testbed up metro-40km"


def test_root_is_told_of_no_sudo_which_it_may_not_have(venv: Path) -> None:
    how = called(venv, ".venv/bin/testbed")
    assert how.as_root("apt-get install iproute2") == "apt-get install iproute2"
    assert how.command("up", "x") == ".venv/bin/testbed up x"
    assert how.again() == "run as root"
    assert how.again("CAP_NET_ADMIN") == (
        "root lacks CAP_NET_ADMIN here; if this is a container, start it with --privileged"
    )


def test_capabilities_do_without_sudo_but_apt_does_not(venv: Path, tmp_path: Path) -> None:
    how = called(venv, ".venv/bin/testbed", path=host(tmp_path / "bin", "sudo"), euid=1000)
    assert how.command("up", "x") == ".venv/bin/testbed up x"
    assert how.as_root("apt-get install iproute2") == "sudo apt-get install iproute2"


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("sudo", "sudo .venv/bin/testbed up my.yaml"),
        ("doas", "doas .venv/bin/testbed up my.yaml"),
        ("su", "su -c '.venv/bin/testbed up my.yaml'"),
    ],
)
def test_what_becomes_root_is_what_there_is(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, line: str
) -> None:
    monkeypatch.setattr(invocation, "_SYSTEM", ())
    path = host(tmp_path / "bin", program)
    how = called(venv, ".venv/bin/testbed", path=path, euid=1000, capabilities=0)
    assert how.again() == f"run as root: {line}"
    assert how.command("up", "my.yaml") == line
    how = called(venv, ".venv/bin/testbed", path=host(tmp_path / "none"), euid=1000, capabilities=0)
    assert how.command("up", "my.yaml") == ".venv/bin/testbed up my.yaml (as root)"


@pytest.mark.parametrize(
    ("command", "again"),
    [
        ("/work/.venv/bin/testbed up x", True),
        ("/usr/bin/make demo", True),
        ("/bin/bash -c testbed up x", True),
        ("/bin/bash ./demo.sh", True),
        ("", True),
        ("/bin/bash", False),
        ("/bin/bash -l", False),
        ("/usr/bin/su", False),
        ("/usr/bin/su -", False),
        ("/usr/bin/tmux new -s lab", False),
    ],
)
def test_sudo_is_typed_again_unless_it_opened_the_shell(venv: Path, command: str, again: bool) -> None:
    how = called(venv, ".venv/bin/testbed", SUDO_UID="1000", SUDO_COMMAND=command)
    assert how.command("down") == ("sudo " if again else "") + ".venv/bin/testbed down"
    assert how.command("ls") == ".venv/bin/testbed ls"
    how = called(venv, ".venv/bin/testbed", SUDO_UID="0", SUDO_COMMAND=command)
    assert how.command("down") == ".venv/bin/testbed down", "root called sudo"


def test_a_line_of_shell_as_root(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these lines do is asked of a shell, with a sudo that says what it was given."""
    fake = tmp_path / "bin"
    host(fake, "sudo")
    (fake / "sudo").write_text('#!/bin/sh\nprintf "[%s]" "$@"\n')
    how = called(venv, ".venv/bin/testbed", path=str(fake), euid=1000, capabilities=0)

    def done(line: str) -> str:
        environment = {"PATH": f"{fake}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", line], env=environment, capture_output=True, text=True, check=True, timeout=20
        ).stdout

    assert done(how.as_root("apt-get update && apt-get install gcc")) == "[apt-get][update][apt-get][install][gcc]"
    assert done(how.as_root("echo tsc > /sys/clock")) == "[sh][-c][echo tsc > /sys/clock]"
    assert done(how.as_root("prlimit --pid $$ --nofile=5:5")).startswith("[prlimit][--pid][")
    assert "$$" not in done(how.as_root("prlimit --pid $$")), "the user's shell replaces it"
    monkeypatch.setattr(invocation, "_SYSTEM", ())
    how = called(venv, ".venv/bin/testbed", path=host(tmp_path / "su", "su"), euid=1000, capabilities=0)
    assert how.as_root("prlimit --pid $$") == 'su -c "prlimit --pid $$"'


def test_the_words_that_were_typed_keep_their_quotes_as_root(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invocation, "_SYSTEM", ())
    typed = ["exec", "east-0", "--", "sh", "-c", "cd /x && ls > y; a | b"]
    for program in ("sudo", "su"):
        path = host(tmp_path / program, program)
        how = invocation.read(
            [str(venv / "testbed"), *typed], venv / "python", {"PATH": path}, euid=1000, capabilities=0
        )
        for line in (how.again().removeprefix("run as root: "), how.command(*typed)):
            words = shlex.split(line)
            words = words[1:] if program == "sudo" else shlex.split(words[2])
            assert words == [".venv/bin/testbed", *typed], line


def test_without_a_script_python_runs_the_module(venv: Path, tmp_path: Path) -> None:
    for folder, name in (("testbed", "__main__.py"), ("cli", "entry.py"), ("cli", "app.py")):
        assert called(venv, f"/x/{folder}/{name}").command("down") == ".venv/bin/python -m testbed down"
    (venv / "testbed").unlink()
    assert called(venv, "train.py").command("down") == f"'{venv}/python' -m testbed down"


def test_another_program_of_this_python_tells_the_script_beside_it(venv: Path) -> None:
    how = called(venv, "train.py")
    assert shlex.split(how.command("down", "x")) == [str(venv / "testbed"), "down", "x"], "its user may be anywhere"
    assert how.again() == "run as root", "there was no command line"


# ---- for the client of --on


def for_client(venv: Path, euid: int = 0, typed: tuple[str, ...] | None = None, **environment: str) -> Invocation:
    words = ClientWords((".venv/bin/testbed",), "h 1", ("--on", "h 1"), ("ssh", "h 1"), typed, {"there/a": "../a"})
    argv = [str(venv / "testbed"), "up", "x.yaml"]
    return invocation.read(argv, venv / "python", {"PATH": "", **environment}, euid, CAPABLE if not euid else 0, words)


def test_a_command_for_the_client_is_called_as_there_with_the_host(venv: Path) -> None:
    """Whatever the rights of this process are: the leash has them."""
    folder = "/var/tmp/testbed-on-x"
    for more in ({}, {"SUDO_UID": "1000", "SUDO_COMMAND": "testbed-leash"}):
        how = for_client(venv, TESTBED_COMMAND_FOLDER=folder, **more)
        assert how.command("down", "far") == ".venv/bin/testbed down --on 'h 1' far"
        assert how.command("show", f"{folder}/there/a") == ".venv/bin/testbed show --on 'h 1' ../a"
        assert how.command("image", "base", root=True) == ".venv/bin/testbed image --on 'h 1' base"
        assert how.again("CAP_NET_ADMIN") == "root lacks CAP_NET_ADMIN on h 1"
        assert how.program == (".venv/bin/testbed",)
    assert for_client(venv, typed=("up", "../a")).typed == ("up", "../a")
    assert for_client(venv).typed == ("up", "x.yaml")


def test_a_line_of_shell_for_the_client_is_run_by_ssh(venv: Path) -> None:
    how = for_client(venv)
    assert shlex.split(how.as_root("kill -INT 7 && echo 'a b'")) == ["ssh", "h 1", "kill -INT 7 && echo 'a b'"]
    how = for_client(venv, SUDO_UID="1000", SUDO_COMMAND="testbed-leash")
    assert shlex.split(how.as_root("kill 7")) == ["ssh", "-t", "h 1", "sudo kill 7"]
    assert shlex.split(how.shell("pip install x")) == ["ssh", "h 1", "pip install x"]


def test_no_child_has_the_words_of_the_client_but_one_that_goes_on_with_the_command() -> None:
    script = """
import os, subprocess
from testbed.host.linux import invocation
invocation.take_client_words()
print(invocation.current().command("ls"))
for environment in (None, invocation.for_child()):
    subprocess.run(["sh", "-c", "echo ${TESTBED_CLIENT_WORDS:+told}"], env=environment)
"""
    words = ClientWords(("testbed",), "h1", ("--on", "h1"), ("ssh", "h1"))
    for told, seen in ((words.encoded(), "testbed ls --on h1\n\ntold\n"), ("nonsense", "")):
        done = subprocess.run(
            [sys.executable, "-u", "-c", script],
            env={**os.environ, VARIABLE: told, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == seen or not seen
        assert seen or "told" not in done.stdout


# ---- in the shell itself


def shell(line: str, cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", line], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a .venv whose ``testbed`` and ``python`` run this code; and a sudo with a PATH of its own."""
    programs = tmp_path / "a checkout" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "testbed").write_text(f"#!{sys.executable}\nfrom testbed.cli.entry import main\nmain()\n")
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "sudo").write_text(
        "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin SUDO_UID=1000 SUDO_GID=1000 "
        'SUDO_COMMAND="$*" export PATH SUDO_UID SUDO_GID SUDO_COMMAND\nexec "$@"\n'
    )
    for each in (*programs.iterdir(), fake / "sudo"):
        each.chmod(0o755)
    return programs.parents[1]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("testbed", ".venv/bin"),
        (".venv/bin/testbed", ""),
        ("sudo .venv/bin/testbed", ""),
        ("'{checkout}/.venv/bin/testbed'", ""),
        ("python3 -m testbed", ""),
    ],
)
def test_the_hint_of_each_way_to_call_it_can_be_typed_there(
    checkout: Path, tmp_path: Path, typed: str, found: str
) -> None:
    """``ls`` without a lab says how to bring one up; that line is typed into the same shell."""
    folders = [str(checkout / found)] if found else []
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SUDO_")},
        "PATH": os.pathsep.join(
            [*folders, str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
        "TESTBED_STATE": str(tmp_path / "state"),
    }
    if not found:  # the test's own Python may have a script of that name beside it
        environment["PATH"] = os.pathsep.join([str(tmp_path / "bin"), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    typed = typed.format(checkout=checkout).replace("python3", sys.executable)
    said = shell(f"{typed} ls", checkout, environment)
    assert said.returncode == 0, said.stderr
    before, _, hint = said.stderr.strip().partition("bring one up with: ")
    assert before == "no lab is up; "
    if os.geteuid() == 0:
        assert hint.startswith("sudo ") == typed.startswith("sudo ")
    else:
        hint = hint.removeprefix("sudo ")  # this sudo cannot
    planned = shell(f"{hint} --dry-run", checkout, environment)
    assert planned.returncode == 0, (hint, planned.stderr)
    assert "namespace" in planned.stdout
    if "/" not in typed or "sudo" in typed:
        return
    wrong = shell(f"{typed} up", checkout, environment)
    assert wrong.returncode == 2
    helping = next(line for line in wrong.stderr.splitlines() if line.startswith("Try ")).split("'", 1)[1]
    helping = helping.rpartition("'")[0]
    assert shell(helping, checkout, environment).returncode == 0, helping
