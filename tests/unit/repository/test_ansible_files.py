"""ansible/ as files: what ansible-lint says of them, and that every variable is documented."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from builders import ROOT
from builders.programs import run

ANSIBLE = ROOT / "ansible"
BOUND_S = 300


def test_lint(tmp_path: Path) -> None:
    # Ansible looks for its own tools on PATH, and refuses a locale that is not UTF-8.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tool = shutil.which("ansible-lint", path=path)
    if tool is None:
        pytest.skip("ansible-lint is not installed; install it with: pip install -e '.[test]'")
    environment = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(tmp_path)}
    words = ("--offline", "--nocolor", "--profile", "production")
    done = run(tool, *words, cwd=ANSIBLE, env=environment, timeout=BOUND_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_set_is_documented() -> None:
    role = ANSIBLE / "roles" / "testbed_host"
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    documented = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    guide = (ROOT / "docs/ansible.md").read_text()
    assert defaults.keys() == documented.keys()
    assert [name for name in defaults if f"`{name}`" not in guide] == []
