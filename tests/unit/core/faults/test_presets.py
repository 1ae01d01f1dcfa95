"""A preset without any effect is rejected, with the name of the parameter."""

from __future__ import annotations

import pytest

import testbed
from testbed.core.faults.fault_registry import compile_fault
from testbed.errors import UserError


@pytest.mark.parametrize(
    ("fault", "parameters", "words"),
    [
        ("mtu-black-hole", {"largest": "0B"}, r"^largest=0B: expected at least 68 B"),
        ("mtu-black-hole", {"largest": "0"}, r"^largest=0: expected at least 68 B"),
        ("corruption", {"share": "0%"}, r"^share=0%: expected a share greater than 0"),
        ("jitter", {"amount": "0us"}, r"^amount=0us: expected a time greater than 0"),
    ],
)
def test_what_would_do_nothing_is_refused(fault: str, parameters: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        compile_fault(testbed.load("metro-40km"), fault, "north", parameters)
