"""What a client sends to the leash on another host: frames of a kind, a length and that many bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

__all__ = [
    "BEAT_S",
    "COMMAND_FOLDER",
    "FAILED",
    "HELLO",
    "LONGEST",
    "MOST_SENT_BYTES",
    "OPENED_PAGE",
    "PAGE_COPY",
    "PATIENCE_S",
    "RUN_LIST",
    "WHY_BYTES",
    "Frames",
    "Kind",
    "frame",
    "hello",
]

Kind: TypeAlias = Literal[
    "start", "fetch", "done", "beat", "interrupt", "terminate", "data", "end", "window", "file", "bytes"
]

HELLO = "testbed-leash"
"""First word of the first line that the leash prints, before its version."""

BEAT_S, PATIENCE_S = 2.0, 30.0
"""A client is heard each BEAT_S; after PATIENCE_S of silence the leash ends its command."""

RUN_LIST = "TESTBED_RUN_LIST"
"""Variable that names a file to which a command adds the path of each run directory that it makes."""

COMMAND_FOLDER = "TESTBED_COMMAND_FOLDER"
"""Variable that names the folder of a command: what its client sent, and where it starts."""

PAGE_COPY = "TESTBED_OPENED_PAGE"
"""Variable that names a file to which a page is copied, in place of being opened in a browser."""

LONGEST = 1 << 20
"""Bytes of a frame at most."""

MOST_SENT_BYTES = 1 << 33
"""Of files that a client sends, at most 8 GiB: what it may fill the other host's disk with by mistake."""

FAILED = 0xFFFFFFFF
"""In place of the length of a piece of a fetched folder: 500 bytes follow that say why the rest does not."""

WHY_BYTES = 500

OPENED_PAGE = "opened.html"
"""In the folder of a command: the page that it would open in a browser, for the client's."""

_KINDS: Mapping[Kind, bytes] = {
    "start": b"s",
    "fetch": b"g",
    "done": b"q",
    "beat": b"b",
    "interrupt": b"i",
    "terminate": b"t",
    "data": b"d",
    "end": b"e",
    "window": b"w",
    "file": b"f",
    "bytes": b"c",
}
_NAMES = {sign: kind for kind, sign in _KINDS.items()}
_HEAD = struct.Struct(">cI")


def hello(version: str) -> str:
    return f"{HELLO} {version}\n"


def frame(kind: Kind, content: bytes | Mapping[str, Any] = b"") -> bytes:
    """Encode a frame; a mapping is sent as JSON. Raises ValueError for one that is too long."""
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    if len(payload) > LONGEST:
        raise ValueError(f"expected at most {LONGEST} bytes in a frame, got {len(payload)}")
    return _HEAD.pack(_KINDS[kind], len(payload)) + payload


class Frames:
    """Decodes frames from pieces as they arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Yield the frames that are complete now. Raises ValueError for what is none."""
        self._rest += piece
        while len(self._rest) >= _HEAD.size:
            sign, size = _HEAD.unpack_from(self._rest)
            if sign not in _NAMES or size > LONGEST:
                raise ValueError(f"expected a frame, got {bytes(self._rest[:8])!r}")
            if len(self._rest) < _HEAD.size + size:
                return
            payload = bytes(self._rest[_HEAD.size : _HEAD.size + size])
            del self._rest[: _HEAD.size + size]
            yield _NAMES[sign], payload
