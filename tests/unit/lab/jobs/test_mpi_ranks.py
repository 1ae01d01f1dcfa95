"""The status of a rank that an mpiexec started, in a file that the program's user can write."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest

from testbed.lab.jobs.mpi_ranks import MpiRank, MpiRanks


@pytest.mark.parametrize(
    ("written", "status"),
    [
        (b"", None),
        (b"0\n", 0),
        (b"137\n", 137),
        (b"\xff\xfe", 1),
        ("²\n".encode(), 1),
        (b"-1\n", 1),
        (b"9" * 100_000, 255),
    ],
)
def test_whatever_is_in_the_file_a_rank_has_a_status(tmp_path: Path, written: bytes, status: int | None) -> None:
    path = tmp_path / "0.status"
    path.write_bytes(written)
    rank = MpiRank(cast(MpiRanks, None), io.BytesIO(), io.BytesIO(), path)
    assert rank.poll() == status
