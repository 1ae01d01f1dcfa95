#!/usr/bin/env python3
"""Pack and unpack the fuzz corpus, tests/fuzz/corpus.tar.xz; docs/fuzzing.md describes its content.

tools/fuzz_corpus.py unpack FOLDER          write the inputs to FOLDER/<target>/, which must be empty or absent
tools/fuzz_corpus.py pack FOLDER            replace the archive by the inputs in FOLDER/<target>/
tools/fuzz_corpus.py add TARGET FILE...     add inputs that crashed the target, as <target>/crash-<sha1>

Equal inputs make an equal archive: members are sorted by name and have no time, owner or mode of
the packing machine. `FUZZ_KEEP=1 tools/fuzz.sh` merges the corpus and packs it. Only the standard
library is needed, because fuzz.sh also runs without .venv.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import re
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parents[1] / "tests" / "fuzz" / "corpus.tar.xz"
TARGETS = ("packet", "fiber", "control")
CRASH = "crash-"  # tools/fuzz.sh keeps inputs of this name through every merge

Inputs = dict[str, bytes]
"""Content of each input by its member name, <target>/<name>."""


def member_name(target: str, name: str) -> str:
    """Return the member name of an input; raise ValueError unless it stays within its target's folder."""
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r} (available: {', '.join(TARGETS)})")
    if not re.fullmatch(r"[0-9A-Za-z_-]+", name):
        raise ValueError(f"expected a name of letters, digits, '_' and '-', got {name!r} in {target}")
    return f"{target}/{name}"


def load(archive: Path) -> Inputs:
    """Return the inputs of an archive."""
    inputs = {}
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                raise ValueError(f"expected regular files in {archive}, found {member.name!r}")
            target, _, name = member.name.partition("/")
            inputs[member_name(target, name)] = content.read()
    return inputs


def save(archive: Path, inputs: Inputs) -> None:
    """Write an archive whose bytes depend on the inputs alone, and on the release of liblzma."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(inputs):
            member = tarfile.TarInfo(name)  # time 0, owner 0, mode 0644
            member.size = len(inputs[name])
            tar.addfile(member, io.BytesIO(inputs[name]))
    unfinished = archive.with_name(f"{archive.name}.new")
    unfinished.write_bytes(lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    unfinished.replace(archive)


def collect(folder: Path) -> Inputs:
    """Return the inputs of a folder, FOLDER/<target>/<name>; every target must have some."""
    inputs = {}
    for target in TARGETS:
        files = sorted((folder / target).iterdir())
        if not files:
            raise ValueError(f"expected inputs in {folder / target}, found none")
        for file in files:
            inputs[member_name(target, file.name)] = file.read_bytes()
    return inputs


def unpack(archive: Path, folder: Path) -> None:
    """Write the inputs of an archive to an empty or absent folder.

    Nothing else is in the folder afterwards, so that packing it gives the same archive.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"expected an empty folder, found files in {folder}; remove it first")
    for target in TARGETS:
        (folder / target).mkdir(parents=True)
    for name, content in load(archive).items():
        (folder / name).write_bytes(content)


def add(archive: Path, target: str, files: list[Path]) -> None:
    """Add inputs that crashed a target to an archive; an equal input under another name is replaced."""
    inputs = load(archive)
    for file in files:
        content = file.read_bytes()
        for name in [it for it in inputs if it.startswith(f"{target}/") and inputs[it] == content]:
            del inputs[name]
        inputs[member_name(target, CRASH + hashlib.sha1(content).hexdigest())] = content
    save(archive, inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack and unpack the fuzz corpus, tests/fuzz/corpus.tar.xz.")
    parser.add_argument("--archive", type=Path, default=ARCHIVE, help="default: tests/fuzz/corpus.tar.xz")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("unpack", help="write the inputs to FOLDER/<target>/").add_argument("folder", type=Path)
    verbs.add_parser("pack", help="replace the archive by FOLDER/<target>/").add_argument("folder", type=Path)
    adding = verbs.add_parser("add", help="add inputs that crashed a target")
    adding.add_argument("target", choices=TARGETS)
    adding.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    try:
        if options.verb == "unpack":
            unpack(options.archive, options.folder)
        elif options.verb == "pack":
            save(options.archive, collect(options.folder))
        else:
            add(options.archive, options.target, options.files)
    except (OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


if __name__ == "__main__":
    main()
