"""Render a page as one self-contained HTML file with its style, scripts and plots inline.

A page opens offline and requests nothing, which its own content security policy enforces. The template engine escapes
all text, and a template that names an undefined value raises. Templates, stylesheet and scripts are data of this
package.

plotly.js is the basic bundle (1.2 MB; only lines and bars are drawn), kept in ``assets`` with its license. The full
bundle would put 4.8 MB into every report.
"""

from __future__ import annotations

import functools
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from testbed.core.report.blocks import Page, Picture, Plots, tone
from testbed.core.report.meanings import meaning

__all__ = ["environment", "render"]


def render(page: Page) -> str:
    """Return the whole file."""
    sections = [(section, blocks) for section in page.sections if (blocks := section.page_blocks)]
    blocks = (*page.header, *(block for _, shown in sections for block in shown))
    figures = (figure for block in blocks if isinstance(block, Plots | Picture) for figure in block.figures)
    specs = {figure.id: figure.spec for figure in figures}
    return environment().get_template("page.html").render(page=page, sections=sections, specs=specs)


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
    made.filters["type"] = lambda value: type(value).__name__
    made.filters["picture"] = _picture
    made.globals["asset"] = _asset
    made.globals["meaning"] = meaning
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return made


def _picture(picture: Picture) -> Markup:
    return Markup(environment().get_template(picture.template).render(picture.values))  # the template escapes


@functools.cache
def _asset(name: str) -> str:
    """Return a stylesheet or script, which is not a template: the minified script has braces of its own."""
    return (resources.files("testbed.core.report") / "assets" / name).read_text(encoding="utf-8")
