"""Blocks of tensors against a reference in loops, and against the twin's runs of blocks, for many shapes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import replica_reference
from testbed_agents.exchange.codec import TopK
from testbed_agents.strategies.sparse_loco import between, block_order

from testbed.core.training import codec_bytes
from testbed.core.training.layout import Tensor

SIZES = st.one_of(st.integers(1, 200), st.sampled_from([63, 64, 65, 127, 128, 129, 192]))
SHAPES = st.lists(
    st.one_of(st.tuples(SIZES, SIZES), st.tuples(st.integers(1, 10_000)), st.tuples(SIZES, st.just(1))),
    min_size=1,
    max_size=5,
)
Shapes = list[tuple[int, ...]]


def tensors(shapes: Shapes) -> list[Tensor]:
    """Return what the twin knows of tensors of these shapes."""
    return [Tensor(str(index), math.prod(it), rows=it[0]) for index, it in enumerate(shapes)]


def spread(runs: list[codec_bytes.Run]) -> list[int]:
    return [length for length, count in runs for _ in range(count)]


@given(SHAPES)
@settings(max_examples=40, deadline=None)
def test_block_order_is_that_of_a_reference(shapes: Shapes) -> None:
    order, lengths = block_order(torch.empty(it) for it in shapes)
    expected = replica_reference.blocks(shapes)
    assert list(lengths) == [*map(len, expected)]
    assert order.tolist() == [*itertools.chain(*expected)]


@given(SHAPES, st.integers(1, 7), st.integers(1, 4096), st.sampled_from([2, 32]))
@settings(max_examples=40, deadline=None)
def test_the_twin_states_the_blocks_and_bytes_of_each_slice(shapes: Shapes, slices: int, keep: int, bits: int) -> None:
    _, lengths = block_order(torch.empty(it) for it in shapes)
    runs = list(codec_bytes.block_runs(tensors(shapes)))
    size = -(-sum(lengths) // slices)
    whole: list[int] = []
    for begin in range(0, slices * size, size):
        blocks, cut = between(lengths, begin, begin + size), list(codec_bytes.slice_runs(runs, begin, begin + size))
        assert list(blocks) == spread(cut)
        values = torch.randn(size)
        code = TopK(keep, bits, blocks).encode(values)
        assert len(code) == codec_bytes.top_k_bytes(cut, keep, bits)
        assert TopK(keep, bits, blocks).decode(code, size).shape == values.shape
        whole += blocks
    assert sum(whole) == sum(lengths), "each value is in one slice"


@pytest.mark.parametrize("bits", [2, 32])
@given(shape=st.tuples(SIZES, SIZES), keep=st.integers(1, 4096))
@settings(max_examples=30, deadline=None)
def test_the_largest_of_each_block_of_a_matrix_are_sent(bits: int, shape: tuple[int, int], keep: int) -> None:
    matrix = torch.randn(shape)
    order, lengths = block_order([matrix])
    codec = TopK(keep, bits, lengths)
    flat = matrix.reshape(-1)
    decoded = torch.empty_like(flat)
    decoded[order] = codec.round_trip(flat[order])
    assert ((decoded - flat).abs()[order] <= codec.bound(flat[order])).all()
    if min(shape) == 1:
        return  # a vector
    sent = decoded.view(shape)
    for top, left in itertools.product(range(0, shape[0], 64), range(0, shape[1], 64)):
        block, got = (it[top : top + 64, left : left + 64].reshape(-1) for it in (matrix, sent))
        kept = math.ceil(keep * len(block) / 4096)
        assert got.count_nonzero() == kept
        assert got[block.abs().topk(kept).indices].count_nonzero() == kept, "the largest ones"


def test_values_after_the_last_block_are_not_sent() -> None:
    codec = TopK(4096, 32, (3, 2))
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert codec.round_trip(values).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 0.0]
    assert TopK(4096, 32, ()).encode(values).numel() == 0
    assert TopK(4096, 32, ()).round_trip(values).tolist() == [0.0] * 6


def test_blocks_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="expected blocks of 1 to 4096 values, got 1 to 4097"):
        TopK(blocks=(1, 4097))
    with pytest.raises(ValueError, match="expected at least the 5 values of the blocks, got 4"):
        TopK(blocks=(3, 2)).encode(torch.zeros(4))
