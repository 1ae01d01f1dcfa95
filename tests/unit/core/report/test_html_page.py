"""The HTML templates: what they refuse, what they escape, and that both kinds of page share one stylesheet."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path

import pytest
from builders import validation_factory as factory
from builders.page_tree import tree_of
from builders.reports import html, report_of, without_scripts
from builders.run_factory import edit, make_run
from jinja2 import StrictUndefined, TemplateNotFound, UndefinedError

from testbed.core.report import html_page
from testbed.core.report.blocks import Table
from testbed.core.report.validation import validation_page

ROOT = Path(__file__).parents[4]
PACKAGE = resources.files("testbed.core.report")
HOSTILE = """</title></style></script><script>alert(1)</script><b class=x onload='y()' title="z">&amp;{{ 7 * 7 }}"""
CARRIER = """<script>alert("l")</script>'"""


class Reader:
    """The elements of a page, and the texts and values of attributes outside scripts and styles."""

    def __init__(self, page: str) -> None:
        _, *elements = tree_of(page).iter()
        self.elements = [element.tag for element in elements]
        self.attributes = {name for element in elements for name in element.attrib}
        self.styles = [element.text.strip() for element in elements if element.tag == "style" and element.text]
        self.texts: list[str | None] = []
        for element in elements:
            self.texts += [*element.attrib.values(), element.tail]
            if element.tag not in ("script", "style"):
                self.texts.append(element.text)


TEMPLATES = {path.name: path.read_text(encoding="utf-8") for path in (PACKAGE / "templates").iterdir()}


@pytest.fixture
def pages(run: Path) -> list[str]:
    """A page of a run, and one of a validation."""
    return [html(report_of(run)), validation_page.html(factory.validation())]


# ---- what a template may name


@pytest.mark.parametrize("source", ["{{ nothing }}", "{{ report.nothing }}", "{% if nothing %}{% endif %}"])
def test_an_undefined_value_raises(source: str) -> None:
    assert html_page.environment().undefined is StrictUndefined
    with pytest.raises(UndefinedError, match="nothing"):
        html_page.environment().from_string(source).render(report=object())


@pytest.mark.parametrize("template", ["page.html", "run_header.html", "matrix.html", "fault_cells.html"])
def test_a_template_without_its_values_raises(template: str) -> None:
    with pytest.raises(UndefinedError):
        html_page.environment().get_template(template).render(title="t")


def test_every_template_compiles_and_no_other_is_found() -> None:
    for name in TEMPLATES:
        html_page.environment().get_template(name)
    for name in ("absent.html", "../document.py"):
        with pytest.raises(TemplateNotFound):
            html_page.environment().get_template(name)


# ---- what is escaped


def test_text_is_escaped_wherever_it_is_shown() -> None:
    source = '{% from "blocks.html" import table %}<p title="{{ text }}">{{ text }}</p>{{ table(shown) }}'
    shown = Table((HOSTILE,), ((HOSTILE,),), label=HOSTILE, verdicts=0)
    read = Reader(html_page.environment().from_string(source).render(text=HOSTILE, shown=shown))
    assert read.texts.count(HOSTILE) == 5, "each is one text or one attribute, as it was written"
    assert read.elements == ["p", "div", "table", "thead", "tr", "th", "tbody", "tr", "td", "strong"]


def test_hostile_names_stay_text_on_the_page_of_a_run(run: Path, tmp_path: Path) -> None:
    hostile = make_run(tmp_path / "hostile")
    experiment = {"name": HOSTILE, "teaches": HOSTILE}
    edit(hostile, "run.json", name=HOSTILE, lab=HOSTILE, driver=CARRIER, experiment=experiment)
    edit(hostile, "topology.json", name=HOSTILE)
    usual, read = (Reader(html(report_of(path))) for path in (run, hostile))
    assert read.elements == usual.elements, "no name adds an element"
    assert read.attributes == usual.attributes
    assert f"{HOSTILE}: passed" in read.texts, "the title"
    assert sum(HOSTILE in (text or "") for text in read.texts) >= 5
    assert CARRIER in read.texts


def test_hostile_names_stay_text_on_the_page_of_a_validation() -> None:
    def page_with(text: str, version: str, **fields: str) -> Reader:
        cell = dataclasses.replace(factory.CELLS[1], detail=text, errors=(text,), fault=text)
        library = factory.library(text, title=text, version=version, why=(text,), cells=(cell,))
        return Reader(validation_page.html(factory.validation(library, versions={text: version}, **fields)))

    read, expected = page_with(HOSTILE, HOSTILE, topology=HOSTILE, machine=HOSTILE), page_with("a", "1")
    assert read.elements == expected.elements
    assert read.attributes == expected.attributes
    assert sum(HOSTILE in (text or "") for text in read.texts) >= 12


def test_figures_cannot_end_their_script(run: Path) -> None:
    fiber = {"kind": "fiber", "direction": "</script><!--", "bytes": 5}
    edit(run, "metrics.jsonl", lambda lines: [*lines, *({"t": t, **fiber} for t in (1010.0, 1020.0))])
    page = html(report_of(run))
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert "<" not in found[1]
    names = [line["name"] for line in json.loads(found[1])["throughput"]["data"]]
    assert "&lt;/script&gt;&lt;!--" in names, "plotly shows the name as it is"


# ---- one folder, one stylesheet, nothing remote


def test_both_kinds_of_page_have_the_one_stylesheet(pages: list[str]) -> None:
    (stylesheet,) = [path for path in (PACKAGE / "assets").iterdir() if path.name.endswith(".css")]
    text = stylesheet.read_text(encoding="utf-8").strip()
    assert [Reader(page).styles for page in pages] == [[text]] * 2
    assert [name for name, template in TEMPLATES.items() if "<style" in template] == ["page.html"]


def test_no_code_of_the_report_writes_elements() -> None:
    sources = list(Path(str(PACKAGE)).rglob("*.py"))
    assert len(sources) > 20
    written = re.compile(r"""["']</?(p|div|span|table|td|svg|path|section|li)\b""")
    assert [path.name for path in sources if written.search(path.read_text(encoding="utf-8"))] == []


def test_a_page_names_no_remote_resource(pages: list[str]) -> None:
    for page in pages:
        remote = r"https?:|//\w|url\(|@import|\bsrc\s*=|<(?:link|img|iframe)\b"
        assert not re.search(remote, without_scripts(page))
        assert not any("src" in script.attrib for script in tree_of(page).iter("script"))
        assert "default-src 'none'" in page
        assert page.startswith("<!doctype html>")
    assert not re.search(r"href\s*=", without_scripts(pages[0])), "of a run"
    assert pages[0].count("plotly.js (basic") == 1


# ---- what is shipped


def test_the_wheel_holds_templates_stylesheet_and_scripts(tmp_path: Path) -> None:
    """Built of a copy: the build hook would replace the helper of this tree. Without one: that takes a compiler."""
    tree, out = tmp_path / "tree", tmp_path / "out"
    tree.mkdir()
    for name in ("testbed", "agents", "topologies", "experiments", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tree)
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    environment = {**os.environ, "TESTBED_WITHOUT_FIBERD": "1"}
    subprocess.run(argv, cwd=tree, env=environment, check=True, capture_output=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    report = ROOT / "testbed/core/report"
    data = {
        path.relative_to(ROOT).as_posix() for folder in ("templates", "assets") for path in (report / folder).iterdir()
    }
    assert len(data) >= 10
    assert data <= held
    installer = {
        f"testbed/shipped/{name}" for name in ("install-containerlab.sh", "containerlab/go.mod", "containerlab/go.sum")
    }
    assert installer <= held, "hints name the script, so it must be where there is no repository"
