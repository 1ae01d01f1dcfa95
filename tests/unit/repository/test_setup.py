"""tools/setup.sh, up to where it would install something: what a machine lacks is named, each with its command."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from builders.programs import run
from builders.tables import table

NEEDED = ("bash", "env", "dirname", "uname", "sed", "id")
SCRIPT = ROOT / "tools" / "setup.sh"
NO_VENV = 'case "$*" in *ensurepip*) exit 1 ;; esac'
OLD_PYTHON = 'case "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; esac'
UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="drops capabilities or becomes another user")


class Machine:
    """A folder with the only programs that there are: what the script itself calls, and a python3 that succeeds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in NEEDED:
            (folder / name).symlink_to(str(shutil.which(name)))
        for name in ("python3", "ip", "cc"):
            self.put(name)

    def put(self, name: str, script: str = "exit 0", folder: Path | None = None) -> None:
        program = (folder or self.folder) / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        program.chmod(0o755)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.folder / name).unlink()

    def set_up(
        self, target: str, script: Path = SCRIPT, before: Sequence[object] = (), options: Any = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.folder), "HOME": str(self.folder), **variables}
        return run(*before, script, target, env=environment, timeout=20, **(options or {}))

    def lines(self, target: str, word: str, **variables: Any) -> list[str]:
        """Return the lines with a word; the script has to fail, with a last line about what to do."""
        done = self.set_up(target, **variables)
        assert done.returncode == 1, done.stdout + done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"make {target}: FAILED: ")
        return [line for line in (done.stdout + done.stderr).splitlines() if word in line]

    def missing(self, target: str, **variables: str) -> list[str]:
        return self.lines(target, "MISSING", **variables)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@table(
    "target, removed, python, missing",
    {
        "no python": ("test", "python3", "", [("python3", "apt-get install python3")]),
        "no iproute2 and no python are named at once": ("test", "python3 ip", "", [(), ()]),
        "a client of other hosts needs ssh and git alone": (
            "client",
            "ip cc",
            "",
            [("apt-get install openssh-client",), ("apt-get install git",)],
        ),
        "a python that is too old": ("test", "", OLD_PYTHON, [("3.11", "3.9.2")]),
        "a python without venv": ("test", "", NO_VENV, [("apt-get install python3-venv",)]),
    },
)
def test_what_a_machine_lacks_is_named_with_its_command(
    machine: Machine, target: str, removed: str, python: str, missing: list[tuple[str, ...]]
) -> None:
    machine.remove(*removed.split())
    if python:
        machine.put("python3", python)
    for line, words in zip(machine.missing(target), missing, strict=True):
        assert all(word in line for word in words)


def test_elsewhere_than_on_linux(machine: Machine) -> None:
    machine.put("uname", "echo Darwin")
    assert machine.missing("demo") == []


@as_root
def test_a_demo_without_root() -> None:
    done = run(*UNPRIVILEGED, SCRIPT, "demo", timeout=20)
    assert done.returncode == 1
    assert "root lacks them here: if this is a container, start it with --privileged" in done.stderr


@as_root
@pytest.mark.parametrize(("programs", "line"), [(("sudo",), "sudo make demo"), ((), "su -c 'make demo'")])
def test_a_demo_of_another_user(machine: Machine, programs: tuple[str, ...], line: str) -> None:
    """The command is one of this machine: sudo is not installed everywhere."""
    for name in programs:
        machine.put(name)
    setpriv = (shutil.which("setpriv"), "--reuid=65534", "--clear-groups", "--inh-caps=-all")
    done = machine.set_up("demo", before=setpriv, HOME="/")
    assert done.returncode == 1
    assert f"run: {line}\n" in done.stderr, done.stderr


@as_root
@pytest.mark.parametrize(
    ("variables", "command"), [({"SUDO_UID": "1000"}, "sudo apt-get install"), ({}, ": apt-get install")]
)
def test_commands_have_sudo_where_the_caller_used_it(machine: Machine, variables: dict[str, Any], command: str) -> None:
    machine.remove("ip")
    assert f"{command} iproute2" in machine.set_up("demo", **variables).stderr


# ---- the compiler


@pytest.fixture
def without_compiler(machine: Machine) -> Machine:
    """And without venv, or the script would go on and set up this checkout."""
    machine.remove("cc")
    machine.put("python3", NO_VENV)
    machine.put("uname", '[ "$1" = -s ] && echo Linux || echo "${MACHINE:-x86_64}"')
    return machine


def missing_but_venv(machine: Machine, **variables: str) -> list[str]:
    return [line for line in machine.missing("check", **variables) if "venv" not in line]


def test_without_a_compiler_its_download_is_announced_and_none_is_missing(without_compiler: Machine) -> None:
    assert missing_but_venv(without_compiler) == []
    (line,) = without_compiler.lines("check", "C compiler")
    assert "94 MB" in line and "a minute" in line and "ziglang==" in line and "MISSING" not in line


def test_a_compiler_that_works_is_not_mentioned(machine: Machine) -> None:
    machine.put("python3", NO_VENV)
    assert machine.lines("check", "C compiler") == []


def test_a_compiler_without_the_headers_of_a_c_library_is_none(without_compiler: Machine) -> None:
    without_compiler.put("gcc", "echo stdio.h: No such file >&2; exit 1")
    assert len(without_compiler.lines("check", "C compiler")) == 1


@table(
    "variables, command",
    {
        "no build isolation": ({"PIP_NO_BUILD_ISOLATION": "0"}, "env -u PIP_NO_BUILD_ISOLATION make check"),
        "no build isolation, in pip's configuration": (
            {"PIP_CONFIG_FILE": "pip.conf"},
            "PIP_CONFIG_FILE=/dev/null make check",
        ),
        "no index": ({"PIP_NO_INDEX": "1"}, "pip download --no-deps ziglang=="),
        "another architecture": ({"MACHINE": "mips64"}, "apt-get install gcc libc6-dev"),
    },
)
def test_where_pip_can_get_no_compiler_for_the_build_it_is_missing(
    without_compiler: Machine, variables: dict[str, str], command: str
) -> None:
    configuration = without_compiler.folder / "pip.conf"
    configuration.write_text("[install]\nno-build-isolation = false\n")
    if "PIP_CONFIG_FILE" in variables:
        variables = {"PIP_CONFIG_FILE": str(configuration)}
    (line,) = missing_but_venv(without_compiler, **variables)
    for words in ("a C compiler", "apt-get install gcc libc6-dev", command):
        assert words in line


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "."}, id="a folder of wheels is enough without an index"),
        pytest.param({"TESTBED_WITHOUT_FIBERD": "1", "PIP_NO_BUILD_ISOLATION": "0"}, id="no fiberd needs no compiler"),
    ],
)
def test_no_compiler_is_missing(without_compiler: Machine, variables: dict[str, str]) -> None:
    if "PIP_FIND_LINKS" in variables:
        (without_compiler.folder / "ziglang-0.15.2-py3-none-any.whl").touch()
        variables = variables | {"PIP_FIND_LINKS": str(without_compiler.folder)}
    assert missing_but_venv(without_compiler, **variables) == []


@pytest.mark.parametrize("built", [True, False])
def test_a_compiler_is_not_mentioned_where_nothing_is_built(machine: Machine, tmp_path: Path, built: bool) -> None:
    tree = tmp_path.resolve() / "tree"
    sources = "pyproject.toml hatch_build.py testbed/fiberd/main.c testbed/fiberd/libc.h"
    for file in ("tools/setup.sh", *sources.split()):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tree / file)
    (tree / ".venv" / "bin").mkdir(parents=True)
    answers = f'case "$*" in *base_prefix*) echo base ;; *"(sys.prefix)"*) echo {tree}/.venv ;; esac'
    machine.put("python3", answers)
    machine.put("python", answers, tree / ".venv" / "bin")
    machine.put("fiberd", answers, tree / "testbed" / "fiberd")
    for name in ("cat", "cut", "sha256sum"):
        (machine.folder / name).symlink_to(str(shutil.which(name)))
    machine.remove("cc")
    parts = [f"{tree}\nbase\n".encode()]
    for pattern in ("pyproject.toml", "hatch_build.py", "testbed/fiberd/*.[ch]"):
        parts += [file.read_bytes() for file in sorted(tree.glob(pattern))]
    stamp = hashlib.sha256(b"".join([*parts, b"fetched\n"])).hexdigest() if built else "of other sources"
    (tree / ".venv" / ".set-up").write_text(f"{stamp}\ndocs\n")
    done = machine.set_up("docs", tree / "tools" / "setup.sh", HOME="/", PIP_NO_INDEX="1")
    if built:
        assert (done.returncode, done.stdout, done.stderr) == (0, "make docs: .venv is ready\n", "")
    else:
        assert done.returncode == 1 and "MISSING: a C compiler" in done.stderr


def test_a_folder_that_this_user_cannot_write(machine: Machine, tmp_path: Path) -> None:
    tools = tmp_path / "a project" / "tools"
    tools.mkdir(parents=True)
    (tmp_path / "a project" / ".venv").mkdir(mode=0o555)
    user = {"user": 4242} if os.geteuid() == 0 else {}
    done = machine.set_up("docs", Path(shutil.copy(SCRIPT, tools)), options=user)
    assert done.returncode == 1
    assert "make docs: FAILED: uid " in done.stderr and "a project/.venv; make this user its owner" in done.stderr
