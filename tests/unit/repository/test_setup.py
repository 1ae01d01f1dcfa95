"""tools/setup.sh, up to where it would install something: what a machine lacks is named, each with its command."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("bash", "env", "dirname", "uname", "sed", "id")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with the only programs that there are: what the script itself calls, and a python3 that says yes."""
    for name in NEEDED:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    put(tmp_path, "python3", "exit 0")
    put(tmp_path, "ip", "exit 0")
    put(tmp_path, "cc", "exit 0")
    return tmp_path


def put(machine: Path, name: str, script: str) -> None:
    (machine / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
    (machine / name).chmod(0o755)


def lacking(machine: Path, target: str, **variables: str) -> list[str]:
    """Its lines that say what is missing; it has to fail, with a line that says what to do."""
    return [line for line in said(machine, target, **variables) if "MISSING" in line]


def said(machine: Path, target: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [str(ROOT / "tools" / "setup.sh"), target],
        env={"PATH": str(machine), "HOME": str(machine), **variables},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"make {target}: FAILED: ")
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_no_python(machine: Path) -> None:
    (machine / "python3").unlink()
    (line,) = lacking(machine, "test")
    assert "python3" in line
    assert "apt-get install python3" in line


def test_a_client_of_other_hosts_needs_ssh_and_git_alone(machine: Path) -> None:
    (machine / "ip").unlink()
    (machine / "cc").unlink()
    without_ssh, without_git = lacking(machine, "client")
    assert "apt-get install openssh-client" in without_ssh
    assert "apt-get install git" in without_git


def test_a_python_that_is_too_old(machine: Path) -> None:
    put(machine, "python3", 'case "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; esac')
    (line,) = lacking(machine, "test")
    assert "3.11" in line
    assert "3.9.2" in line


def test_a_python_without_venv(machine: Path) -> None:
    put(machine, "python3", 'case "$*" in *ensurepip*) exit 1 ;; esac')
    (line,) = lacking(machine, "test")
    assert "apt-get install python3-venv" in line


def test_no_iproute2_and_no_python_are_told_at_once(machine: Path) -> None:
    (machine / "ip").unlink()
    (machine / "python3").unlink()
    assert len(lacking(machine, "test")) == 2


def test_elsewhere_than_on_linux(machine: Path) -> None:
    (machine / "uname").unlink()
    put(machine, "uname", "echo Darwin")
    assert lacking(machine, "demo") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="drops capabilities")
def test_a_demo_without_root(machine: Path) -> None:
    argv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = subprocess.run(
        [*argv, str(ROOT / "tools" / "setup.sh"), "demo"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert "root lacks them here: if this is a container, start it with --privileged" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize(("programs", "line"), [(("sudo",), "sudo make demo"), ((), "su -c 'make demo'")])
def test_a_demo_of_another_user(machine: Path, programs: tuple[str, ...], line: str) -> None:
    """The command is one of this machine: sudo is not installed everywhere."""
    for name in programs:
        put(machine, name, "exit 0")
    setpriv = str(shutil.which("setpriv"))
    done = subprocess.run(
        [setpriv, "--reuid=65534", "--clear-groups", "--inh-caps=-all", str(ROOT / "tools" / "setup.sh"), "demo"],
        env={"PATH": str(machine), "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert f"run: {line}\n" in done.stderr, done.stderr


def test_who_called_sudo_is_told_of_sudo(machine: Path) -> None:
    (machine / "ip").unlink()
    environment = {"PATH": str(machine), "HOME": "/", "SUDO_UID": "1000"}
    for more, words in ((environment, "sudo apt-get install iproute2"), ({}, ": apt-get install iproute2")):
        done = subprocess.run(
            [str(ROOT / "tools" / "setup.sh"), "demo"],
            env={"PATH": str(machine), "HOME": "/", **more},
            capture_output=True,
            text=True,
            timeout=20,
        )
        if os.geteuid() == 0:
            assert words in done.stderr, done.stderr


# ---- the compiler


@pytest.fixture
def without_compiler(machine: Path) -> Path:
    """And without venv, or the script would go on and set up this checkout."""
    (machine / "cc").unlink()
    put(machine, "uname", '[ "$1" = -s ] && echo Linux || echo "${MACHINE:-x86_64}"')
    return machine


def test_without_a_compiler_it_says_what_is_downloaded_and_asks_for_none(without_compiler: Path) -> None:
    assert lacking_but_venv(without_compiler) == []
    (line,) = [it for it in compiler_lines(without_compiler) if "MISSING" not in it]
    assert "94 MB" in line and "a minute" in line and "ziglang==" in line


def test_with_one_nothing_is_said_of_it(machine: Path) -> None:
    assert compiler_lines(machine) == []


def test_one_without_the_headers_of_a_c_library_is_none(without_compiler: Path) -> None:
    put(without_compiler, "gcc", "echo stdio.h: No such file >&2; exit 1")
    assert len(compiler_lines(without_compiler)) == 1


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({"PIP_NO_BUILD_ISOLATION": "0"}, "env -u PIP_NO_BUILD_ISOLATION make check"),
        ({"PIP_CONFIG_FILE": "pip.conf"}, "PIP_CONFIG_FILE=/dev/null make check"),
        ({"PIP_NO_INDEX": "1"}, "pip download --no-deps ziglang=="),
        ({"MACHINE": "mips64"}, "apt-get install gcc libc6-dev"),
    ],
    ids=["no build isolation", "the same in pip's configuration", "no index", "another architecture"],
)
def test_where_pip_can_get_none_for_the_build_it_says_so_before_anything_else(
    without_compiler: Path, variables: dict[str, str], command: str
) -> None:
    if "PIP_CONFIG_FILE" in variables:
        variables = {"PIP_CONFIG_FILE": str(without_compiler / "pip.conf")}
        (without_compiler / "pip.conf").write_text("[install]\nno-build-isolation = false\n")
    (line,) = lacking_but_venv(without_compiler, **variables)
    assert "a C compiler" in line
    assert "apt-get install gcc libc6-dev" in line
    assert command in line


def test_wheels_in_a_folder_are_enough_without_an_index(without_compiler: Path) -> None:
    (without_compiler / "ziglang-0.15.2-py3-none-any.whl").touch()
    variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(without_compiler)}
    assert lacking_but_venv(without_compiler, **variables) == []


def test_without_fiberd_no_compiler_is_asked_for(without_compiler: Path) -> None:
    variables = {"TESTBED_WITHOUT_FIBERD": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    assert lacking_but_venv(without_compiler, **variables) == []


def lacking_but_venv(machine: Path, **variables: str) -> list[str]:
    return [line for line in without_venv(machine, **variables) if "MISSING" in line and "venv" not in line]


def compiler_lines(machine: Path) -> list[str]:
    return [line for line in without_venv(machine) if "C compiler" in line]


def without_venv(machine: Path, **variables: str) -> list[str]:
    put(machine, "python3", 'case "$*" in *ensurepip*) exit 1 ;; esac')
    return said(machine, "check", **variables)


@pytest.mark.parametrize("built", [True, False])
def test_a_compiler_is_not_spoken_of_where_nothing_is_built(machine: Path, tmp_path: Path, built: bool) -> None:
    tree = tmp_path / "tree"
    for file in (
        "tools/setup.sh",
        "pyproject.toml",
        "hatch_build.py",
        "testbed/fiberd/main.c",
        "testbed/fiberd/libc.h",
    ):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tree / file)
    (tree / ".venv" / "bin").mkdir(parents=True)
    answers = f'case "$*" in *base_prefix*) echo base ;; *"(sys.prefix)"*) echo {tree.resolve()}/.venv ;; esac'
    for folder, name in ((machine, "python3"), (tree / ".venv" / "bin", "python"), (tree / "testbed/fiberd", "fiberd")):
        put(folder, name, answers)
    for name in ("cat", "cut", "sha256sum"):
        (machine / name).symlink_to(str(shutil.which(name)))
    (machine / "cc").unlink()
    parts = [f"{tree.resolve()}\nbase\n".encode()]
    for pattern in ("pyproject.toml", "hatch_build.py", "testbed/fiberd/*.[ch]"):
        parts += [it.read_bytes() for it in sorted(tree.glob(pattern))]
    stamp = hashlib.sha256(b"".join([*parts, b"fetched\n"])).hexdigest() if built else "of other sources"
    (tree / ".venv" / ".set-up").write_text(f"{stamp}\ndocs\n")
    done = subprocess.run(
        [str(tree / "tools" / "setup.sh"), "docs"],
        env={"PATH": str(machine), "HOME": "/", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    if built:
        assert (done.returncode, done.stdout, done.stderr) == (0, "make docs: .venv is ready\n", "")
    else:
        assert done.returncode == 1 and "MISSING: a C compiler" in done.stderr


def test_a_folder_that_this_user_cannot_write(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "a project" / "tools").mkdir(parents=True)
    script = shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "a project" / "tools")
    (tmp_path / "a project" / ".venv").mkdir(mode=0o555)
    done = subprocess.run(
        [script, "docs"],
        env={"PATH": str(machine), "HOME": str(machine)},
        user=4242 if os.geteuid() == 0 else None,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert "make docs: FAILED: uid " in done.stderr and "a project/.venv; make this user its owner" in done.stderr
