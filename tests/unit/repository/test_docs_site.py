"""The documentation site: complete navigation, a reference of every verb, links that lead somewhere, nothing remote."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from builders import ROOT
from builders.programs import python

from testbed.cli.app import app

TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARTS = ["Start", "How to", "Reference", "How it works"]
BUILD_S = 300.0

pytest.importorskip("furo", reason="the extra `docs` is not installed")


COMMANDS: Any = typer.main.get_command(app)
BUILDS = """
import contextlib, io, json, sys
from sphinx.cmd.build import build_main
results = []
for argv in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = build_main(argv)
    results.append((status, errors.getvalue()))
print(json.dumps(results))
"""


class Built(NamedTuple):
    status: int
    errors: str


def build(*folders: Path) -> list[Built]:
    """Build the pages in ``docs`` of each folder into ``html``, as `make docs` does: by the same flags."""
    (text,) = re.findall(r"^BUILD_DOCS = .* -m sphinx (.*) -d ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    flags = text.split()
    assert {"-W", "-n"} <= set(flags)
    argvs = [[*flags, "-d", *(str(folder / name) for name in ("doctrees", "docs", "html"))] for folder in folders]
    done = python("-c", BUILDS, json.dumps(argvs), timeout=BUILD_S)
    assert done.returncode == 0, done.stderr
    return [Built(*result) for result in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as built, with the README as one page more, so that the links of the README are checked too."""
    copy = tmp_path_factory.mktemp("site")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
        elif not path.name.startswith((".", "build", "docs", "runs")):
            (copy / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", copy / "docs")
    readme = (ROOT / "README.md").read_text().replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
    (copy / "docs" / "readme.md").write_text("---\norphan: true\n---\n" + readme)
    (built,) = build(copy)
    assert built.status == 0, built.errors
    return copy / "html"


def test_navigation_has_four_parts_and_each_page_once() -> None:
    trees = TOCTREE.findall((ROOT / "docs" / "index.md").read_text())
    assert [re.findall(r"^:caption: (.*)$", tree, re.MULTILINE) for tree in trees] == [[part] for part in PARTS]
    lines = [line for tree in trees for line in tree.splitlines() if line.strip() and not line.startswith(":")]
    entries = Counter(re.sub(r"^.*<(\w+)>$", r"\1", line) for line in lines)
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert entries == Counter(dict.fromkeys(pages, 1))


def test_each_page_is_named_on_the_first_one() -> None:
    text = TOCTREE.sub("", (ROOT / "docs" / "index.md").read_text())
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", text)) == pages


class Page(HTMLParser):
    """Text of a page, and what its tags load."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = {"link": "href", "object": "data", **dict.fromkeys(("script", "img", "source", "iframe"), "src")}
        if address := dict(attrs).get(loads.get(tag, "")):
            self.loaded.append(address)

    def handle_data(self, data: str) -> None:
        self.text += data


def options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def test_the_reference_has_every_verb_with_its_options(site: Path) -> None:
    text = Page(site / "cli.html").text
    sections = {
        name: text.split(f"testbed {name} [OPTIONS]", 1)[1].split("[OPTIONS]", 1)[0] for name in COMMANDS.commands
    }
    assert sections
    for name, command in COMMANDS.commands.items():
        assert f"\ntestbed {name}" in text, name
        for option in options(command):
            assert option.name in ("quiet", "verbose", "on") or option.opts[0] in sections[name], (name, option.opts)
    for shown in ("--driver NAME", "auto", "testbed up metro-40km --set links.north.km=80"):
        assert shown in sections["up"]
    assert "TESTBED_LAB" in text


def test_defaults_in_help_texts_are_in_the_default_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    cli_reference = importlib.import_module("cli_reference")
    listed = [option for command in COMMANDS.commands.values() for option in options(command)]
    defaults = {option.opts[0]: option for option in listed if "(default:" in (option.help or "")}
    assert {"--topology", "--runs", "--data", "--name", "--image"} <= set(defaults)
    for name, option in defaults.items():
        meaning, default = re.fullmatch(r"(.*) \(default: (.*)\)\.", option.help).groups()  # type: ignore[union-attr]
        _, shown, explained = cli_reference.row(option).strip("| ").split(" | ")
        assert (shown, explained.partition(" Environment: ")[0]) == (default, meaning + "."), name


def test_the_python_reference_has_docstrings(site: Path) -> None:
    text = Page(site / "python.html").text
    for name in ("load", "up", "attach", "validate", "wait_for", "FidelityError", "links_lit", "session_lab"):
        assert name in text, name


def test_pages_load_nothing_remote(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        assert [address for address in Page(page).loaded if re.match(r"(?:\w+:)?//", address)] == [], page
    for sheet in (*site.rglob("*.css"), *pages):
        assert not re.search(r"(?:@import\s+|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


BROKEN = ("other.md#wrong-anchor", "missing.md", "#wrong-own-anchor")
SMALL = {
    "heading": "[there](other.md#a-heading-of-two-words)",
    "anchor": "[there](other.md#wrong-anchor)",
    "broken": "\n\n".join([*(f"[there]({link})" for link in BROKEN), "![there](missing.png)"]),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """Sites of two pages with the configuration of the real ones, by the link on their first page."""
    folders = [tmp_path_factory.mktemp(name) for name in SMALL]
    for folder, link in zip(folders, SMALL.values(), strict=True):
        docs = folder / "docs"
        for part in ("_ext", "_static"):
            shutil.copytree(ROOT / "docs" / part, docs / part)
        shutil.copy(ROOT / "docs" / "conf.py", docs)
        (docs / "index.md").write_text(f"# First\n\n```{{toctree}}\nother\n```\n\n{link}\n")
        (docs / "other.md").write_text("# Other\n\n## A heading, of *two* words\n")
    return dict(zip(SMALL, build(*folders), strict=True))


def test_a_link_to_a_heading_is_fine(small: dict[str, Built]) -> None:
    assert small["heading"].status == 0, small["heading"].errors


def test_broken_links_fail_the_build_and_are_all_named(small: dict[str, Built]) -> None:
    assert small["broken"].status != 0
    for name in ("wrong-anchor", "missing.md", "wrong-own-anchor", "missing.png"):
        assert name in small["broken"].errors


def test_one_broken_anchor_is_enough(small: dict[str, Built]) -> None:
    assert small["anchor"].status != 0
