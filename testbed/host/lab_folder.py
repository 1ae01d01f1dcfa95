"""The state folder of each lab, and the list of labs."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.core.user_text import shown
from testbed.errors import LabError, StorageError, UserError
from testbed.host.linux import invocation

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
"""A valid lab name."""


def refuse_bad_name(name: str) -> None:
    """Raise UserError unless ``name`` is a valid lab name."""
    if not NAME.fullmatch(name):
        raise UserError(f"invalid lab name {shown(name)}: expected 1 to 40 of a-z, 0-9 and -, without a leading -")


def root() -> Path:
    """Return ``$TESTBED_STATE``, else /var/lib/testbed; absolute, because the keeper has another working directory."""
    return Path(os.environ.get("TESTBED_STATE") or "/var/lib/testbed").absolute()


@dataclass(frozen=True)
class LabFolder:
    """The files of one lab's state: keeper, journal, measurements."""

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
    def older_keeper_log(self) -> Path:
        """The keeper's log before the current one; missing until that one has grown too large."""
        return self.path / "keeper.log.1"

    @property
    def emulator_log(self) -> Path:
        return self.path / "emulator.log"

    @property
    def agents_log(self) -> Path:
        return self.path / "agents.log"

    @property
    def jobs_log(self) -> Path:
        """What detached jobs' own processes had to say; missing until there was anything."""
        return self.path / "jobs.log"

    @property
    def prometheus(self) -> Path:
        """Configuration, targets and data of the lab's own Prometheus; exists only in an observed lab."""
        return self.path / "prometheus"

    @property
    def prometheus_log(self) -> Path:
        return self.path / "prometheus.log"

    @property
    def topology(self) -> Path:
        return self.path / "topology.json"

    @property
    def certificate(self) -> Path:
        return self.path / "certificate.json"

    @property
    def about(self) -> Path:
        """The driver and emulator chosen, with the reason: the :class:`~testbed.lab.deploy.Choice` as JSON."""
        return self.path / "about.json"

    @property
    def owner(self) -> Path:
        """Who brought the lab up (``lab_owner.py``); labs of older versions have none."""
        return self.path / "owner.json"

    @property
    def docker(self) -> Path:
        """Address of the docker daemon that created this lab's containers, as in DOCKER_HOST; only with containers."""
        return self.path / "docker"

    @property
    def scratch(self) -> Path:
        """Path of the folder in /var/tmp for its programs; exists only once one was needed."""
        return self.path / "scratch"

    @property
    def latest_run(self) -> Path:
        """Path of the lab's latest run directory; exists only once there was one, and not in labs of older versions."""
        return self.path / "run"

    @property
    def handles(self) -> Path:
        return self.path / "handles"

    def exists(self) -> bool:
        """Return whether the lab's folder exists. Raises StorageError if that cannot be determined."""
        with _readable(self.path.parent):
            try:
                return stat.S_ISDIR(self.path.stat().st_mode)
            except FileNotFoundError:
                return False

    @property
    def foreign(self) -> bool:
        """Whether it exists but is not readable: a lab's folder is open to the user who created it, and to root."""
        return not os.access(self.path, os.R_OK | os.X_OK) and self.exists()

    def refuse_gone(self) -> None:
        """Raise LabError if the lab was taken down in the meantime."""
        if not self.exists():
            raise self.gone()

    def gone(self) -> LabError:
        """Return the error for a lab that was taken down in the meantime."""
        return LabError(f"lab {self.name} was taken down meanwhile")

    def refuse_foreign(self) -> None:
        """Raise LabError for a lab of another user, whose state cannot be read."""
        if self.foreign:
            raise LabError(f"lab {self.name} belongs to another user: {invocation.again()}")


def folder(name: str) -> LabFolder:
    return LabFolder(root() / "labs" / name)


def folders() -> list[LabFolder]:
    """Return the folders of all labs that are up or were left behind, by name.

    Raises:
        StorageError: the folder of labs cannot be listed, so it is unknown whether there are any.
    """
    labs = root() / "labs"
    with _readable(labs):
        try:
            return [LabFolder(path) for path in sorted(labs.iterdir()) if path.is_dir()]
        except FileNotFoundError:
            return []


@contextlib.contextmanager
def _readable(labs: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise StorageError(f"no permission to read {labs}, so its labs are unknown: {invocation.again()}") from error
    except OSError as error:
        raise StorageError(f"cannot read {labs}: {error.strerror}; TESTBED_STATE must be a folder") from error
