"""Write to a file descriptor."""

from __future__ import annotations

import os

__all__ = ["write_all"]


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of ``content``: write(2) may take a part of it. Raises OSError."""
    while content:
        content = content[os.write(descriptor, content) :]
