"""What tests in labs need of a machine, as marks of modules."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

LABS = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
]
"""Of every test that makes namespaces or containers."""

ALONE = [*LABS, pytest.mark.alone]
THOROUGH = [*ALONE, pytest.mark.thorough]
SSHD = pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="needs sshd: apt install openssh-server")
HOSTS = [*LABS, SSHD]
"""Of every test with hosts of namespaces."""

HOSTS_THOROUGH = [*THOROUGH, SSHD]
IPERF3 = pytest.mark.skipif(not shutil.which("iperf3"), reason="iperf3 is missing")
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="the training agents need torch")
NEEDS_PROMETHEUS = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is not installed (apt-get install prometheus)",
)


def thorough(*values: Any, id: str | None = None) -> Any:
    """Return a case of a table that only thorough tests try."""
    return pytest.param(*values, marks=pytest.mark.thorough, id=id)


def is_reachable(*paths: str | Path) -> bool:
    """Return whether programs without privileges can enter the folders above these paths."""
    return all(folder.stat().st_mode & 0o001 for path in paths for folder in Path(path).resolve().parents)


PYTHON = pytest.mark.skipif(
    not is_reachable(sys.executable),
    reason="this Python is in a folder that only root may enter; make test installs another",
)
