"""The whole product on a kernel with netem: User-Mode Linux runs docker, containerlab and tests/netem_vm/containers.

``make test-netem-containers`` runs it: minutes on one CPU, too long for the ordinary tests on a machine with two.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from builders import ROOT
from builders.conditions import THOROUGH

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "netem_vm"))

import vm

pytestmark = THOROUGH
LAYERS = ROOT / "build" / "docker"
"""Where the daemon of conftest.py keeps its images."""
BOUND_S = 420.0


def test_docker_containerlab_and_netem_together(
    containers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = ROOT / "tests" / "netem_vm" / "containers"
    if any(inner.is_relative_to(hidden) for hidden in ("/mnt", "/run", "/dev")):
        pytest.skip(f"no kernel with netem: it has its own /mnt, /run and /dev, and cannot see {inner}")
    argv = ["env", f"TESTBED_VM_IMAGES={LAYERS}", sys.executable, "-m", "pytest", "-q", "-s"]
    argv += ["-p", "no:cacheprovider", "--tb=short", "--color=no", str(inner)]
    try:
        if vm.choose_backend() != "uml":
            pytest.skip("User-Mode Linux does not boot here, and under QEMU a lab takes longer than its time limits")
        status, said = vm.run(argv, tmp_path, timeout_s=BOUND_S, memory="4G")
    except vm.Unavailable as error:
        pytest.skip(f"no kernel with netem: {error}")
    with capsys.disabled():
        print(" " + "; ".join(re.findall(r"^\d.* s: .*$", said, re.MULTILINE)), end=" ")
    assert status == 0, said
    assert "1 passed" in said and "skipped" not in said, said
