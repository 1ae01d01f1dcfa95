"""Codecs of what replicas exchange, against their definitions: levels, bytes, bounds; for any length and value."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
import torch
from builders.torch_threads import one_thread
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed_agents.exchange import codec

from testbed.core.training import codec_bytes
from testbed.core.training.layout import Tensor

__all__ = ["one_thread"]  # of every test here

DENSE = [
    codec.Float32(),
    codec.BFloat16(),
    codec.Int8(),
    codec.Int8(stochastic=True),
    codec.E3M0(),
    codec.E3M0(stochastic=True),
]
SPARSE = [codec.TopK(), codec.TopK(bits=32), codec.TopK(keep=1), codec.TopK(keep=4096), codec.TopK(keep=123, bits=2)]
CODECS = DENSE + SPARSE
LENGTHS = [0, 1, 2, 3, 255, 256, 257, 511, 4095, 4096, 4097, 8192, 9000]


def _values(length: int, seed: int = 0) -> torch.Tensor:
    """Return values over many orders of magnitude, a few of them zeros."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(length, generator=generator) * 10.0 ** (
        6 * torch.rand(length, generator=generator) - 6  # from 1e-6 to 1
    )
    return values * (torch.rand(length, generator=generator) > 0.05)


numbers = st.floats(min_value=-(2.0**120), max_value=2.0**120, width=32)
"""Denormal numbers included."""


def test_code_has_the_stated_size_and_errors_are_within_the_bound() -> None:
    for it, length in itertools.product(CODECS, LENGTHS):
        values = _values(length)
        code = it.encode(values, torch.Generator().manual_seed(1))
        assert code.dtype == torch.uint8
        assert code.numel() == it.bytes(length), (it, length)
        decoded = it.decode(code, length)
        assert decoded.dtype == torch.float32
        assert decoded.shape == (length,)
        assert ((decoded - values).abs() <= it.bound(values)).all(), (it, length)


@given(st.lists(numbers, max_size=600), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_errors_of_any_finite_values_are_within_the_bound(listed: list[float], seed: int) -> None:
    values = torch.tensor(listed, dtype=torch.float32)
    for it in CODECS:
        decoded = it.round_trip(values, torch.Generator().manual_seed(seed))
        assert ((decoded - values).abs() <= it.bound(values)).all(), it
        assert (decoded * values >= 0).all(), f"{it} changed a sign"


@given(st.integers(0, 100_000), st.integers(1, 4096))
@settings(max_examples=60, deadline=None)
def test_twin_states_the_same_bytes(elements: int, keep: int) -> None:
    for bits in codec.BITS:
        assert codec_bytes.dense_bytes(elements, bits) == codec.of_bits(bits).bytes(elements)
    runs = list(codec_bytes.block_runs([Tensor("vector", elements, rows=elements)]))
    for bits in (2, 32):
        assert codec_bytes.top_k_bytes(runs, keep, bits) == codec.TopK(keep, bits).bytes(elements)


def test_bytes_of_the_formats() -> None:
    assert codec.TopK().bytes(4096) == 96 + 16 + 4  # 64 positions of 12 bits, 64 values of 2 bits, 2 bfloat16
    assert codec.TopK(bits=32).bytes(4096) == 96 + 256
    assert codec.E3M0().bytes(256) == 128 + 4
    assert codec.Int8().bytes(257) == 257 + 8


def test_int8_codes_are_multiples_of_a_127th_of_the_largest() -> None:
    values = torch.tensor([127.0, -127.0, 1.4, -2.6, 0.0, 63.5])
    code = codec.Int8().encode(values)
    assert struct.unpack("<f", bytes(code[:4].tolist())) == (1.0,)
    assert [it - 256 * (it > 127) for it in code[4:].tolist()] == [127, -127, 1, -3, 0, 64]


def test_e3m0_codes_are_zero_and_powers_of_two_of_the_largest() -> None:
    levels = [0.0, *(2.0**-it for it in range(6, -1, -1))]
    values = torch.tensor([4 * it for it in levels] + [-4 * it for it in levels[1:]])
    assert torch.equal(codec.E3M0().round_trip(values), values)
    # Between two levels the nearer one; a magnitude below half of the smallest level is 0.
    values = torch.tensor([4.0, 2.9, 3.1, -0.74, -0.76, 4 / 129, 4 / 127])
    assert codec.E3M0().round_trip(values).tolist() == [4.0, 2.0, 4.0, -0.5, -1.0, 0.0, 0.0625]


@pytest.mark.parametrize("it", [codec.Int8(stochastic=True), codec.E3M0(stochastic=True)], ids=repr)
def test_stochastic_rounding_is_unbiased(it: codec.Codec) -> None:
    values, draws = _values(256), 4000
    generator = torch.Generator().manual_seed(2)
    mean = torch.zeros(256, dtype=torch.float64)
    for _ in range(draws):
        mean += it.round_trip(values, generator).double()
    # An error is within ± the bound, with a mean of 0: Hoeffding's inequality, 256 values, one failure in 10^6.
    most = it.bound(values).double() * math.sqrt(2 * math.log(2 * 256 * 1e6) / draws)
    assert ((mean / draws - values.double()).abs() <= most).all()
    # Rounding to the nearest of the same values is outside of that: the test can fail.
    nearest = type(it)().round_trip(values).double()
    assert not ((nearest - values.double()).abs() <= most).all()


def test_top_k_sends_the_largest_of_each_chunk() -> None:
    values = _values(4096 * 2 + 1000, seed=3)
    for it, at in itertools.product(SPARSE, (0, 4096, 8192)):
        decoded = it.round_trip(values)
        chunk, sent = values[at : at + 4096], decoded[at : at + 4096]
        kept = math.ceil(it.keep * chunk.numel() / 4096)
        ranked = sorted((abs(number) for number in chunk.tolist()), reverse=True)
        # With 2 bits, a zero among the largest has the smaller magnitude.
        assert sent.count_nonzero() == (kept if it.bits == 2 else sum(number > 0 for number in ranked[:kept]))
        assert chunk[sent != 0].abs().min() >= ranked[kept - 1]
        if it.bits == 32:
            assert torch.equal(sent[sent != 0], chunk[sent != 0])
        else:
            assert len(sent[sent != 0].abs().unique()) <= 2


@given(st.lists(numbers, min_size=1, max_size=300), st.integers(1, 4096))
@settings(max_examples=60, deadline=None)
def test_top_k_contracts(listed: list[float], keep: int) -> None:
    """What error feedback needs: the residual's squares add up to no more than the accumulator's."""
    values = torch.tensor(listed, dtype=torch.float32)
    residual = (values - codec.TopK(keep).round_trip(values)).double()
    # The squares of numbers below 2^-126 may grow by rounding, but not by more than theirs.
    assert residual.square().sum() <= values.double().square().sum() * (1 + 1e-6) + len(listed) * 2.0**-250


def test_values_that_are_not_finite_are_not_hidden() -> None:
    for bad in (math.inf, -math.inf, math.nan):
        values = _values(9000, seed=4)
        values[300] = bad
        for it in CODECS:
            decoded = it.round_trip(values)
            assert not decoded[:4096].isfinite().all(), it
            assert decoded[4096:].isfinite().all(), it  # only the block or chunk of the value
        assert codec.Int8().round_trip(values)[256:512].isnan().all()
        assert codec.E3M0().round_trip(values)[256:512].isnan().all()


def test_zeros_denormals_and_negative_zeros() -> None:
    tiny = torch.tensor([1e-45, -1e-45, 1e-40, 0.0, -0.0, 1e-39])
    for it in CODECS:
        assert not it.round_trip(torch.zeros(5000)).any(), it
        assert ((it.round_trip(tiny) - tiny).abs() <= 2.0**-126).all(), it


def test_codes_do_not_alias_values_and_are_the_same_again() -> None:
    values = _values(5000, seed=5)
    for it in CODECS:
        code = it.encode(values, torch.Generator().manual_seed(6))
        again = it.encode(values.clone(), torch.Generator().manual_seed(6))
        assert torch.equal(code, again), it
        kept = it.decode(code, 5000)
        code.zero_()
        assert torch.equal(kept, it.decode(again, 5000)), it
        assert torch.equal(values, _values(5000, seed=5))


def test_errors_name_what_was_expected() -> None:
    with pytest.raises(ValueError, match="expected a vector of float32"):
        codec.Int8().encode(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="expected a code of 132 bytes for 256 values"):
        codec.E3M0().decode(torch.zeros(133, dtype=torch.uint8), 256)
    with pytest.raises(ValueError, match="expected 32, 16, 8 or 4 bits"):
        codec.of_bits(5)
    with pytest.raises(ValueError, match="expected 1 to 4096 kept"):
        codec.TopK(keep=0)
    for call in (lambda: codec_bytes.dense_bytes(5, 7), lambda: codec_bytes.top_k_bytes([(5, 1)], 1, 8)):
        with pytest.raises(ValueError, match="bits a value"):
            call()
