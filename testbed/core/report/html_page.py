"""Render the HTML templates: each page is one self-contained file with its style, scripts and plots inline.

A page opens offline and requests nothing, which its own content security policy enforces. The template engine escapes
all text, and a template that names an undefined value raises. Templates, stylesheet and scripts are data of this
package.

plotly.js is the basic bundle (1.2 MB; only lines and bars are drawn), kept in ``assets`` with its license. The full
bundle would put 4.8 MB into every report.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from testbed.core.report.figures.run_figures import Figure
from testbed.core.report.meanings import meaning
from testbed.core.report.report_table import tone

__all__ = ["environment", "render"]


def render(template: str, figures: Sequence[Figure], **values: object) -> str:
    """Return the whole page of ``template`` with ``figures`` as its plots; ``values`` are the template's variables."""
    specs = {figure.id: figure.spec for figure in figures}
    return environment().get_template(template).render(figures=figures, specs=specs, **values)


@functools.cache
def environment() -> Environment:
    """Return the environment of all templates."""
    made = Environment(
        loader=PackageLoader("testbed.core.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.filters["tone"] = tone
    made.globals["asset"] = _asset
    made.globals["meaning"] = meaning
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return made


@functools.cache
def _asset(name: str) -> str:
    """Return a stylesheet or script, which is not a template: the minified script has braces of its own."""
    return (resources.files("testbed.core.report") / "assets" / name).read_text(encoding="utf-8")
