"""The agents' corpus: the same on every rank, and said plainly when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the training agents need torch")

from testbed_agents.data import Corpus, CorpusError, Windows, load  # noqa: E402


def content(corpus: Corpus) -> bytes:
    return bytes(corpus.text.tolist())


def windows(corpus: Corpus, rank: int = 0, seed: int = 0, batch: int = 3, context: int = 8) -> Windows:
    return Windows(corpus, batch=batch, context=context, seed=seed, rank=rank)


def test_standard_library_is_python_text_and_capped() -> None:
    corpus = load(None, cap_bytes=300_000)
    assert len(corpus) == 300_000
    assert b"\ndef " in content(corpus)
    assert "site-packages" not in corpus.name


def test_a_file_is_taken_as_it_is_binary_too(tmp_path: Path) -> None:
    raw = bytes(range(256)) + "straße".encode("latin-1")
    (tmp_path / "some.bin").write_bytes(raw)
    assert content(load(tmp_path / "some.bin")) == raw


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name, text in {"b.txt": "second ", "a.txt": "first ", "sub/c.txt": "third"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert content(load(tmp_path)) == b"first second third"
    assert content(load(tmp_path, cap_bytes=8)) == b"first se"


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
