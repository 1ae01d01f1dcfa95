"""Checksums and samples of tensors, as the records have them; the checkers read them without torch."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

try:  # the same CRC-32 by carry-less multiplication: 14 times as fast in a cache, 5 times out of memory
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

__all__ = ["ELEMENTS", "ELEMENTS_DRAWN", "crc32", "elements", "hexadecimal", "positions"]

ELEMENTS, ELEMENTS_DRAWN = 8, 64
"""Number of elements recorded per reduction, otherwise and in a selected step."""

_WIRE = {torch.float64: "<f8", torch.float32: "<f4", torch.bfloat16: "<f4", torch.float16: "<f4"}
"""Encoding of elements, which is exact. Other types are written as 64-bit integers."""

_WORDS = struct.Struct("<8Q")

_IN_NUMPY = (torch.float32, torch.float64, torch.int64, torch.uint8)


def crc32(tensors: Iterable[Tensor]) -> str:
    """Return the CRC-32 of the concatenated bytes, in hexadecimal; misses an accidental difference 1 in 4e9 times."""
    value = 0
    for tensor in tensors:
        if tensor.numel():
            flat = tensor.detach().contiguous()
            if flat.dtype not in _IN_NUMPY:
                flat = flat.reshape(-1).view(torch.uint8)
            value = _crc32(flat.numpy().data, value)
    return f"{value:08x}"


def positions(seed: int, group: str, sequence: int, count_of: int, count: int) -> list[int]:
    """Return which of ``count_of`` elements of a reduction are recorded; the same on all ranks.

    Distinct; fewer are the first ones of more, so ranks that record another number can still be compared.
    """
    key = f"{seed}/{group}/{sequence}".encode()
    if count_of <= 2 * ELEMENTS_DRAWN:
        return random.Random(zlib.crc32(key)).sample(range(count_of), count_of)[:count]
    # A digest costs a tenth of seeding a generator, which is done for each operation.
    chosen: dict[int, None] = {}
    block = 0
    while len(chosen) < count:
        digest = hashlib.blake2b(key, salt=block.to_bytes(4, "little")).digest()
        chosen.update(dict.fromkeys(word % count_of for word in _WORDS.unpack(digest)))
        block += 1
    return list(chosen)[:count]


def elements(tensors: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    """Return the elements at these positions of the concatenated tensors, copied."""
    if len(tensors) == 1:
        flat = tensors[0].detach().reshape(-1)
        if flat.dtype in _IN_NUMPY:
            return (
                torch.from_numpy(flat.numpy().take(places)) if places else flat[:0].clone()
            )  # a quarter of torch's time
        return flat[list(places)]
    by_place: dict[int, Tensor] = {}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.numel()
        if within := [position for position in places if begin <= position < end]:
            flat = tensor.detach().reshape(-1)
            by_place.update(zip(within, flat[[position - begin for position in within]], strict=True))
        begin = end
    return torch.stack([by_place[position] for position in places]) if places else torch.zeros(0)


def hexadecimal(tensor: Tensor) -> str:
    """Encode little-endian in hexadecimal, exactly: float64 as such, other floats as float32, the rest as int64."""
    if tensor.dtype == torch.float32 and sys.byteorder == "little":
        return tensor.detach().numpy().tobytes().hex()
    wire = _WIRE.get(tensor.dtype, "<i8")
    wide = tensor.float() if wire == "<f4" else tensor
    return wide.detach().numpy().astype(wire).tobytes().hex()
