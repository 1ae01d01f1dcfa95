"""TensorBoard's event files: one that torch's SummaryWriter has written, whole, in parts and damaged.

The expected values are those that TensorBoard's own EventAccumulator (2.21) returns for the same file.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.workload.progress_events import EventReader, Scalar, masked_crc

CAPTURED = (Path(__file__).parent / "captured" / "events.out.tfevents.1").read_bytes()
LOSSES = {1795377456.1196404: 3.0, 1795377456.170877: 1.5, 1795377456.2212117: 1.0, 1795377456.2753863: 0.75}
LOSSES |= {1795377456.326884: 0.6000000238418579}
TOKENS = [1795377456.119672, 1795377456.170966, 1795377456.2212884, 1795377456.2754033, 1795377456.326944]


def test_crc32c_of_rfc_3720() -> None:
    """The test vectors of appendix B.4, masked."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)):
        assert masked_crc(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def read(*pieces: bytes) -> tuple[list[Scalar], str]:
    """Return the scalars of a file that is read in pieces, and the damage."""
    reader = EventReader()
    return [scalar for piece in pieces for scalar in reader.read(piece)], reader.damage


def test_scalars_of_a_real_file() -> None:
    scalars, damage = read(CAPTURED)
    assert damage == ""
    points: dict[str, list[tuple[float, int, float]]] = {"Loss/train": [], "tokens": []}
    for scalar in scalars:  # no text, no histogram
        points[scalar.tag].append((scalar.wall_s, scalar.step, scalar.value))
    assert points["Loss/train"][:5] == [(t, step, value) for step, (t, value) in enumerate(LOSSES.items(), 1)]
    assert points["tokens"] == [(t, step, 4096.0 * step) for step, t in enumerate(TOKENS, 1)]
    assert [point[1:] for point in points["Loss/train"][5:]] == [(6, 0.5)], "as a tensor"


@given(st.lists(st.integers(0, len(CAPTURED)), max_size=20))
def test_scalars_do_not_depend_on_how_a_file_is_read(cuts: list[int]) -> None:
    ends = itertools.pairwise([0, *sorted(cuts), len(CAPTURED)])
    assert read(*(CAPTURED[begin:end] for begin, end in ends)) == read(CAPTURED)


@pytest.mark.parametrize("place", [0, 5, 9, 20, 60])
def test_damage_ends_a_file(place: int) -> None:
    damaged = CAPTURED[:place] + bytes([CAPTURED[place] ^ 1]) + CAPTURED[place + 1 :]
    before, damage = read(damaged)
    assert "checksum" in damage
    assert read(damaged, CAPTURED) == (before, damage)


def length_and_crc(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    return data + masked_crc(data).to_bytes(4, "little")


def test_a_length_without_end_takes_no_memory() -> None:
    scalars, damage = read(length_and_crc(1 << 40))
    assert scalars == []
    assert "bytes" in damage


@given(st.binary(max_size=200))
def test_anything_in_a_record_is_read_without_an_error(content: bytes) -> None:
    scalars, _ = read(length_and_crc(len(content)) + content + masked_crc(content).to_bytes(4, "little"))
    assert all(isinstance(scalar, Scalar) for scalar in scalars)
