"""Codecs of what replicas exchange: tensors to bytes and back. Pure tensors: no process group, no state.

========  ==============================================  =============================  ======================
codec     a value                                         bytes of n values              |x - decoded|
========  ==============================================  =============================  ======================
Float32   itself                                          4 n                            0
BFloat16  8 exponent and 7 mantissa bits                  2 n                            2^-8 |x|
Int8      1 of 255 levels; block of 256 with a scale      n + 4 ceil(n/256)              scale/2
E3M0      0 or 7 powers of two and a sign; the same       ceil(n/2) + 4 ceil(n/256)      |x|/3, or scale/128
TopK      the k largest of a block with 2 bits, or 32     4 c + ceil(3K/2) + ceil(K/4)   the value, if not sent
========  ==============================================  =============================  ======================

c blocks of up to 4096 values, K values kept in all. Int8 and E3M0 round to the nearest level, or stochastically, which
is unbiased and at most doubles (Int8) or triples (E3M0) the bound. E3M0 is the format of Streaming DiLoCo's outer
gradients (arXiv:2501.18512), TopK that of SparseLoCo (arXiv:2508.15706): 64 of 4096 values with positions of 12 bits
are 0.21875 bits a value; with the two magnitudes of a block 116 bytes a block, 0.2266 bits a value.

Whoever sends a coded value must go on with its decoded value as well: else replicas drift apart.

A value that is not finite is not hidden: Int8 and E3M0 decode its whole block to NaN, TopK at least one value of its
block to one that is not finite. Below the smallest normal number (2^-126) bounds hold up to that number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["BITS", "E3M0", "BFloat16", "Codec", "Float32", "Int8", "TopK", "of_bits"]

BLOCK = 256
"""Values that share a scale."""

CHUNK = 4096
"""Values of the largest block among which TopK selects; a position in it has 12 bits."""

SMALLEST_NORMAL = 2.0**-126

_ROUNDING = 1 + 2.0**-15
"""Of a bound: the division by the scale and the product with it are rounded as well."""


class Codec(ABC):
    """Encodes a vector of float32 as bytes. ``exact``: and loses nothing."""

    exact: ClassVar[bool] = False

    @abstractmethod
    def bytes(self, elements: int) -> int:
        """Return the size of the code of ``elements`` values."""

    @abstractmethod
    def encode(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the code of ``values``, (elements,) float32: (bytes(elements),) uint8.

        ``generator``: of stochastic rounding. Raises ValueError for another shape or type.
        """

    @abstractmethod
    def decode(self, code: Tensor, elements: int) -> Tensor:
        """Return the values of ``code``: (elements,) float32, a new tensor. Raises ValueError for another size."""

    @abstractmethod
    def bound(self, values: Tensor) -> Tensor:
        """Return the largest possible |value - decoded value| of each of ``values``, which are finite: (elements,)."""

    def round_trip(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return what the receiver of ``values`` decodes: (elements,) float32."""
        return self.decode(self.encode(values, generator), values.numel())

    def _checked(self, values: Tensor) -> Tensor:
        if values.dtype != torch.float32 or values.dim() != 1:
            raise ValueError(f"expected a vector of float32, got {tuple(values.shape)} of {values.dtype}")
        return values.detach().contiguous()

    def _checked_code(self, code: Tensor, elements: int) -> Tensor:
        if code.dtype != torch.uint8 or code.dim() != 1 or code.numel() != self.bytes(elements):
            raise ValueError(
                f"expected a code of {self.bytes(elements)} bytes for {elements} values, "
                f"got {tuple(code.shape)} of {code.dtype}"
            )
        return code


@dataclass(frozen=True)
class Float32(Codec):
    """The values themselves."""

    exact: ClassVar[bool] = True

    def bytes(self, elements: int) -> int:
        return 4 * elements

    def encode(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._checked(values).clone().view(torch.uint8)

    def decode(self, code: Tensor, elements: int) -> Tensor:
        return _as(self._checked_code(code, elements), torch.float32)

    def bound(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values)


@dataclass(frozen=True)
class BFloat16(Codec):
    """The upper half of a float32, rounded to the nearest. Values above 3.39e38 become infinite."""

    def bytes(self, elements: int) -> int:
        return 2 * elements

    def encode(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._checked(values).to(torch.bfloat16).view(torch.uint8)

    def decode(self, code: Tensor, elements: int) -> Tensor:
        return _as(self._checked_code(code, elements), torch.bfloat16).to(torch.float32)

    def bound(self, values: Tensor) -> Tensor:
        return values.abs() * 2.0**-8 + SMALLEST_NORMAL


class _Scaled(Codec):
    """Codes of a block of values relative to its scale: the scales as float32, then the codes."""

    stochastic: bool

    def encode(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        checked = self._checked(values)
        blocks = _padded(checked, BLOCK)
        scale = self._scale(blocks)
        # Where nothing but zeros is, any divisor will do; where something is not finite, the scale says so.
        divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
        relative = torch.nan_to_num(blocks / divisor[:, None], nan=0.0, posinf=0.0, neginf=0.0)
        codes = self._codes(relative, generator).reshape(-1)[: checked.numel()]
        return torch.cat((scale.view(torch.uint8), self._packed(codes)))

    def decode(self, code: Tensor, elements: int) -> Tensor:
        self._checked_code(code, elements)
        blocks = _count(elements, BLOCK)
        scale = _as(code[: 4 * blocks], torch.float32)
        values = _padded(self._relative(code[4 * blocks :], elements), BLOCK)
        return (values * scale[:, None]).reshape(-1)[:elements]

    def _scale(self, blocks: Tensor) -> Tensor:
        scale = blocks.abs().amax(1) / self._largest if blocks.numel() else blocks.new_zeros(0)
        return torch.where(scale.isfinite(), scale, torch.full_like(scale, torch.nan))

    def _scale_of_each(self, values: Tensor) -> Tensor:
        return self._scale(_padded(values, BLOCK)).repeat_interleave(BLOCK)[: values.numel()]

    _largest: float
    """Largest level, which the largest value of a block is coded as."""

    @abstractmethod
    def _codes(self, relative: Tensor, generator: torch.Generator | None) -> Tensor: ...

    @abstractmethod
    def _packed(self, codes: Tensor) -> Tensor: ...

    @abstractmethod
    def _relative(self, packed: Tensor, elements: int) -> Tensor: ...


@dataclass(frozen=True)
class Int8(_Scaled):
    """Multiples, -127 to 127, of a 127th of the block's largest magnitude."""

    stochastic: bool = False

    _largest = 127.0

    def bytes(self, elements: int) -> int:
        return elements + 4 * _count(elements, BLOCK)

    def bound(self, values: Tensor) -> Tensor:
        scale = self._scale_of_each(values)
        return scale * ((1.0 if self.stochastic else 0.5) * _ROUNDING) + SMALLEST_NORMAL

    def _codes(self, relative: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.stochastic:
            low = relative.floor()
            level = low + (torch.rand(relative.shape, generator=generator) < relative - low)
        else:
            level = relative.round()
        return level.clamp_(-127, 127).to(torch.int8)

    def _packed(self, codes: Tensor) -> Tensor:
        return codes.contiguous().view(torch.uint8)

    def _relative(self, packed: Tensor, elements: int) -> Tensor:
        return packed.contiguous().view(torch.int8).to(torch.float32)


_LEVELS = torch.tensor([0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0])
_MIDPOINTS = (_LEVELS[1:] + _LEVELS[:-1]) / 2


@dataclass(frozen=True)
class E3M0(_Scaled):
    """A sign and 3 bits of exponent: 0, or 2^-6 to 2^0 of the block's largest magnitude."""

    stochastic: bool = False

    _largest = 1.0

    def bytes(self, elements: int) -> int:
        return _count(elements, 2) + 4 * _count(elements, BLOCK)

    def bound(self, values: Tensor) -> Tensor:
        scale, magnitude = self._scale_of_each(values), values.abs()
        near = torch.maximum(magnitude, scale / 64) if self.stochastic else torch.maximum(magnitude / 3, scale / 128)
        return near * _ROUNDING + SMALLEST_NORMAL

    def _codes(self, relative: Tensor, generator: torch.Generator | None) -> Tensor:
        magnitude = relative.abs()
        if self.stochastic:
            low = torch.bucketize(magnitude, _LEVELS[1:], right=True)
            high = (low + 1).clamp_(max=7)
            gap = (_LEVELS[high] - _LEVELS[low]).clamp_(min=_LEVELS[1].item())
            up = torch.rand(magnitude.shape, generator=generator) < (magnitude - _LEVELS[low]) / gap
            level = torch.where(up, high, low)
        else:
            level = torch.bucketize(magnitude, _MIDPOINTS, right=True)
        return (level + 8 * (relative < 0)).to(torch.uint8)

    def _packed(self, codes: Tensor) -> Tensor:
        pairs = _padded(codes, 2)
        return pairs[:, 0] | (pairs[:, 1] << 4)

    def _relative(self, packed: Tensor, elements: int) -> Tensor:
        codes = torch.stack((packed & 15, packed >> 4), 1).reshape(-1)[:elements].long()
        magnitude = _LEVELS[codes & 7]
        return torch.where(codes >= 8, -magnitude, magnitude)


@dataclass(frozen=True)
class TopK(Codec):
    """The ``keep`` of 4096 largest magnitudes of each block; a smaller block keeps its share, rounded up.

    ``blocks``: lengths of consecutive blocks, at most 4096 each; values after the last one are not sent. None: chunks
    of 4096, the last of which may be shorter.

    With ``bits`` 2, a value is its sign and one of two magnitudes of its block (bfloat16): the mean of those above the
    mean of all that are kept, and the mean of the others. With 32, it is itself. Decoding others gives 0.

    The code: magnitudes, 12-bit positions, values; each part of all blocks together, the longest blocks first.
    """

    keep: int = 64
    bits: int = 2
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.keep <= CHUNK or self.bits not in (2, 32):
            raise ValueError(f"expected 1 to {CHUNK} kept of {CHUNK} and 2 or 32 bits, got {self.keep} and {self.bits}")
        if self.blocks and not 1 <= min(self.blocks) <= max(self.blocks) <= CHUNK:
            raise ValueError(f"expected blocks of 1 to {CHUNK} values, got {min(self.blocks)} to {max(self.blocks)}")

    def kept(self, elements: int) -> int:
        """Return how many of ``elements`` values are sent."""
        return sum(group.count * group.keep for group in self._groups(elements))

    def bytes(self, elements: int) -> int:
        return sum(self._parts(self._groups(elements)))

    def encode(self, values: Tensor, generator: torch.Generator | None = None) -> Tensor:
        checked = self._checked(values)
        coded = [self._encoded(group.of(checked), group.keep) for group in self._groups(checked.numel())]
        if not coded:
            return checked.new_zeros(0, dtype=torch.uint8)
        positions, magnitudes, codes = (torch.cat([code[part].reshape(-1) for code in coded]) for part in range(3))
        return torch.cat((magnitudes.view(torch.uint8), _packed12(positions), self._packed(codes)))

    def decode(self, code: Tensor, elements: int) -> Tensor:
        groups = self._groups(elements)
        heads, places, _ = self._parts(groups)
        self._checked_code(code, elements)
        if not groups:
            return torch.zeros(elements)
        kept = torch.cat([torch.full((group.count,), group.keep) for group in groups])
        count = int(kept.sum())
        magnitudes = _as(code[:heads], torch.bfloat16).to(torch.float32).view(-1, 2)
        positions = _unpacked12(code[heads : heads + places], count)
        coded = self._unpacked(code[heads + places :], count)
        if self.bits == 2:
            pair = magnitudes.repeat_interleave(kept, 0)
            magnitude = torch.where(coded >= 2, pair[:, 1], pair[:, 0])
            coded = torch.where(coded % 2 == 1, -magnitude, magnitude)
        begins = torch.cat([group.begins for group in groups]).repeat_interleave(kept)
        return torch.zeros(elements).scatter_(0, begins + positions, coded)

    def bound(self, values: Tensor) -> Tensor:
        """Return the largest error: of a value that is not sent, itself; of a value that is, with 2 bits, less.

        A stronger property is what error feedback needs: the squares of the errors add up to no more than those of the
        values (arXiv:1901.09847), because each magnitude is the mean of what it stands for.
        """
        bounds = values.abs()
        for group in self._groups(values.numel()):
            magnitude = group.of(values).abs()
            largest = magnitude.amax(1, keepdim=True)
            least = magnitude.topk(group.keep, 1).values[:, -1:]
            # A value that is sent lies between least and largest, and so does the magnitude that stands for it.
            sent = (largest - least + largest * 2.0**-8) if self.bits == 2 else torch.zeros_like(least)
            bounds[group.places()] = torch.where(magnitude > least, sent, torch.maximum(magnitude, sent))
        return bounds + SMALLEST_NORMAL

    def _parts(self, groups: Sequence[_Blocks]) -> tuple[int, int, int]:
        """Return the bytes of magnitudes, positions and values."""
        kept = sum(group.count * group.keep for group in groups)
        heads = 4 * sum(group.count for group in groups) if self.bits == 2 else 0
        return heads, _count(3 * kept, 2), _count(kept, 4) if self.bits == 2 else 4 * kept

    def _groups(self, elements: int) -> list[_Blocks]:
        """Return the blocks by length, the longest first. Raises ValueError if they have more than ``elements``."""
        lengths = torch.tensor(self._lengths(elements), dtype=torch.int64)
        if (total := int(lengths.sum())) > elements:
            raise ValueError(f"expected at least the {total} values of the blocks, got {elements}")
        begins = lengths.cumsum(0) - lengths
        return [
            _Blocks(length, _count(self.keep * length, CHUNK), begins[lengths == length])
            for length in sorted(set(lengths.tolist()), reverse=True)
        ]

    def _lengths(self, elements: int) -> tuple[int, ...]:
        if self.blocks is not None:
            return self.blocks
        full, remainder = divmod(elements, CHUNK)
        return (CHUNK,) * full + (remainder,) * (remainder > 0)

    def _encoded(self, chunks: Tensor, keep: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return positions, magnitudes and codes of (chunks, length): (chunks, keep), (chunks, 2), (chunks, keep)."""
        positions = chunks.abs().topk(keep, 1).indices.sort(1).values
        values = chunks.gather(1, positions)
        if self.bits == 32:
            return positions, values.new_zeros(0, dtype=torch.bfloat16), values
        size = values.abs().double()
        large = size > size.mean(1, keepdim=True)
        zero = size.new_zeros(())
        upper = torch.where(large, size, zero).sum(1) / large.sum(1).clamp(min=1)
        lower = torch.where(large, zero, size).sum(1) / (~large).sum(1).clamp(min=1)
        magnitudes = torch.stack((lower, upper), 1).float().to(torch.bfloat16)
        return positions, magnitudes, (values < 0).to(torch.uint8) + 2 * large.to(torch.uint8)

    def _packed(self, codes: Tensor) -> Tensor:
        if self.bits == 32:
            return codes.contiguous().view(torch.uint8)
        four = _padded(codes, 4)
        return four[:, 0] | (four[:, 1] << 2) | (four[:, 2] << 4) | (four[:, 3] << 6)

    def _unpacked(self, packed: Tensor, kept: int) -> Tensor:
        if self.bits == 32:
            return _as(packed, torch.float32)
        return torch.stack([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], 1).reshape(-1)[:kept]


@dataclass(frozen=True)
class _Blocks:
    """Blocks of the same ``length`` of a vector, and how many values each keeps. ``begins``: (blocks,) int64."""

    length: int
    keep: int
    begins: Tensor

    @property
    def count(self) -> int:
        return self.begins.numel()

    def of(self, values: Tensor) -> Tensor:
        """Return the blocks of ``values``: (blocks, length)."""
        first, last = int(self.begins[0]), int(self.begins[-1])
        if last - first == (self.count - 1) * self.length:
            return values[first : last + self.length].view(-1, self.length)
        return values[self.places()]

    def places(self) -> Tensor:
        """Return where the values of the blocks are: (blocks, length) int64."""
        return self.begins[:, None] + torch.arange(self.length)


BITS = (32, 16, 8, 4)
"""Bits a value of codecs that send all values."""


def of_bits(bits: int, stochastic: bool = False) -> Codec:
    """Return the codec that sends all values with ``bits`` each. Raises ValueError for others than 32, 16, 8 and 4."""
    match bits:
        case 32:
            return Float32()
        case 16:
            return BFloat16()
        case 8:
            return Int8(stochastic)
        case 4:
            return E3M0(stochastic)
    raise ValueError(f"expected 32, 16, 8 or 4 bits a value, got {bits}")


def _count(elements: int, part_size: int) -> int:
    """Return how many parts of at most ``each`` elements there are."""
    return -(-elements // part_size)


def _padded(values: Tensor, width: int) -> Tensor:
    """Return ``values`` in rows of ``width``, the last one filled up with zeros."""
    rows = _count(values.numel(), width)
    if rows * width == values.numel():
        return values.reshape(rows, width)
    padded = values.new_zeros(rows * width)
    padded[: values.numel()] = values
    return padded.view(rows, width)


def _as(code: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of bytes as another type: a view of a part would begin where the type may not."""
    return code.clone().view(dtype)


def _packed12(positions: Tensor) -> Tensor:
    """Return numbers below 4096 as bytes: two in three."""
    pairs = _padded(positions, 2)
    first, second = pairs[:, 0], pairs[:, 1]
    packed = torch.stack((first & 255, (first >> 8) | ((second & 15) << 4), second >> 4), 1)
    return packed.to(torch.uint8).reshape(-1)[: _count(3 * positions.numel(), 2)]


def _unpacked12(packed: Tensor, count: int) -> Tensor:
    """Return the ``count`` numbers of :func:`_packed12` as int64."""
    three = _padded(packed.long(), 3)
    first = three[:, 0] | ((three[:, 1] & 15) << 8)
    second = (three[:, 1] >> 4) | (three[:, 2] << 4)
    return torch.stack((first, second), 1).reshape(-1)[:count]
