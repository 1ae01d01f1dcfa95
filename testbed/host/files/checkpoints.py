"""Find a job's complete checkpoints by their checksums (agents write them: docs/design.md, "Checkpoints").

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
from io import BufferedReader
from pathlib import Path

from testbed.host.files import beneath

FOLDER, FENCE = "checkpoints", "attempt"
MANIFEST_BYTES = 1 << 20
"""No manifest is larger: ranks write them, and they are read into memory."""

_NAME = re.compile(r"step-(\d+)\.a(\d+)")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """Identity of a checkpoint: written by ``attempt`` after ``step``."""

    step: int
    attempt: int


def whole(ranks_folder: Path, rank: int) -> frozenset[Checkpoint]:
    """Return the checkpoints of a rank whose files all match their checksums; torn and corrupted ones are left out."""
    checkpoints = set()
    try:
        folders = list((ranks_folder / FOLDER / f"rank-{rank}").iterdir())
    except OSError:
        return frozenset()
    for folder in folders:
        if (match := _NAME.fullmatch(folder.name)) and _is_whole(folder):
            checkpoints.add(Checkpoint(int(match[1]), int(match[2])))
    return frozenset(checkpoints)


def _is_whole(folder: Path) -> bool:
    try:
        with _opened(folder, "manifest.json") as manifest:
            files = json.loads(manifest.read(MANIFEST_BYTES))["files"]
        return bool(files) and all(_sha256(folder, name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _opened(folder: Path, name: str) -> BufferedReader:
    return os.fdopen(beneath.open_file(folder, name), "rb")


def _sha256(folder: Path, name: str) -> str:
    """Hash a file as a stream: the checkpoints of a large model do not fit into memory."""
    with _opened(folder, name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def newest_of_all(have: Iterable[frozenset[Checkpoint]], began_at: Mapping[int, int]) -> Checkpoint | None:
    """Return the newest checkpoint that every rank has and that is part of the job's current history.

    ``began_at`` has, by attempt, the step that it resumed from. Steps that an attempt did beyond the one a later
    attempt resumed from are discarded work, and so are checkpoints of them, even if written late.
    """
    sets = list(have)
    common = frozenset.intersection(*sets) if sets else frozenset()
    ours = [
        checkpoint
        for checkpoint in common
        if all(checkpoint.step <= step for other, step in began_at.items() if other > checkpoint.attempt)
    ]
    return max(ours, default=None)


def set_fence(ranks_folder: Path, attempt: int) -> None:
    """Forbid earlier attempts to write from now on. Atomic: a rank reads the old number or the new one."""
    beneath.replace(ranks_folder, FENCE, b"%d\n" % attempt)


def remove(ranks_folder: Path) -> None:
    """Remove the checkpoints of a finished job; errors are ignored."""
    shutil.rmtree(ranks_folder / FOLDER, ignore_errors=True)
