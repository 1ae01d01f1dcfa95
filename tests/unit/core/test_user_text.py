"""Unknown names have one form, raised as an error or collected as a finding."""

from __future__ import annotations

import pytest

from testbed.core import user_text
from testbed.errors import UnknownName


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("nroth", ["north", "south"], "unknown link 'nroth'; did you mean north?"),
        ("NORTH", ["north", "northern"], "unknown link 'NORTH'; did you mean north?"),
        ("east-2", ["east-0", "east-1", "west-0"], "unknown link 'east-2'; did you mean east-1 or east-0?"),
        ("x", ["north", "south"], "unknown link 'x' (available: north, south)"),
        ("x", ["south", "north"], "unknown link 'x' (available: south, north)"),
        (
            "x",
            [f"n{i}" for i in range(17)],
            "unknown link 'x' (available: " + ", ".join(f"n{i}" for i in range(16)) + ", …)",
        ),
        ("x", [], "unknown link 'x'"),
        ("x", ["bad\nname", "n" * 65], "unknown link 'x'"),
        ("a\nb", [], r"unknown link 'a\nb'"),
        ("n" * 200, [], "unknown link '" + "n" * 63 + "…'"),
        ("/a/folder/" + "n" * 200, [], "unknown link '/a/folder/" + "n" * 200 + "'"),
    ],
)
def test_an_unknown_name_as_an_error_and_as_a_finding(name: str, known: list[str], message: str) -> None:
    error = UnknownName("link", name, known)
    assert str(error) == message
    assert "none" not in error.hint
    found, fix = user_text.unknown("link", name, known)
    assert (f"{found}; {fix}" if fix else found) == message
