"""Commands that add what an installation lacks; and that they do, in a virtual environment that lacks it."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import bare_python
from builders.tables import table

from testbed.host import installation
from testbed.host.linux import invocation
from testbed.host.linux.invocation import Invocation

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "current", lambda: Invocation(python=".venv/bin/python"))


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_added_by_the_names_of_what_it_requires(how: None, extra: str) -> None:
    words = shlex.split(installation.adding(extra))
    assert words[:4] == [".venv/bin/python", "-m", "pip", "install"]
    assert not any("scale-across-testbed" in word for word in words), "which is on no index"
    assert {line for line in EXTRAS[extra] if not line.startswith("scale-across-testbed")} <= set(words)
    has_torch = any(word.startswith("torch>") for word in words)
    assert ("--extra-index-url" in words) == has_torch, "without it comes CUDA's torch"


def test_an_installation_of_a_checkout_is_repeated_from_there(how: None) -> None:
    assert installation.again() == f".venv/bin/python -m pip install --editable {ROOT}"


@table(
    "origin, source",
    {
        "a folder": ({"url": "file://FOLDER/tree", "dir_info": {}}, "file://FOLDER/tree"),
        "a repository": (
            {"url": "https://host/o/r", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "git+https://host/o/r@c0ffee",
        ),
        "a removed folder": ({"url": "file://FOLDER/gone", "dir_info": {}}, ""),
        "an unknown one": ({}, ""),
        "not recorded": (None, ""),
    },
)
def test_an_installation_is_repeated_from_where_it_came_from(
    how: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: dict[str, Any] | None, source: str
) -> None:
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "site-packages" / "testbed")
    (tmp_path / "tree").mkdir()
    text = None if origin is None else json.dumps(origin).replace("FOLDER", str(tmp_path))
    installed = SimpleNamespace(read_text=lambda name: text)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: installed)
    assert installation.again().rpartition(" ")[2] == source.replace("FOLDER", str(tmp_path))
    assert not source or "--no-deps" in installation.again()


def test_a_python_without_pip_gets_one_or_uses_uv(how: None, monkeypatch: pytest.MonkeyPatch) -> None:
    find = installation.importlib.util.find_spec
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    assert installation.pip(["x"]) == "uv pip install --python .venv/bin/python x"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert installation.pip(["x"]) == ".venv/bin/python -m ensurepip && .venv/bin/python -m pip install x"


def test_a_distributions_own_python_is_changed_only_on_demand(how: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_externally_managed", lambda: True)
    assert installation.pip(["x"]) == ".venv/bin/python -m pip install --break-system-packages x"


def test_packages_of_another_user_are_changed_as_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user = Invocation(python="python", become=("sudo",), privileged=False)
    monkeypatch.setattr(invocation, "current", lambda: user)
    monkeypatch.setattr(installation.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for owner, line in ((os.getuid(), "python -m pip install x"), (os.getuid() + 1, "sudo python -m pip install x")):
        monkeypatch.setenv("SUDO_UID", str(owner))
        assert installation.pip(["x"]) == line


def test_debian_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    assert installation.apt("gcc", "libc6-dev") == "apt-get install gcc libc6-dev"
    monkeypatch.setattr(installation, "_has_lists", lambda: False)
    assert installation.apt("gcc") == "apt-get update && apt-get install gcc", "a fresh image has no lists of packages"
    monkeypatch.setattr(invocation, "current", lambda: Invocation(become=("sudo",)))
    assert installation.apt("gcc") == "sudo apt-get update && sudo apt-get install gcc"
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    assert installation.apt("gcc") == "this system's package manager (Debian's packages are: gcc)"


def test_the_script_that_installs_containerlab_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools = ROOT / "tools"
    for folder in (Path.cwd(), tmp_path, tools, Path("/")):  # the keeper's is /
        monkeypatch.chdir(folder)
        (script,) = shlex.split(installation.containerlab())
        assert os.access(script, os.X_OK)
        assert folder not in (tools, Path("/")) or script in (
            "./install-containerlab.sh",
            str(tools / "install-containerlab.sh"),
        )
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "testbed")
    assert "repository" in installation.containerlab()


# ---- in an installation that lacks something


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``.venv`` of the testbed alone: no extra, so neither numpy nor torch nor pytest."""
    folder = tmp_path_factory.mktemp("bare")
    bare_python.make(folder / ".venv")
    return folder


TypeIn = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where pip finds packages in a folder alone, and no shell finds this ``testbed`` by its name."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(tmp_path),
        "TESTBED_STATE": str(tmp_path / "state"),
        "TESTBED_RUNS": str(tmp_path / "runs"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.fixture
def type_in(bare: Path, environment: dict[str, str]) -> TypeIn:
    """Type a line into a shell of that user."""
    return functools.partial(bare_python.type_in, cwd=bare, environment=environment)


@pytest.mark.thorough
def test_validate_without_its_extra_says_what_installs_it_which_works(
    type_in: TypeIn, environment: dict[str, str]
) -> None:
    done = type_in(".venv/bin/testbed validate torch-gloo")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("testbed: numpy is missing: ")
    hint = bare_python.after(done.stderr, "install it with: ")
    listed = type_in(".venv/bin/testbed ls libraries")
    assert hint in [line.strip() for line in listed.stdout.splitlines()], "the table has the same command"
    done = type_in(".venv/bin/testbed run metro-40km")
    assert done.returncode == 3
    assert bare_python.after(done.stderr, "install it with: ") == hint
    done = type_in(hint)
    assert done.returncode != 0, "there is no such wheel yet"
    assert "scale-across" not in done.stderr
    for name in ("numpy", "torch"):
        bare_python.wheel(Path(environment["PIP_FIND_LINKS"]), name, "99.0")
    done = type_in(hint)
    assert done.returncode == 0, done.stderr
    listed = type_in(".venv/bin/testbed ls libraries --json")
    missing = {library["name"]: library["missing"] for library in json.loads(listed.stdout)}
    assert missing["torch-gloo"] == missing["ring"] == ""
    assert "mpi4py" in missing["mpich"]
    done = type_in(".venv/bin/python -m pip uninstall -y numpy torch")
    assert done.returncode == 0, done.stderr


def test_an_unknown_library_is_named_even_without_numpy(type_in: TypeIn) -> None:
    done = type_in(".venv/bin/testbed validate torch-glo")
    assert (done.returncode, done.stderr) == (2, "testbed: unknown library 'torch-glo'; did you mean torch-gloo?\n")


def test_every_fix_of_doctor_is_a_command_that_this_machine_has(
    type_in: TypeIn, bare: Path, environment: dict[str, str]
) -> None:
    """Programs exist, Debian packages are known to apt, and pip accepts the requirements."""
    checks = {check["name"]: check for check in json.loads(type_in(".venv/bin/testbed doctor --json").stdout)["checks"]}
    assert checks["torch"]["state"] == "missing"
    fixes = {name: check["fix"] for name, check in checks.items() if check["fix"] and check["state"] != "ok"}
    assert "torch" in fixes
    has_lists = any(Path("/var/lib/apt/lists").glob("*_Packages*"))
    for name, fix in fixes.items():
        if fix.startswith(("stop other", "raise pids.max", "root lacks", "run as root", "this system's", "export ")):
            continue
        for part in fix.split(" && "):
            program, *words = (word for word in shlex.split(part) if word not in ("sudo", "doas"))
            exists = shutil.which(program, path=f"{environment['PATH']}:{bare}") or (bare / program).is_file()
            assert exists or program in ("echo", "export", "modprobe"), (name, fix)
            if program == "apt-get" and words[0] == "install" and has_lists:
                shown = subprocess.run(["apt-cache", "show", *words[1:]], capture_output=True, timeout=60)
                assert shown.returncode == 0, (name, fix)


def test_the_last_line_of_doctor_says_the_same(type_in: TypeIn) -> None:
    done = type_in(".venv/bin/testbed doctor")
    if done.returncode == 0:
        fibers = done.stdout.strip().splitlines()[-1].partition("(")[2].partition(")")[0]
        planned = type_in(f"{fibers} --dry-run")
        assert planned.returncode == 0, (fibers, planned.stderr)


def test_this_python_is_where_packages_are_added() -> None:
    assert installation.adding("pytest").startswith(f"{shlex.quote(sys.executable)} -m pip install ")
