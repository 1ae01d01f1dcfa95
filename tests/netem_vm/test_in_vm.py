"""`make test-netem`: run the tests of inner/ on a kernel with netem, whatever kernel this machine has."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NoReturn

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import vm

INNER = Path(__file__).resolve().parent / "inner"
TIMEOUT_S = 1200
ALLOWED_SKIPS = ("thorough", "stalled this machine")


def test_inner_tests_pass_on_a_kernel_with_netem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if any(INNER.is_relative_to(hidden) for hidden in ("/mnt", "/run", "/dev")):
        lacks(f"it has its own /mnt, /run and /dev, and cannot see {INNER}")
    argv = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--tb=short", "--color=no"]
    try:
        backend = vm.choose_backend()
        # QEMU is 20 times slower than the processor: tests of times and of whole labs do not run on it.
        selected = ["-m", "not timing", f"--ignore={INNER / 'labs'}"] if backend == "qemu" else []
        status, output = vm.run([*argv, *selected, str(INNER)], tmp_path, timeout_s=TIMEOUT_S)
    except vm.Unavailable as error:
        lacks(str(error))
    result = output.strip().splitlines()[-1] if output.strip() else "no output"
    skipped = [line for line in output.splitlines() if line.startswith("SKIPPED") and "thorough" not in line]
    with capsys.disabled():
        print(f" netem kernel ({backend}): {'; '.join([result, *skipped])} ", end="")
    assert status == 0, output
    # A suite that skipped everything is no proof.
    passed = re.search(r"(\d+) passed", result)
    assert passed and int(passed[1]) >= 10, output
    assert [line for line in skipped if not any(reason in line for reason in ALLOWED_SKIPS)] == [], output


def lacks(reason: str) -> NoReturn:
    """Skip the test because of a missing prerequisite; in CI, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"no kernel with netem: {reason}")
    pytest.skip(f"no kernel with netem: {reason}")
