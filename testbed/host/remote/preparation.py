"""Prepare another host by the Ansible role of this checkout (docs/ansible.md)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.core.user_text import shown
from testbed.errors import MissingTool, UserError
from testbed.host import installation
from testbed.host.remote import ssh_connection

__all__ = ["prepare"]

_CHECKOUT = Path(__file__).resolve().parents[3]


def prepare(where: str, options: Sequence[str]) -> int:
    """Run the playbook on a host, with this process's streams; return its exit status (0: all is as it should be).

    Containers are left out unless ``options`` want them: docker and a build of containerlab are minutes, and labs of
    namespaces need neither. torch comes from the folder that $TESTBED_WHEELS names, if it holds a wheel of torch.

    Raises UserError (this is no checkout, or HOST is none), MissingTool (no ansible-playbook).
    """
    folder = _CHECKOUT / "ansible"
    if not (folder / "prepare.yml").is_file():
        raise UserError(f"{_CHECKOUT} is no checkout of the testbed, whose playbook prepares hosts; call that of one")
    user, at, name = where.rpartition("@")
    if where.startswith("-") or not where.isprintable() or set(where) & set(" ,[]{}:'\"") or not name:
        fix = "name a host of ssh's configuration, or user@host"
        raise UserError(f"expected a host as ssh takes it, got {shown(where)}; {fix}")
    path = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", os.defpath)])
    program = shutil.which("ansible-playbook", path=path)
    if program is None:
        raise MissingTool("ansible-playbook", installation.adding("ansible"))
    config = ssh_connection.configuration()
    # JSON is YAML that quotes: a host may be called "no" or "1".
    settings = {"ansible_user": user} if at else {}
    if config:
        settings["ansible_ssh_common_args"] = shlex.join(["-F", str(Path(config).absolute())])
    inventory_text = json.dumps({"testbed_hosts": {"hosts": {name: settings}}})
    with tempfile.TemporaryDirectory(prefix="testbed-prepare-") as inventory:
        written = Path(inventory, "inventory.yml")
        written.write_text(inventory_text + "\n")
        argv = [program, "-i", str(written), "-e", json.dumps(_settings()), "prepare.yml", *options]
        return subprocess.run(argv, cwd=folder, env={**os.environ, "PATH": path}, check=False).returncode


def _settings() -> dict[str, object]:
    """Return variables of the role that differ from its defaults; options of the user come later, and win."""
    settings: dict[str, object] = {"testbed_host_containers": False}
    named = os.environ.get("TESTBED_WHEELS")
    if named and any(Path(named).glob("torch-*.whl")):
        settings["testbed_host_wheels"] = str(Path(named).resolve())
    return settings
