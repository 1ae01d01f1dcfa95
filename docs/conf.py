"""Configuration of the documentation site: `make docs` builds docs/ into build/docs, offline and strict."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

from testbed.host.linux import invocation  # noqa: E402
from testbed.version import __version__  # noqa: E402

invocation.current = invocation.Invocation  # examples in help call the program by its name, not by this machine's path

project = "Scale-across training testbed"
author = "the testbed's authors"
copyright = "the testbed's authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "cli_reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext"]

# Anchors are those that GitHub gives to headings, so that a link works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

# Every link between pages, anchor and picture must lead somewhere; `-W` makes each warning an error. Python cross
# references are exempt from this check: types in signatures are names of the source, most of them internal. Those
# that have an entry in python.md become links, the others stay text.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
