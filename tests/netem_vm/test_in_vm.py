"""`make test-netem`: run the tests of inner/ on a kernel with netem, whatever kernel this machine has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ahead
import vm

INNER = Path(__file__).resolve().parent / "inner"
BOUND_S = 700


@pytest.mark.flaky(reruns=0)  # the inner tests are tried again one by one
def test_inner_tests_pass_on_a_kernel_with_netem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if any(INNER.is_relative_to(hidden) for hidden in ("/mnt", "/run", "/dev")):
        pytest.skip(f"no kernel with netem: it has its own /mnt, /run and /dev, and cannot see {INNER}")
    if (begun := ahead.AHEAD_OF_TESTS.wait("netem_vm/test_in_vm.py")) is not None:
        _judge_what_was_begun(*begun, capsys)
        return
    options = ["-q", "-rs", "-p", "no:cacheprovider", "--tb=short", "--color=no"]
    argv = [sys.executable, "-m", "pytest", *options, str(INNER)]
    try:
        status, said = vm.run(argv, tmp_path, timeout_s=BOUND_S)
    except (vm.Unavailable, OSError) as error:
        pytest.skip(f"no kernel with netem: {error}")
    result = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    with capsys.disabled():
        print(f" netem kernel: {result} ", end="")
    assert status == 0, said
    # A suite that skipped everything is no proof.
    passed = re.search(r"(\d+) passed", result)
    assert passed and int(passed[1]) >= 10, said
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if "thorough" not in line] == [], said


def _judge_what_was_begun(status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """This same test in a process of its own."""
    if reason := re.search(r"SKIPPED.*?: (no kernel with netem.*)", said):
        pytest.skip(reason[1])
    result = re.search(r"netem kernel: (.*)", said)
    with capsys.disabled():
        print(f" {result[0] if result else 'it said nothing'} ", end="")
    assert status == 0, said
    assert result, said
