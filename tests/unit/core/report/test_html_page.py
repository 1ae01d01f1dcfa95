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
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from builders import run_factory
from builders import validation_factory as factory
from jinja2 import StrictUndefined, TemplateNotFound, UndefinedError

from testbed.core.report import html_page, run_page
from testbed.core.report.document import build
from testbed.core.report.report_table import Table
from testbed.core.report.validation import validation_page
from testbed.host.files.store import RunDirectory

ROOT = Path(__file__).parents[4]
PACKAGE = resources.files("testbed.core.report")
HOSTILE = """</title></style></script><script>alert(1)</script><b class=x onload='y()' title="z">&amp;{{ 7 * 7 }}"""
CARRIER = """<script>alert("l")</script>'"""


class Reader(HTMLParser):
    """Count the elements of a page, and keep the text and the attribute values outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.styles: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.texts += [value for _, value in attrs if value]

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style" and data.strip():
            self.styles.append(data)
        elif self.lasttag not in ("script", "style"):
            self.texts.append(data)


def run_html(path: Path) -> str:
    return run_page.html(build(RunDirectory(path).read()))


def templates() -> Iterator[str]:
    return (each.name for each in (PACKAGE / "templates").iterdir())


# ---- what a template may name


@pytest.mark.parametrize("source", ["{{ nothing }}", "{{ report.nothing }}", "{% if nothing %}{% endif %}"])
def test_an_undefined_value_raises(source: str) -> None:
    assert html_page.environment().undefined is StrictUndefined
    with pytest.raises(UndefinedError, match="nothing"):
        html_page.environment().from_string(source).render(report=object())


@pytest.mark.parametrize("template", ["run.html", "validation.html"])
def test_a_page_without_its_values_raises(template: str) -> None:
    with pytest.raises(UndefinedError):
        html_page.render(template, (), title="t")


def test_every_template_compiles_and_no_other_is_found() -> None:
    for name in templates():
        html_page.environment().get_template(name)
    for name in ("absent.html", "../document.py"):
        with pytest.raises(TemplateNotFound):
            html_page.environment().get_template(name)


# ---- what is escaped


def test_text_is_escaped_wherever_it_is_shown() -> None:
    source = '{% from "macros.html" import table %}<p title="{{ text }}">{{ text }}</p>{{ table(shown) }}'
    shown = Table((HOSTILE,), ((HOSTILE,),), label=HOSTILE, verdicts=0)
    read = Reader(html_page.environment().from_string(source).render(text=HOSTILE, shown=shown))
    assert read.texts.count(HOSTILE) == 5, "each is one text or one attribute, as it was written"
    assert read.elements == ["p", "div", "table", "thead", "tr", "th", "tbody", "tr", "td", "strong"]


def test_hostile_names_stay_text_on_the_page_of_a_run(tmp_path: Path) -> None:
    plain = run_factory.make_run(tmp_path / "plain")
    hostile = run_factory.make_run(tmp_path / "hostile")
    document = json.loads((hostile / "run.json").read_text())
    document |= {
        "name": HOSTILE,
        "lab": HOSTILE,
        "driver": CARRIER,
        "experiment": {"name": HOSTILE, "teaches": HOSTILE},
    }
    (hostile / "run.json").write_text(json.dumps(document))
    topology = json.loads((hostile / "topology.json").read_text())
    topology["name"] = HOSTILE
    (hostile / "topology.json").write_text(json.dumps(topology))
    usual, read = Reader(run_html(plain)), Reader(run_html(hostile))
    assert read.elements == usual.elements, "no name adds an element"
    assert read.attributes == usual.attributes
    assert f"{HOSTILE}: passed" in read.texts, "the title"
    assert sum(HOSTILE in text for text in read.texts) >= 5
    assert CARRIER in read.texts


def test_hostile_names_stay_text_on_the_page_of_a_validation() -> None:
    cell = dataclasses.replace(factory.CELLS[1], detail=HOSTILE, errors=(HOSTILE,), fault=HOSTILE)
    hostile = factory.library(HOSTILE, title=HOSTILE, version=HOSTILE, why=(HOSTILE,), cells=(cell,))
    plain = dataclasses.replace(factory.CELLS[1], detail="a", errors=("a",), fault="a")
    usual = factory.library("a", title="a", version="1", why=("a",), cells=(plain,))
    named = factory.validation(hostile, topology=HOSTILE, machine=HOSTILE, versions={HOSTILE: HOSTILE})
    read = Reader(validation_page.html(named))
    expected = Reader(validation_page.html(factory.validation(usual, versions={"a": "1"})))
    assert read.elements == expected.elements
    assert read.attributes == expected.attributes
    assert sum(HOSTILE in text for text in read.texts) >= 12


def test_figures_cannot_end_their_script(tmp_path: Path) -> None:
    run = run_factory.make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as stream:
        for t in (1010.0, 1020.0):
            stream.write(json.dumps({"t": t, "kind": "fiber", "direction": "</script><!--", "bytes": 5}) + "\n")
    page = run_html(run)
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert "<" not in found[1]
    names = [line["name"] for line in json.loads(found[1])["throughput"]["data"]]
    assert "&lt;/script&gt;&lt;!--" in names, "plotly shows the name as it is"


# ---- one folder, one stylesheet, nothing remote


def test_both_kinds_of_page_have_the_one_stylesheet(tmp_path: Path) -> None:
    pages = [run_html(run_factory.make_run(tmp_path / "run")), validation_page.html(factory.validation())]
    (stylesheet,) = [each for each in (PACKAGE / "assets").iterdir() if each.name.endswith(".css")]
    text = stylesheet.read_text(encoding="utf-8")
    assert [[each.strip() for each in Reader(page).styles] for page in pages] == [[text.strip()]] * 2
    assert [name for name in templates() if "<style" in (PACKAGE / "templates" / name).read_text()] == ["page.html"]


def test_no_code_of_the_report_writes_elements() -> None:
    sources = list(Path(str(PACKAGE)).rglob("*.py"))
    assert len(sources) > 20
    written = re.compile(r"""["']</?(p|div|span|table|td|svg|path|section|li)\b""")
    assert [each.name for each in sources if written.search(each.read_text(encoding="utf-8"))] == []


def test_a_page_names_no_remote_resource(tmp_path: Path) -> None:
    pages = [run_html(run_factory.make_run(tmp_path / "run")), validation_page.html(factory.validation())]
    for page in pages:
        without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r"https?:|//\w|url\(|@import|\bsrc=", without_scripts)
        assert "default-src 'none'" in page


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
    data = [each for folder in ("templates", "assets") for each in (ROOT / "testbed/core/report" / folder).iterdir()]
    assert len(data) >= 10
    assert {each.relative_to(ROOT).as_posix() for each in data} <= held
    installer = {
        f"testbed/shipped/{it}" for it in ("install-containerlab.sh", "containerlab/go.mod", "containerlab/go.sum")
    }
    assert installer <= held, "hints name the script, so it must be where there is no repository"
