"""Which checkpoints of a job are whole, by their checksums (agents write them: docs/design.md, "Checkpoints").

A folder ``rank-<r>/step-<n>.a<attempt>`` holds the state of one rank after step n, and ``manifest.json`` the SHA-256 of
each of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.host.files import beneath

FOLDER, FENCE = "checkpoints", "attempt"
_NAME = re.compile(r"step-(\d+)\.a(\d+)")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """What ``attempt`` wrote after ``step``."""

    step: int
    attempt: int


def whole(ranks_folder: Path, rank: int) -> frozenset[Checkpoint]:
    """The checkpoints of a rank of which each file is what was written; torn and spoilt ones are left out."""
    found = set()
    try:
        folders = list((ranks_folder / FOLDER / f"rank-{rank}").iterdir())
    except OSError:
        return frozenset()
    for folder in folders:
        if (match := _NAME.fullmatch(folder.name)) and _is_whole(folder):
            found.add(Checkpoint(int(match[1]), int(match[2])))
    return frozenset(found)


def _is_whole(folder: Path) -> bool:
    try:
        files = json.loads(_bytes(folder, "manifest.json"))["files"]
        return bool(files) and all(
            hashlib.sha256(_bytes(folder, name)).hexdigest() == digest for name, digest in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _bytes(folder: Path, name: str) -> bytes:
    with os.fdopen(beneath.open_file(folder, name), "rb") as file:
        return file.read()


def newest_of_all(have: Iterable[frozenset[Checkpoint]], began_at: Mapping[int, int]) -> Checkpoint | None:
    """The newest checkpoint that every rank has, of those that lie on the way to where the job stands.

    ``began_at`` is by attempt the step that it went on from: what an attempt did beyond the step that a later one
    began at is no part of the job any more, and a checkpoint of it, written late, is none either.
    """
    sets = list(have)
    common = frozenset.intersection(*sets) if sets else frozenset()
    ours = [it for it in common if all(it.step <= step for other, step in began_at.items() if other > it.attempt)]
    return max(ours, default=None)


def set_fence(ranks_folder: Path, attempt: int) -> None:
    """From now on no attempt before this one can write. A rank that reads sees the old number or the new."""
    beneath.replace(ranks_folder, FENCE, b"%d\n" % attempt)


def remove(ranks_folder: Path) -> None:
    """Of a job that needs them no more; what will not go is left."""
    shutil.rmtree(ranks_folder / FOLDER, ignore_errors=True)
