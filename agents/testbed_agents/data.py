"""Training data: the bytes of any file or folder, or of a text that every machine has.

The default is the source of the running Python's standard library: several megabytes of structured text, without a
download.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

CAP_BYTES = 8_000_000
"""Large enough that a run of minutes sees no window twice; small enough to read in a fraction of a second."""

_NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}
"""Folders below the standard library that differ between machines."""


class CorpusError(Exception):
    """The text cannot be read, or is too short to train on; the message has which and why."""


@dataclass(frozen=True)
class Corpus:
    """A text to train on. ``text``: (bytes,) uint8."""

    name: str
    text: Tensor

    def __len__(self) -> int:
        return self.text.numel()


def load(path: str | Path | None = None, cap_bytes: int = CAP_BYTES) -> Corpus:
    """Load a file, or all files of a folder in the order of their paths; by default the standard library.

    Reads at most ``cap_bytes``. Raises CorpusError.
    """
    if path is None:
        return standard_library(cap_bytes)
    source = Path(path)
    if source.is_dir():
        return _read(str(source), _files(source, ""), cap_bytes)
    return _read(str(source), iter([source]), cap_bytes)


@functools.cache
def standard_library(cap_bytes: int = CAP_BYTES) -> Corpus:
    """Return the standard library's source, cached; processes forked afterwards share it."""
    folder = Path(sysconfig.get_path("stdlib"))
    return _read(f"Python {sysconfig.get_python_version()} standard library", _files(folder, ".py"), cap_bytes)


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    def complain(error: OSError) -> None:
        raise CorpusError(f"cannot list {error.filename}: {error.strerror}") from error

    for parent, folders, names in os.walk(folder, onerror=complain):
        # In place, which os.walk follows. Sorted, because the order of directory entries differs between machines.
        folders[:] = sorted(set(folders) - _NOT_OURS)
        for name in sorted(names):
            file = Path(parent, name)
            if name.endswith(suffix) and file.is_file():  # no sockets, devices or FIFOs, which may have no end
                yield file


def _read(name: str, files: Iterator[Path], cap_bytes: int) -> Corpus:
    text = bytearray()
    for file in files:
        try:
            with file.open("rb") as source:
                text += source.read(cap_bytes - len(text))
        except OSError as error:
            raise CorpusError(f"cannot read {file}: {error.strerror}") from error
        if len(text) >= cap_bytes:
            break
    if not text:
        raise CorpusError(f"{name} is empty: name another file or folder")
    return Corpus(name, torch.frombuffer(text, dtype=torch.uint8))


class Windows:
    """An endless sequence of random windows of a corpus, determined by ``seed`` and ``rank``."""

    def __init__(self, corpus: Corpus, *, batch: int, context: int, seed: int, rank: int) -> None:
        if len(corpus) <= context:
            raise CorpusError(
                f"{corpus.name} has {len(corpus)} bytes; a window of {context} needs at least {context + 1}"
            )
        self._text, self._batch, self._context = corpus.text, batch, context
        self._generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
        self.drawn = 0
        """Number of draws."""

    @property
    def position(self) -> Tensor:
        """State of the random generator, (bytes,) uint8; for :meth:`go_to`."""
        return self._generator.get_state()

    def go_to(self, position: Tensor, drawn: int) -> None:
        self._generator.set_state(position)
        self.drawn = drawn

    def draw(self) -> tuple[Tensor, Tensor]:
        """Return (bytes, the bytes that follow them), each (batch, context) int64."""
        self.drawn += 1
        starts = torch.randint(len(self._text) - self._context, (self._batch, 1), generator=self._generator)
        windows = self._text[starts + torch.arange(self._context + 1)].long()
        return windows[:, :-1], windows[:, 1:]
