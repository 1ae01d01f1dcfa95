"""Former names of modules that users import: they work for one release, and warn."""

from __future__ import annotations

from builders import ROOT
from builders.programs import python
from builders.tables import table

LIBRARY = """
from testbed.core.conformance.library import PYTHON, Library
from testbed.core.validation import library
print(PYTHON is library.PYTHON, Library is library.Library)
"""


@table(
    "code, warning",
    {
        "validation": (LIBRARY, "testbed.core.conformance is now testbed.core.validation"),
    },
)
def test_a_program_that_imports_the_former_name_works_and_is_warned(code: str, warning: str) -> None:
    paths = [str(ROOT), str(ROOT / "agents")]
    done = python("-W", "always", "-c", f"import sys; sys.path[:0] = {paths}\n{code}")
    assert done.stdout == "True True\n", done.stderr
    assert warning in done.stderr
