"""CSV files, as they grow."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.workload.progress_call_lines import CallReader
from testbed.core.workload.progress_csv import CsvReader
from testbed.core.workload.progress_source import CsvFile, Sources

FILE = CsvFile("loss.csv", Sources(step="iter", train_loss="loss", others={"lr": "rate"}), time="unix")
DATA = (
    b'\xef\xbb\xbfunix,iter,"loss",rate\r\n10.5,1,3.25,1e-3\r\n11.5,2,,1e-3\r\n12.5,3,2.0,\r\n,4,nan,2e-3\r\ntorn,5,1'
)
WHOLE = [
    (10.5, {"step": 1.0, "train_loss": 3.25, "lr": 1e-3}),
    (11.5, {"step": 2.0, "lr": 1e-3}),
    (12.5, {"step": 3.0, "train_loss": 2.0}),
    (None, {"step": 4.0, "lr": 2e-3}),
]


@given(st.lists(st.integers(0, len(DATA)), max_size=8))
def test_it_does_not_depend_on_how_it_is_read(cuts: list[int]) -> None:
    reader, ends = CsvReader(FILE), [0, *sorted(cuts), len(DATA)]
    found = [it for a, b in itertools.pairwise(ends) for it in reader.read(DATA[a:b])]
    assert found == WHOLE
    assert reader.missing == ""


def test_a_file_that_existed_has_its_header_only() -> None:
    reader = CsvReader(FILE)
    reader.begin(DATA)
    assert list(reader.read(b"20,9,1.0,0\n")) == [(20.0, {"step": 9.0, "train_loss": 1.0, "lr": 0.0})]


def test_a_header_that_comes_again_is_no_step() -> None:
    reader = CsvReader(CsvFile("x", Sources(step="step", train_loss="loss")))
    assert list(reader.read(b"step,loss\n1,3\nloss,step\n2,2\n")) == [
        (None, {"step": 1.0, "train_loss": 3.0}),
        (None, {"step": 2.0, "train_loss": 2.0}),
    ]


def test_a_column_that_is_missing_is_named() -> None:
    reader = CsvReader(FILE)
    assert list(reader.read(b"unix,iter,rate\n1,1,1\n")) == [(1.0, {"step": 1.0, "lr": 1.0})]
    assert reader.missing == "loss"


@given(st.binary(max_size=300))
def test_anything_is_read_without_an_error(data: bytes) -> None:
    for reader in (CsvReader(FILE), CallReader()):
        assert all("step" in values for _, values in reader.read(data))


def test_a_line_without_an_end_takes_no_memory() -> None:
    for reader in (CsvReader(FILE), CallReader()):
        list(reader.read(b"iter,loss\n"))
        for _ in range(100):
            assert list(reader.read(b"9" * 65536)) == []
        assert list(reader.read(b"\n")) == []
        assert len(reader._rest) == 0


def test_calls() -> None:
    lines = b'{"t": 5.5, "step": 1, "train_loss": 2, "name": "x"}\n[1]\n{"step": "a"}\n{"step": 2}\n{"ste'
    assert list(CallReader().read(lines)) == [(5.5, {"step": 1.0, "train_loss": 2.0}), (None, {"step": 2.0})]
