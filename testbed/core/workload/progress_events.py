"""Read TensorBoard's event files: scalars with their step and time.

A file is a sequence of records as of TFRecord (tensorflow/core/lib/io/record_writer.h): length (8 bytes, low first),
its masked CRC-32C (4), the content, its masked CRC-32C (4). Each content is an ``Event``
(tensorflow/core/util/event.proto) in protocol-buffer encoding: wall_time = 1 (double), step = 2 (varint), summary = 5;
of a summary, value = 1, of a value tag = 1, simple_value = 2 (float), tensor = 8; of a tensor dtype = 1, tensor_content
= 4, float_val = 5, double_val = 6. Written out here, because the library for it brings 50 MB and a web server.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["EventReader", "Scalar", "masked_crc"]

MOST_BYTES: Final = 1 << 24
"""A longer record, such as one with a large image, ends the reading of a file."""

_CHECKED: Final = 1 << 14
"""A longer record is no lone scalar: its own checksum is not computed, which takes 0.1 us a byte."""

_HEADER: Final = struct.Struct("<QI")
_CRC: Final = struct.Struct("<I")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_DT_FLOAT, _DT_DOUBLE = 1, 2


@dataclass(frozen=True)
class Scalar:
    """One value of one tag. ``wall_s``: seconds since 1970."""

    wall_s: float
    step: int
    tag: str
    value: float


class _Damaged(ValueError):
    pass


class EventReader:
    """Reads the bytes of one file from its begin, as they come.

    :attr:`damage` says why the rest of a file is not read; empty while it is.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self.damage = ""

    def read(self, data: bytes) -> Iterator[Scalar]:
        """Yield the scalars of the records that are whole now."""
        if self.damage:
            return
        self._rest += data
        at = 0
        try:
            while (end := self._end(at)) is not None:
                content = bytes(self._rest[at + _HEADER.size : end - _CRC.size])
                small = len(content) <= _CHECKED
                if small and _CRC.unpack_from(self._rest, end - _CRC.size)[0] != masked_crc(content):
                    raise _Damaged("a record has a wrong checksum")
                at = end
                yield from _scalars(content)
        except (_Damaged, struct.error, UnicodeDecodeError) as error:
            self.damage = f"expected TensorBoard's events, but {error}"
            self._rest.clear()
            return
        del self._rest[:at]

    def _end(self, at: int) -> int | None:
        """Return where the record at ``at`` ends; None while it is not whole."""
        if len(self._rest) - at < _HEADER.size:
            return None
        length, check = _HEADER.unpack_from(self._rest, at)
        if masked_crc(bytes(self._rest[at : at + 8])) != check:
            raise _Damaged("the length of a record has a wrong checksum")
        if length > MOST_BYTES:
            raise _Damaged(f"a record has {length} bytes")
        end = at + _HEADER.size + int(length) + _CRC.size
        return end if len(self._rest) >= end else None


def _scalars(event: bytes) -> Iterator[Scalar]:
    wall_s, step = 0.0, 0
    summaries: list[bytes] = []
    for field, value in _fields(event):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            wall_s = _DOUBLE.unpack(value)[0]
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, value in _fields(summary):
            if field == 1 and isinstance(value, bytes):
                tag, number = _tagged(value)
                if number is not None and math.isfinite(number) and math.isfinite(wall_s):
                    yield Scalar(wall_s, step, tag, number)


def _tagged(value: bytes) -> tuple[str, float | None]:
    tag, number = "", None
    for field, inner in _fields(value):
        if not isinstance(inner, bytes):
            continue
        if field == 1:
            tag = inner.decode()
        elif field == 2 and len(inner) == 4:
            number = _FLOAT.unpack(inner)[0]
        elif field == 8:
            number = _of_tensor(inner)
    return tag, number


def _of_tensor(tensor: bytes) -> float | None:
    """Return the number of a tensor that has exactly one; None for any other."""
    kind = 0
    numbers: list[float] = []
    for field, value in _fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field in (4, 5, 6) and isinstance(value, bytes):
            form = {4: {_DT_FLOAT: _FLOAT, _DT_DOUBLE: _DOUBLE}.get(kind), 5: _FLOAT, 6: _DOUBLE}[field]
            if form is not None and len(value) == form.size:
                numbers.append(form.unpack(value)[0])
    return numbers[0] if len(numbers) == 1 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a protocol-buffer message; fixed-size values as their bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _Damaged(f"a field has type {kind}")
        if at + length > len(message):
            raise _Damaged("a field is longer than its record")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise _Damaged("a number ends with its record")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise _Damaged("a number has more than 64 bits")


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C: Final = _table()


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C (RFC 3720, appendix B.4) of ``data``, masked as TFRecord does."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC32C[(value ^ byte) & 0xFF]
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
