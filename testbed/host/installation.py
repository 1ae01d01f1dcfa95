"""This installation of the testbed, and the commands that add what it lacks: its extras, Debian packages, itself.

The project is on no package index, so a command names what an extra requires, or the place that the testbed came from;
never the project's name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.errors import UnknownName
from testbed.host.linux import invocation

__all__ = [
    "DISTRIBUTION",
    "TORCH_CPU_INDEX",
    "adding",
    "again",
    "apt",
    "containerlab",
    "pip",
    "rebuilding",
    "requirements",
]

DISTRIBUTION: Final = "scale-across-testbed"
TORCH_CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
"""PyTorch's builds without CUDA."""

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_APT_LISTS: Final = Path("/var/lib/apt/lists")


def adding(*extras: str) -> str:
    """Return the command that installs what ``extras`` of the testbed require, for this Python. Raises UnknownName."""
    wanted = list(dict.fromkeys(requirement for extra in extras for requirement in requirements(extra)))
    torch = any(re.match(r"torch\b", requirement) for requirement in wanted)
    return pip([*(["--extra-index-url", TORCH_CPU_INDEX] if torch else []), *wanted])


def again() -> str:
    """Return the command that installs this testbed again from where it came from; empty if that is unknown."""
    return pip(source) if (source := _source()) else ""


def rebuilding() -> str:
    """Return the command that builds this testbed again, fiberd too; with FOLDER for a checkout where none is known."""
    source = _source()
    if source and not source[-1].endswith(".whl"):  # a wheel holds what was built once
        return pip(source)
    return f"{pip(['--force-reinstall', '--no-deps', 'FOLDER'])}  # a checkout of the testbed"


def pip(arguments: Sequence[str]) -> str:
    """Return ``pip install`` for this Python, whatever pip a shell would find."""
    how = invocation.current()
    command = [how.python, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        command = ["uv", "pip", "install", "--python", how.python]
    if _externally_managed():
        command.append("--break-system-packages")
    line = shlex.join([*command, *arguments])
    if importlib.util.find_spec("pip") is None and command[0] != "uv":
        line = f"{shlex.join([how.python, '-m', 'ensurepip'])} && {line}"
    return how.shell(line) if _writable(how) else how.as_root(line)


def apt(*packages: str) -> str:
    """Return the command that installs Debian packages; elsewhere, words that name them."""
    names = " ".join(packages)
    if shutil.which("apt-get", path=f"{os.environ.get('PATH', '')}:/usr/bin") is None:
        return f"this system's package manager (Debian's packages are: {names})"
    # A fresh image or debootstrap has no package lists, and apt-get would find nothing.
    update = "" if _has_lists() else "apt-get update && "
    return invocation.as_root(f"{update}apt-get install {names}")


def containerlab() -> str:
    """Return the command that installs docker and containerlab: the script in the wheel, else in the repository."""
    folders = (_PACKAGE / "shipped", _PACKAGE.parent / "tools")
    script = next(
        (folder / "install-containerlab.sh" for folder in folders if (folder / "install-containerlab.sh").is_file()),
        None,
    )
    if script is None:
        return "tools/install-containerlab.sh of the testbed's repository (docs/containerlab.md)"
    return invocation.as_root(shlex.quote(invocation.shown(script, near=True)))


def requirements(extra: str) -> list[str]:
    """Return the requirements of an extra of the testbed, in pip's syntax. Raises UnknownName."""
    extras = _extras()
    if extra not in extras:
        raise UnknownName("extra of the testbed", extra, extras)
    packages: list[str] = []
    for requirement in extras[extra]:
        if own := re.fullmatch(rf"{DISTRIBUTION}\[([\w,-]+)\]", requirement):
            packages += [inner for name in own[1].split(",") for inner in requirements(name)]
        else:
            packages.append(requirement)
    return list(dict.fromkeys(packages))


def _extras() -> dict[str, list[str]]:
    """Return requirements by extra: of the repository that this code runs from, else of the installed package."""
    project = _PACKAGE.parent / "pyproject.toml"
    if project.is_file():
        import tomllib  # only messages need it and importlib.metadata, which take 0.01 s of every command

        return dict(tomllib.loads(project.read_text())["project"]["optional-dependencies"])
    from importlib import metadata

    extras: dict[str, list[str]] = {}
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement, _, marker = line.partition(";")
        if extra := re.search(r"extra == [\"']([\w-]+)[\"']", marker):
            extras.setdefault(extra[1], []).append(requirement.strip())
    return extras


def _source() -> list[str]:
    """Return pip's arguments for the place that this testbed came from (PEP 610); [] if it is unknown."""
    if (_PACKAGE.parent / "pyproject.toml").is_file():
        return ["--editable", str(_PACKAGE.parent)]
    from importlib import metadata

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        direct_url = json.loads(text or "{}")
        url = str(direct_url.get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return []
    if not url:
        return []
    if version := direct_url.get("vcs_info"):
        url = f"{version['vcs']}+{url}@{version.get('requested_revision') or version['commit_id']}"
    elif url.startswith("file://") and not Path(url.removeprefix("file://")).exists():
        return []
    # By no index: dependencies are there already, and a reinstallation needs nothing else.
    return ["--force-reinstall", "--no-deps", url]


def _externally_managed() -> bool:
    """Return whether pip refuses to change this Python (PEP 668): that of a distribution, outside of any venv."""
    return sys.prefix == sys.base_prefix and Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()


def _writable(how: invocation.Invocation) -> bool:
    """Return whether the user's own shell can install packages for this Python."""
    folder = Path(sysconfig.get_path("purelib"))
    if how.become == ():
        return True
    if os.geteuid() != 0:
        return os.access(folder, os.W_OK)
    try:  # root by sudo: what counts is who called it
        return folder.stat().st_uid == int(os.environ.get("SUDO_UID", "0"))
    except (OSError, ValueError):
        return False


def _has_lists() -> bool:
    return any(_APT_LISTS.glob("*_Packages*"))
