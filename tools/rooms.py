"""Print the purpose of every file of the testbed and its agents, by folder: the first sentence of its docstring.

python tools/rooms.py [FOLDER]      # such as testbed/lab; default: all folders
"""

from __future__ import annotations

import ast
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("testbed", "agents/testbed_agents")


def rooms(below: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each package at or below a folder, with its Python files except ``__init__.py``."""
    for folder in (below, *sorted(it for it in below.rglob("*") if it.is_dir())):
        if (folder / "__init__.py").is_file():
            yield folder, sorted(it for it in folder.glob("*.py") if it.name != "__init__.py")


def purpose(file: Path) -> str:
    """Return the first sentence of a file's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0]


def main(folders: list[str]) -> None:
    for below in folders or ROOMS:
        for folder, files in rooms((ROOT / below).resolve()):
            print(f"\n{folder.relative_to(ROOT)}/  {purpose(folder / '__init__.py')}")
            width = max((len(it.name) for it in files), default=0)
            for file in files:
                print(f"  {file.name:<{width}}  {purpose(file)}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # let `… | head` end quietly
    main(sys.argv[1:])
