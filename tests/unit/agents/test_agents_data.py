"""The agents' corpus: the same on every rank, and said plainly when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from builders.tables import table
from testbed_agents.training.data import Corpus, CorpusError, Windows, load


def content(corpus: Corpus) -> bytes:
    return bytes(corpus.text.tolist())


def windows(corpus: Corpus, rank: int = 0, seed: int = 0, batch: int = 3, context: int = 8) -> Windows:
    return Windows(corpus, batch=batch, context=context, seed=seed, rank=rank)


def test_standard_library_is_python_text_and_capped() -> None:
    corpus = load(None, cap_bytes=300_000)
    assert len(corpus) == 300_000
    assert b"\ndef " in content(corpus)
    assert "site-packages" not in corpus.name


@table(
    "files, expected",
    {
        "a file is taken as it is, binary too": (
            {"": bytes(range(256)) + "straße".encode("latin-1")},
            bytes(range(256)) + "straße".encode("latin-1"),
        ),
        "a folder is read in the order of its paths": (
            {"/b.txt": b"second ", "/a.txt": b"first ", "/sub/c.txt": b"third"},
            b"first second third",
        ),
    },
)
def test_all_bytes_are_loaded(tmp_path: Path, files: dict[str, bytes], expected: bytes) -> None:
    for name, text in files.items():
        file = Path(f"{tmp_path}/corpus{name}")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text)
    assert content(load(tmp_path / "corpus")) == expected
    assert content(load(tmp_path / "corpus", cap_bytes=8)) == expected[:8]


def test_a_fifo_in_a_folder_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("text")
    assert content(load(tmp_path)) == b"text"


def test_no_text_and_no_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"is empty: name another"):
        load(tmp_path)
    with pytest.raises(CorpusError, match=r"cannot read .*absent.*: No such file"):
        load(tmp_path / "absent")


def test_too_short_a_text_is_said_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("12345678")
    with pytest.raises(CorpusError, match=r"has 8 bytes.* at least 9"):
        windows(load(tmp_path / "short"))


def test_a_text_of_one_window_is_enough(tmp_path: Path) -> None:
    (tmp_path / "just").write_bytes(b"123456789")
    inputs, targets = windows(load(tmp_path / "just"), batch=2).draw()
    assert [bytes(row.tolist()) for row in inputs] == [b"12345678"] * 2
    assert [bytes(row.tolist()) for row in targets] == [b"23456789"] * 2


def test_windows_are_pieces_of_the_text_one_byte_apart() -> None:
    corpus = load(None, cap_bytes=50_000)
    inputs, targets = windows(corpus, context=32).draw()
    assert inputs.shape == targets.shape == (3, 32)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    for row in inputs:
        assert bytes(row.tolist()) in content(corpus)


def test_rank_and_seed_decide_what_is_drawn() -> None:
    corpus = load(None, cap_bytes=50_000)

    def drawn(rank: int, seed: int) -> list[list[int]]:
        it = windows(corpus, rank=rank, seed=seed, context=32)
        return [it.draw()[0].flatten().tolist() for _ in range(3)]

    assert drawn(0, 0) == drawn(0, 0)
    assert drawn(0, 0) != drawn(1, 0)
    assert drawn(0, 0) != drawn(0, 1)
    first, second, _ = drawn(0, 0)
    assert first != second
