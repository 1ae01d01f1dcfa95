"""Prepare another host by the Ansible role of this checkout (docs/ansible.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import MissingTool, UserError
from testbed.host import installation
from testbed.host.remote import ssh_connection

__all__ = ["prepare"]

_CHECKOUT = Path(__file__).resolve().parents[3]


def prepare(where: str, options: Sequence[str]) -> int:
    """Run the playbook on a host, with this process's streams; return its exit status (0: all is as it should be).

    Raises UserError (this is no checkout, or HOST is none), MissingTool (no ansible-playbook).
    """
    folder = _CHECKOUT / "ansible"
    if not (folder / "prepare.yml").is_file():
        raise UserError(f"{_CHECKOUT} is no checkout of the testbed, whose playbook prepares hosts; call that of one")
    if where.startswith("-") or not where.isprintable() or set(where) & set(" ,[]{}:'\""):
        raise UserError(f"expected a host as ssh takes it, got {where!r}")
    path = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", os.defpath)])
    program = shutil.which("ansible-playbook", path=path)
    if program is None:
        raise MissingTool("ansible-playbook", installation.adding("ansible"))
    user, at, name = where.rpartition("@")
    config = ssh_connection.configuration()
    lines = ["testbed_hosts:", "  hosts:", f"    {name}:", *([f"      ansible_user: {user}"] if at else ())]
    lines += [f"      ansible_ssh_common_args: -F {config}"] if config else []
    with tempfile.TemporaryDirectory(prefix="testbed-prepare-") as inventory:
        written = Path(inventory, "inventory.yml")
        written.write_text("\n".join(lines) + "\n")
        words = [program, "-i", str(written), "prepare.yml", *options]
        return subprocess.run(words, cwd=folder, env={**os.environ, "PATH": path}, check=False).returncode
