"""A virtual environment with the testbed and some of its extras, made of links in a second and without a network."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from builders import ROOT


def make(folder: Path, extras: Iterable[str] = ()) -> Path:
    """Make a virtual environment and return its Python. ``testbed`` runs the code of this tree.

    It links to the packages of this Python: what the project requires, what ``extras`` require, and pip. No package
    lies in it that nothing of these asks for.
    """
    # By a script of its own: no pip is copied, which takes seconds.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    packages = Path(_say(folder / "bin" / "python", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    for distribution in _needed({"pip", *_required("scale-across-testbed", frozenset(extras))}):
        for entry in {
            Path(*it.parts[:1]) for it in distribution.files or () if it.parts[0] not in ("..", "__pycache__")
        }:
            link = packages / entry
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(entry))))
    for name, source in (("testbed", ROOT / "testbed"), ("testbed_agents", ROOT / "agents" / "testbed_agents")):
        (packages / name).symlink_to(source)
    script = folder / "bin" / "testbed"
    script.write_text(f"#!{folder / 'bin' / 'python'}\nfrom testbed.cli.entry import main\nmain()\n")
    script.chmod(0o755)
    return folder / "bin" / "python"


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel whose one module is empty."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(f"{name}/__init__.py", "")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", f"{name}/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def type_in(line: str, cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Type a line into a shell."""
    return subprocess.run(["sh", "-c", line], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


def _say(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _required(name: str, extras: frozenset[str]) -> set[str]:
    """Return the names that a distribution requires, with these extras of it."""
    found = set[str]()
    for line in importlib.metadata.requires(name) or ():
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == [\"']([\w.-]+)[\"']", marker)
        own = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement.strip())
        assert own is not None, line
        if extra is None or extra[1] in extras:
            found |= _required(name, frozenset((own[2] or "").split(","))) if own[1] == name else {own[1]}
    return found


def _needed(names: set[str]) -> list[importlib.metadata.Distribution]:
    """Return the distributions that are installed here, of these names and of all that they require."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left = set(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, or another Python
        left |= _required(name, frozenset())
    return list(found.values())


def after(text: str, words: str) -> str:
    """Return the rest of the line after ``words``."""
    return next(line.partition(words)[2] for line in text.splitlines() if words in line)
