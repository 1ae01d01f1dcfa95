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
LOSS = [
    (1795377456.1196404, 1, 3.0),
    (1795377456.170877, 2, 1.5),
    (1795377456.2212117, 3, 1.0),
    (1795377456.2753863, 4, 0.75),
    (1795377456.326884, 5, 0.6000000238418579),
]
TOKENS = [
    (1795377456.119672, 1, 4096.0),
    (1795377456.170966, 2, 8192.0),
    (1795377456.2212884, 3, 12288.0),
    (1795377456.2754033, 4, 16384.0),
    (1795377456.326944, 5, 20480.0),
]


def test_crc32c_of_rfc_3720() -> None:
    """The test vectors of appendix B.4, masked."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)):
        assert masked_crc(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_scalars_of_a_real_file() -> None:
    reader = EventReader()
    found = list(reader.read(CAPTURED))
    assert reader.damage == ""
    assert [(it.wall_s, it.step, it.value) for it in found if it.tag == "Loss/train"][:5] == LOSS
    assert [(it.wall_s, it.step, it.value) for it in found if it.tag == "tokens"] == TOKENS
    assert [(it.step, it.value) for it in found if it.tag == "Loss/train"][5:] == [(6, 0.5)], "as a tensor"
    assert {it.tag for it in found} == {"Loss/train", "tokens"}, "no text, no histogram"


@given(st.lists(st.integers(0, len(CAPTURED)), max_size=20))
def test_it_does_not_depend_on_how_it_is_read(cuts: list[int]) -> None:
    reader, whole = EventReader(), list(EventReader().read(CAPTURED))
    ends = [0, *sorted(cuts), len(CAPTURED)]
    found: list[Scalar] = []
    for begin, end in itertools.pairwise(ends):
        found += reader.read(CAPTURED[begin:end])
    assert found == whole


@pytest.mark.parametrize("at", [0, 5, 9, 20, 60])
def test_damage_ends_a_file(at: int) -> None:
    reader = EventReader()
    list(reader.read(CAPTURED[:at] + bytes([CAPTURED[at] ^ 1]) + CAPTURED[at + 1 :]))
    assert "checksum" in reader.damage
    assert list(reader.read(CAPTURED)) == []


def test_a_length_without_end_takes_no_memory() -> None:
    length = (1 << 40).to_bytes(8, "little")
    reader = EventReader()
    assert list(reader.read(length + masked_crc(length).to_bytes(4, "little"))) == []
    assert "bytes" in reader.damage


@given(st.binary(max_size=200))
def test_anything_in_a_record_is_read_without_an_error(content: bytes) -> None:
    length = len(content).to_bytes(8, "little")
    crc = [masked_crc(it).to_bytes(4, "little") for it in (length, content)]
    reader = EventReader()
    for scalar in reader.read(length + crc[0] + content + crc[1]):
        assert isinstance(scalar, Scalar)
