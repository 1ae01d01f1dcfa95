"""Where the state of labs is on disk, and which labs there are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def root() -> Path:
    """``$TESTBED_STATE``, else /var/lib/testbed; absolute, because the keeper works elsewhere."""
    return Path(os.environ.get("TESTBED_STATE") or "/var/lib/testbed").absolute()


@dataclass(frozen=True)
class LabFolder:
    """The state of one lab: who keeps it, what stands, what was measured."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def socket(self) -> Path:
        return self.path / "keeper.sock"

    @property
    def keeper_log(self) -> Path:
        return self.path / "keeper.log"

    @property
    def emulator_log(self) -> Path:
        return self.path / "emulator.log"

    @property
    def agents_log(self) -> Path:
        return self.path / "agents.log"

    @property
    def topology(self) -> Path:
        return self.path / "topology.json"

    @property
    def certificate(self) -> Path:
        return self.path / "certificate.json"

    @property
    def about(self) -> Path:
        """How the lab was brought up: driver, emulator, why, whether uncertified."""
        return self.path / "about.json"

    @property
    def handles(self) -> Path:
        return self.path / "handles"


def folder(name: str) -> LabFolder:
    return LabFolder(root() / "labs" / name)


def folders() -> list[LabFolder]:
    """Folders of all labs that are up or were left behind, by name."""
    labs = root() / "labs"
    if not labs.is_dir():
        return []
    return [LabFolder(path) for path in sorted(labs.iterdir()) if path.is_dir()]
