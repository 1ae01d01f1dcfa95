"""The table "I want to change X: go to Y" of docs/design.md leads to files that exist."""

from __future__ import annotations

import re

from builders import ROOT

ROW = re.compile(r"^\| (?P<number>\d+) \| (?P<behaviour>.+?) \| `(?P<file>[^`]+)` \|$", re.MULTILINE)


def test_each_of_thirty_behaviours_has_its_file() -> None:
    rows = list(ROW.finditer((ROOT / "docs" / "design.md").read_text()))
    assert [int(row["number"]) for row in rows] == list(range(1, 31))
    assert [row["file"] for row in rows if not (ROOT / row["file"]).is_file()] == []
