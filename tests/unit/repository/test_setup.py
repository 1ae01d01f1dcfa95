"""tools/setup.sh, up to where it would install something: what a machine lacks is named, each with its command."""

from __future__ import annotations

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
    return tmp_path


def put(machine: Path, name: str, script: str) -> None:
    (machine / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
    (machine / name).chmod(0o755)


def lacking(machine: Path, target: str) -> list[str]:
    """Its lines that say what is missing; it has to fail, with a line that says what to do."""
    done = subprocess.run(
        [str(ROOT / "tools" / "setup.sh"), target],
        env={"PATH": str(machine), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"make {target}: FAILED: ")
    return [line for line in done.stderr.splitlines() if "MISSING" in line]


def test_no_python(machine: Path) -> None:
    (machine / "python3").unlink()
    (line,) = lacking(machine, "test")
    assert "python3" in line
    assert "apt-get install python3" in line


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
    assert "run: sudo make demo" in done.stderr
