"""Impairments in the words of a topology file: ``impaired("loss=2% burst=8")``."""

from __future__ import annotations

from testbed.core.physics.impairment import Impairment
from testbed.core.physics.parameters import lay, parse


def impaired(words: str, base: Impairment) -> Impairment:
    """Return ``base`` with other values, which need not make sense together."""
    values, misread = parse(dict(word.split("=") for word in words.split()))
    assert not misread
    return lay(values, base)
