"""Which folders of the host may be shown inside a container at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import HostError, UserError
from testbed.host.linux.container_mount import mount

NOBODY = 1 << 22
"""Above pid_max (PID_MAX_LIMIT of include/linux/threads.h): no process has it."""


@pytest.mark.parametrize(
    "folder", ["/", "/usr", "/usr/lib/python3", "/etc", "/proc/self", "/opt/testbed", "/srv/../etc"]
)
def test_what_a_container_lives_by_is_never_hidden(folder: str) -> None:
    with pytest.raises(UserError, match=f"^cannot mount {folder} into containers"):
        mount(Path(folder), NOBODY)


@pytest.mark.parametrize("folder", ["", "opt/testbed/runs", "usr/src/mine", "root", "etcetera"])
def test_others_are_looked_for_on_the_host(tmp_path: Path, folder: str) -> None:
    """Told by what fails: that there is no such folder, or no such process."""
    wanted = tmp_path if not folder else Path("/", folder, "never-made")
    with pytest.raises(HostError, match="could not"):
        mount(wanted, NOBODY)
