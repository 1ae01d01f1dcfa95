"""Checkpoints of one rank, stored on its own node: they do not cross a fiber.

Each is a folder ``step-<n>.a<attempt>`` with the files of torch.distributed.checkpoint and a manifest with the SHA-256
of each file. It is written under a temporary name, synced to disk, then renamed, so it is complete or absent; later
corruption on disk is detected by the checksums.

A checkpoint that all ranks have is removed only when a newer one that all have is *confirmed*: ranks do not all reach
the same step before a failure, and any number of attempts may fail while they write. Sites that exchange every H steps
may also be H steps apart, and several checkpoints. So a rank confirms one after it has written a later one, when all
ranks had noted that theirs is on disk (``StatusFile.saved``). The one that an attempt resumed from is confirmed, too.
So there are usually two, more on a rank that is ahead; each attempt that ends before it has confirmed one of its own
leaves one more.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from testbed_agents.data import Windows
from testbed_agents.model import local
from testbed_agents.records import Fence, Fenced

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)\.a(\d+)")


class CheckpointError(Exception):
    """A checkpoint cannot be written, or is incomplete or corrupted; the message has which and why."""


@dataclass(frozen=True)
class State:
    """Everything that a training step depends on. ``optimizer`` has AdamW's state: step and two moments."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    windows: Windows
    strategy: Mapping[str, Tensor] = field(default_factory=dict)
    """Of the strategy (``Strategy.state``), which are filled in place."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, not copies, so that loading fills them; the optimizer's if already created."""
        tensors = {f"model.{name}": local(parameter.data) for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            for moment, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{name}.{moment}"] = local(value)
        tensors |= {f"strategy.{name}": tensor for name, tensor in self.strategy.items()}
        return tensors | {"rng.torch": torch.get_rng_state(), "rng.windows": self.windows.position}


class Checkpoints:
    """Checkpoints of one rank in ``folder``, written by the attempt of ``fence``."""

    def __init__(self, folder: Path, fence: Fence) -> None:
        self.folder, self._fence = folder, fence
        self._confirmed: str | None = None
        """The newest one that all ranks have."""
        self._written: dict[int, str] = {}
        """Those of this attempt that are newer, by step."""

    def save(self, step: int, state: State) -> int:
        """Write the checkpoint after ``step``; return its size in bytes. Raises CheckpointError."""
        name = _name(step, self._fence.attempt)
        unfinished = self.folder / f"unfinished-{name}"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no_dist is intended
                _write(state.tensors(), unfinished)
            files = sorted(unfinished.iterdir())
            size = sum(file.stat().st_size for file in files)
            manifest = {
                "version": 1,
                "step": step,
                "attempt": self._fence.attempt,
                "drawn": state.windows.drawn,
                "python_rng": random.getstate(),
                "files": {file.name: _sha256(file) for file in files},
            }
            (unfinished / MANIFEST).write_text(json.dumps(manifest))
            for file in unfinished.iterdir():
                _sync(file)
            _sync(unfinished)
            self._fence.check()
            shutil.rmtree(self.folder / name, ignore_errors=True)  # corrupted, or the job would have resumed from it
            unfinished.rename(self.folder / name)
            _sync(self.folder)
        except OSError as error:
            raise CheckpointError(f"cannot write the checkpoint of step {step}: {error.strerror}") from error
        except CheckpointException as error:
            raise CheckpointError(f"cannot write the checkpoint of step {step}: {_first_cause(error)}") from error
        except Fenced as error:
            raise CheckpointError(f"cannot write the checkpoint of step {step}: {error}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        self._written[step] = name
        return size

    def confirm(self, step: int) -> None:
        """Remove what no attempt will resume from, now that all ranks have the one that this attempt wrote after
        ``step``; 0: only the one that it resumed from. The last one written stays unconfirmed."""
        if step in self._written and step < max(self._written):
            self._confirmed = self._written[step]
            self._written = {written_step: name for written_step, name in self._written.items() if written_step > step}
        self._forget_older()

    def load(self, step: int, attempt: int, state: State) -> None:
        """Fill ``state`` from the checkpoint that ``attempt`` wrote after ``step``. Raises CheckpointError."""
        folder = self.folder / _name(step, attempt)
        manifest = verified(folder)
        _make_moments(state)
        tensors = state.tensors()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _read(tensors, folder)
            torch.set_rng_state(tensors["rng.torch"])
            state.windows.go_to(tensors["rng.windows"], manifest["drawn"])
            version, internal, gauss = manifest["python_rng"]
            random.setstate((version, tuple(internal), gauss))
        except CheckpointException as error:
            raise CheckpointError(f"checkpoint {folder.name} does not fit this job: {_first_cause(error)}") from error
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"checkpoint {folder.name} does not fit this job: {error}") from error
        self._confirmed = folder.name

    def _forget_older(self) -> None:
        """Remove what no attempt will resume from, now that all ranks have the confirmed one."""
        if self._confirmed is None:
            return
        for folder in self.folder.iterdir():
            # Those of later attempts stay: this process may have been paused while they began.
            ours = (match := _NAME.fullmatch(folder.name)) is not None and int(match[2]) <= self._fence.attempt
            if ours and folder.name not in (self._confirmed, *self._written.values()):
                shutil.rmtree(folder, ignore_errors=True)


def _write(tensors: dict[str, Any], folder: Path) -> None:
    if "no_dist" in inspect.signature(state_dict_saver.save).parameters:
        state_dict_saver.save(tensors, checkpoint_id=folder, no_dist=True)
    else:  # torch before 2.8
        state_dict_saver.save_state_dict(tensors, FileSystemWriter(folder), no_dist=True)


def _read(tensors: dict[str, Any], folder: Path) -> None:
    if "no_dist" in inspect.signature(state_dict_loader.load).parameters:
        state_dict_loader.load(tensors, checkpoint_id=folder, no_dist=True)
    else:
        reader = FileSystemReader(folder)
        metadata = reader.read_metadata().state_dict_metadata
        sizes = {name: getattr(stored, "size", None) for name, stored in metadata.items()}
        for name, tensor in tensors.items():  # torch 2.4 does not compare sizes
            if sizes[name] != tensor.size():
                raise ValueError(f"size of {name}: expected {tuple(tensor.size())}, got {sizes[name]}")
        state_dict_loader.load_state_dict(tensors, reader, no_dist=True)


def _first_cause(error: CheckpointException) -> str:
    """Return the first cause in one line; the error's own text has tracebacks of all ranks."""
    cause, _ = next(iter(error.failures.values()), (error, None))
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause).partition("\n")[0]


def _name(step: int, attempt: int) -> str:
    return f"step-{step:06d}.a{attempt}"


def verified(folder: Path) -> dict[str, Any]:
    """Verify all files of a checkpoint by their checksums; return its manifest. Raises CheckpointError."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        for name, digest in manifest["files"].items():
            if _sha256(folder / name) != digest:
                raise CheckpointError(f"checkpoint {folder.name} is corrupted: checksum mismatch of {name}")
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {folder.name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"checkpoint {folder.name} has an invalid manifest") from error
    return manifest


def _sha256(path: Path) -> str:
    """Hash a file as a stream: a checkpoint may be larger than the memory that is left."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_moments(state: State) -> None:
    """Create AdamW's tensors, which it creates itself only in its first step, so that they can be filled."""
    for parameter in state.model.parameters():
        if not state.optimizer.state[parameter]:
            state.optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
