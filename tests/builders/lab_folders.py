"""Folders of labs whose keepers are gone, with what a journal lists."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.core.topology.model import topology_to_dict
from testbed.host.files import catalog
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper.journal import Journal

DEAD = (1 << 22, 1)
"""The pid and start time of no process."""


def lab_folder(parent: Path, name: str = "metro", topology: str = "") -> LabFolder:
    """Make the folder of a lab; with the file of a shipped ``topology``, if it is given."""
    lab = LabFolder(parent / name)
    lab.path.mkdir()
    if topology:
        lab.topology.write_text(json.dumps(topology_to_dict(catalog.load_topology(topology))))
    return lab


def journal_of(lab: LabFolder, boot: str = "") -> Journal:
    """Create the journal of a dead keeper, by default of this boot; it must be closed."""
    return Journal.create(lab.journal, lab.name, boot or process.boot_id(), DEAD)
