"""The age of a packet, from two clocks that are not read at one instant: never so that the packet is sent early."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FIBERD = Path(__file__).resolve().parents[3] / "testbed" / "fiberd"


def test_an_interruption_between_the_clocks_makes_no_packet_early(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    binary = tmp_path / "harness"
    source = Path(__file__).parent / "fiberd_clock_harness.c"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Dclock_gettime=fake_clock", f"-I{FIBERD}"]
    subprocess.run([compiler, *flags, "-o", binary, source], check=True)
    done = subprocess.run([binary], capture_output=True, text=True, check=True, timeout=60)
    late_ns = {int(pattern): int(late) for pattern, late in (line.split() for line in done.stdout.splitlines())}
    assert len(late_ns) == 512
    assert min(late_ns.values()) >= 0
    # Interrupted three times in a row, and only then, the error is that of an interruption.
    once = [late for pattern, late in late_ns.items() if bin(pattern).count("1") == 1]
    assert max(once) < 1000
