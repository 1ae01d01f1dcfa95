"""How the testbed was called, and the commands that a user of that shell can type."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import bare_python
from builders.processes import write_program
from builders.tables import table

from testbed.core.remote.client_words import VARIABLE, ClientWords
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation

CAPABLE = 1 << 12 | 1 << 21
TYPED = ".venv/bin/testbed"


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, which is the working directory, with a virtual environment in it."""
    programs = tmp_path / "my checkout" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("testbed", "python"):
        write_program(programs / name)
    monkeypatch.chdir(programs.parents[1])
    return programs


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of this system are not found."""
    monkeypatch.setattr(invocation, "_SYSTEM", ())


def host(folder: Path, *programs: str) -> str:
    """Return a PATH with these programs alone."""
    folder.mkdir(exist_ok=True)
    for name in programs:
        write_program(folder / name)
    return str(folder)


def called(
    venv: Path,
    first: str | Path = TYPED,
    *,
    path: str | Path = "",
    euid: int = 0,
    capable: bool | None = None,
    words: Sequence[str] = ("up", "my.yaml"),
    client: ClientWords | None = None,
    **variables: str,
) -> Invocation:
    """``capable``: by default, as root is and other users are not."""
    capabilities = CAPABLE if capable or (capable is None and not euid) else 0
    environment = {"PATH": str(path), **variables}
    return invocation.read([str(first), *words], venv / "python", environment, euid, capabilities, client)


@pytest.mark.parametrize("whole", [False, True])
def test_from_a_checkout_the_path_is_that_which_was_typed(venv: Path, whole: bool) -> None:
    how = called(venv, venv / "testbed" if whole else TYPED)
    assert how.command("down", "metro") == ".venv/bin/testbed down metro"
    assert how.python == ".venv/bin/python"


def test_elsewhere_the_path_is_whole_and_quoted(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(venv.parent)
    assert called(venv, venv / "testbed").command("down") == "bin/testbed down"
    (other := tmp_path / "other").mkdir()
    monkeypatch.chdir(other)
    line = called(venv, venv / "testbed").command("down")
    assert shlex.split(line) == [str(venv / "testbed"), "down"]


def test_a_shell_that_finds_it_needs_no_path(venv: Path) -> None:
    assert called(venv, venv / "testbed", path=venv).command("down") == "testbed down"


def test_behind_sudo_only_system_folders_are_found(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host(tmp_path / "bin", "sudo") + f":{venv}"
    how = called(venv, venv / "testbed", path=path, euid=1000)
    assert how.command("ls", "libraries") == "testbed ls libraries", "which needs no root"
    assert how.command("up", "metro-40km") == "sudo .venv/bin/testbed up metro-40km"
    monkeypatch.setattr(invocation, "_SUDO_FINDS", (str(venv),))
    how = called(venv, venv / "testbed", path=path, euid=1000)
    assert how.command("up", "metro-40km") == "sudo testbed up metro-40km"


def test_root_is_told_of_no_sudo_which_it_may_not_have(venv: Path) -> None:
    how = called(venv)
    assert how.as_root("apt-get install iproute2") == "apt-get install iproute2"
    assert how.command("up", "x") == ".venv/bin/testbed up x"
    assert how.again() == "run as root"
    assert how.again("CAP_NET_ADMIN") == (
        "root lacks CAP_NET_ADMIN here; if this is a container, start it with --privileged"
    )


def test_capabilities_do_without_sudo_but_apt_does_not(venv: Path, tmp_path: Path) -> None:
    how = called(venv, path=host(tmp_path / "bin", "sudo"), euid=1000, capable=True)
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
    venv: Path, tmp_path: Path, only_path: None, program: str, line: str
) -> None:
    how = called(venv, path=host(tmp_path / "bin", program), euid=1000)
    assert how.again() == f"run as root: {line}"
    assert how.command("up", "my.yaml") == line
    how = called(venv, path=host(tmp_path / "none"), euid=1000)
    assert how.command("up", "my.yaml") == ".venv/bin/testbed up my.yaml (as root)"


@table(
    "command, again",
    {
        "it ran the testbed": ("/work/.venv/bin/testbed up x", "sudo "),
        "it ran make": ("/usr/bin/make demo", "sudo "),
        "it ran a line of shell": ("/bin/bash -c testbed up x", "sudo "),
        "it ran a script": ("/bin/bash ./demo.sh", "sudo "),
        "what it ran is unknown": ("", "sudo "),
        "it opened a shell": ("/bin/bash", ""),
        "it opened a login shell": ("/bin/bash -l", ""),
        "it opened a shell by su": ("/usr/bin/su", ""),
        "it opened a login shell by su": ("/usr/bin/su -", ""),
        "it opened a terminal multiplexer": ("/usr/bin/tmux new -s lab", ""),
    },
)
def test_sudo_is_typed_again_unless_it_opened_the_shell(venv: Path, command: str, again: str) -> None:
    how = called(venv, SUDO_UID="1000", SUDO_COMMAND=command)
    assert how.command("down") == f"{again}.venv/bin/testbed down"
    assert how.command("ls") == ".venv/bin/testbed ls"
    how = called(venv, SUDO_UID="0", SUDO_COMMAND=command)
    assert how.command("down") == ".venv/bin/testbed down", "root called sudo"


def test_a_line_of_shell_as_root(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell runs these lines, with a sudo that prints its arguments."""
    (fake := tmp_path / "bin").mkdir()
    write_program(fake / "sudo", '#!/bin/sh\nprintf "[%s]" "$@"\n')
    how = called(venv, path=fake, euid=1000)

    def output(line: str) -> str:
        done = bare_python.type_in(how.as_root(line), tmp_path, {"PATH": f"{fake}:{os.environ['PATH']}"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output("apt-get update && apt-get install gcc") == "[apt-get][update][apt-get][install][gcc]"
    assert output("echo tsc > /sys/clock") == "[sh][-c][echo tsc > /sys/clock]"
    assert output("prlimit --pid $$ --nofile=5:5").startswith("[prlimit][--pid][")
    assert "$$" not in output("prlimit --pid $$"), "the user's shell replaces it"
    monkeypatch.setattr(invocation, "_SYSTEM", ())
    how = called(venv, path=host(tmp_path / "su", "su"), euid=1000)
    assert how.as_root("prlimit --pid $$") == 'su -c "prlimit --pid $$"'


@pytest.mark.parametrize("program", ["sudo", "su"])
def test_the_words_that_were_typed_keep_their_quotes_as_root(
    venv: Path, tmp_path: Path, only_path: None, program: str
) -> None:
    typed = ["exec", "east-0", "--", "sh", "-c", "cd /x && ls > y; a | b"]
    how = called(venv, venv / "testbed", path=host(tmp_path / "bin", program), euid=1000, words=typed)
    for line in (how.again().removeprefix("run as root: "), how.command(*typed)):
        _, *words = shlex.split(line)
        assert (words if program == "sudo" else shlex.split(words[1])) == [TYPED, *typed], line


def test_without_a_script_python_runs_the_module(venv: Path, tmp_path: Path) -> None:
    for name in ("testbed/__main__.py", "cli/entry.py", "cli/app.py"):
        assert called(venv, f"/x/{name}").command("down") == ".venv/bin/python -m testbed down"
    (venv / "testbed").unlink()
    assert called(venv, "train.py").command("down") == f"'{venv}/python' -m testbed down"


def test_another_program_of_this_python_tells_the_script_beside_it(venv: Path) -> None:
    how = called(venv, "train.py")
    assert shlex.split(how.command("down", "x")) == [str(venv / "testbed"), "down", "x"], "its user may be anywhere"
    assert how.again() == "run as root", "there was no command line"


# ---- for the client of --on

BY_SUDO: dict[str, Any] = {"SUDO_UID": "1000", "SUDO_COMMAND": "testbed-leash"}


def for_client(venv: Path, typed: tuple[str, ...] | None = None, **variables: Any) -> Invocation:
    client = ClientWords((TYPED,), "h 1", ("--on", "h 1"), ("ssh", "h 1"), typed, {"there/a": "../a"})
    return called(venv, venv / "testbed", words=["up", "x.yaml"], client=client, **variables)


@table("variables", {"of root": {}, "by sudo": BY_SUDO})
def test_a_command_for_the_client_is_called_as_there_with_the_host(venv: Path, variables: dict[str, Any]) -> None:
    """Whatever the rights of this process are: the leash has them."""
    folder = "/var/tmp/testbed-on-x"
    how = for_client(venv, TESTBED_COMMAND_FOLDER=folder, **variables)
    assert how.command("down", "far") == ".venv/bin/testbed down --on 'h 1' far"
    assert how.command("show", f"{folder}/there/a") == ".venv/bin/testbed show --on 'h 1' ../a"
    assert how.command("image", "base", root=True) == ".venv/bin/testbed image --on 'h 1' base"
    assert how.again("CAP_NET_ADMIN") == "root lacks CAP_NET_ADMIN on h 1"
    assert how.program == (TYPED,)


def test_what_the_client_typed_is_preferred(venv: Path) -> None:
    assert for_client(venv, typed=("up", "../a")).typed == ("up", "../a")
    assert for_client(venv).typed == ("up", "x.yaml")


def test_a_line_of_shell_for_the_client_is_run_by_ssh(venv: Path) -> None:
    line = for_client(venv).as_root("kill -INT 7 && echo 'a b'")
    assert shlex.split(line) == ["ssh", "h 1", "kill -INT 7 && echo 'a b'"]
    how = for_client(venv, **BY_SUDO)
    assert shlex.split(how.as_root("kill 7")) == ["ssh", "-t", "h 1", "sudo kill 7"]
    assert shlex.split(how.shell("pip install x")) == ["ssh", "h 1", "pip install x"]


CHILDREN = """
import subprocess
from testbed.host.linux import invocation
invocation.take_client_words()
print(invocation.current().command("ls"))
for environment in (None, invocation.for_child()):
    subprocess.run(["sh", "-c", "echo ${TESTBED_CLIENT_WORDS:+told}"], env=environment)
"""


def printed_with_words(words: str) -> str:
    environment = {**os.environ, VARIABLE: words, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-u", "-c", CHILDREN], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_child_has_the_words_of_the_client_but_one_that_goes_on_with_the_command() -> None:
    words = ClientWords(("testbed",), "h1", ("--on", "h1"), ("ssh", "h1"))
    assert printed_with_words(words.encoded()) == "testbed ls --on h1\n\ntold\n"
    assert "told" not in printed_with_words("nonsense")


# ---- in the shell itself


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a .venv whose ``testbed`` and ``python`` run this code; and a sudo with a PATH of its own."""
    programs, fake = tmp_path / "a checkout" / ".venv" / "bin", tmp_path / "bin"
    programs.mkdir(parents=True)
    fake.mkdir()
    write_program(programs / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    write_program(programs / "testbed", f"#!{sys.executable}\nfrom testbed.cli.entry import main\nmain()\n")
    write_program(
        fake / "sudo",
        "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin SUDO_UID=1000 SUDO_GID=1000 "
        'SUDO_COMMAND="$*" export PATH SUDO_UID SUDO_GID SUDO_COMMAND\nexec "$@"\n',
    )
    return programs.parents[1]


@table(
    "typed, folder",
    {
        "by its name, in PATH": ("testbed", ".venv/bin"),
        "by its path": (".venv/bin/testbed", ""),
        "by sudo": ("sudo .venv/bin/testbed", ""),
        "by its whole path": ("'{checkout}/.venv/bin/testbed'", ""),
        "as a module": ("{python} -m testbed", ""),
    },
)
def test_the_hint_of_each_way_to_call_it_can_be_typed_there(
    checkout: Path, tmp_path: Path, typed: str, folder: str
) -> None:
    """``ls`` without a lab says how to bring one up; that line is typed into the same shell."""
    path = [str(tmp_path / "bin"), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    if folder:  # otherwise not: the test's own Python may have a script of that name beside it
        path = [str(checkout / folder), path[0], str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUDO_")}
    environment |= {"PATH": os.pathsep.join(path), "TESTBED_STATE": str(tmp_path / "state")}

    def type_in(line: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = bare_python.type_in(line, checkout, environment)
        assert done.returncode == status, (line, done.stderr)
        return done

    typed = typed.format(checkout=checkout, python=sys.executable)
    before, _, hint = type_in(f"{typed} ls").stderr.strip().partition("bring one up with: ")
    assert before == "no lab is up; "
    if os.geteuid() == 0:
        assert hint.startswith("sudo ") == typed.startswith("sudo ")
    else:
        hint = hint.removeprefix("sudo ")  # this sudo cannot
    assert "namespace" in type_in(f"{hint} --dry-run").stdout
    if "/" not in typed or "sudo" in typed:
        return
    mistake = type_in(f"{typed} up", 2).stderr
    help_line = next(line for line in mistake.splitlines() if line.startswith("Try ")).split("'", 1)[1]
    type_in(help_line.rpartition("'")[0])
