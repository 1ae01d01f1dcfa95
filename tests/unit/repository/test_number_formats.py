"""No percentage is printed by a format that falls to an exponent (``1.1e+02 %``): ``units.py`` has one without."""

from __future__ import annotations

import re

from builders import ROOT

_EXPONENT = re.compile(r"100(\.0)?( \* [^}{]*)?:\.?\w*g\}|\{[^}{]*:\.?\w*g\} ?%")
"""``{100 * x:.2g}``, ``{x * 100:.3g}``, ``{x:.2g} %``."""


def test_the_pattern_finds_what_it_is_for() -> None:
    for bad in ('f"{100 * share:.2g} %"', 'f"{share * 100:.3g} %"', 'f"{value:.2g}%"', 'f"{100.0 * a.b:g}"'):
        assert _EXPONENT.search(bad), bad
    for good in ('f"{share:.0%}"', 'f"{100 * share:.1f} %"', 'f"{rate / 1e6:g} Mb/s"', "format_percent(share)"):
        assert not _EXPONENT.search(good), good


def test_no_percentage_has_an_exponent() -> None:
    sources = [file for part in ("testbed", "agents", "tools", "benchmarks") for file in (ROOT / part).rglob("*.py")]
    assert len(sources) > 200
    exponents = [
        f"{source.relative_to(ROOT)}:{number}: {line.strip()}"
        for source in sources
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1)
        if _EXPONENT.search(line)
    ]
    assert exponents == []
