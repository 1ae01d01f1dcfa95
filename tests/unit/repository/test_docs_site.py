"""The documentation site: complete navigation, a reference of every verb, links that lead somewhere, nothing remote."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

from testbed.cli.app import app

ROOT = Path(__file__).parents[3]
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARTS = ["Start", "How to", "Reference", "How it works"]
BUILD_S = 300.0

pytest.importorskip("furo", reason="the extra `docs` is not installed")


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build pages as `make docs` does, by the same flags."""
    (flags,) = re.findall(r"^BUILD_DOCS = .* -m sphinx (.*) -d ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"-W", "-n"} <= set(flags.split())
    argv = [sys.executable, "-m", "sphinx", *flags.split(), "-d", str(out / "doctrees"), str(source), str(out / "html")]
    return subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as built, with the README as one page more, so that the links of the README are checked too."""
    copy = tmp_path_factory.mktemp("site")
    for each in ROOT.iterdir():
        if each.is_file():
            shutil.copy(each, copy)
        elif not each.name.startswith((".", "build", "docs", "runs")):
            (copy / each.name).symlink_to(each)
    shutil.copytree(ROOT / "docs", copy / "docs")
    readme = (ROOT / "README.md").read_text().replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
    (copy / "docs" / "readme.md").write_text("---\norphan: true\n---\n" + readme)
    done = build(copy / "docs", copy / "out")
    assert done.returncode == 0, done.stderr
    return copy / "out" / "html"


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


class _Page(HTMLParser):
    """Text of a page's headings, and what its tags load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        loads = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src", "object": "data"}
        if tag in loads and found.get(loads[tag]):
            self.loaded.append(str(found[loads[tag]]))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_reference_has_every_verb_with_its_options(site: Path) -> None:
    page = _Page((site / "cli.html").read_text())
    group = typer.main.get_command(app)
    assert group.commands  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert f"\ntestbed {name}" in page.text, name
        section = page.text.split(f"testbed {name} [OPTIONS]", 1)[1].split("[OPTIONS]", 1)[0]
        for option in (each for each in command.params if each.param_type_name == "option"):
            assert option.name in ("quiet", "verbose", "on") or option.opts[0] in section, (name, option.opts)
    up = page.text.split("testbed up [OPTIONS]", 1)[1].split("[OPTIONS]", 1)[0]
    for shown in ("--driver NAME", "auto", "testbed up metro-40km --set links.north.km=80"):
        assert shown in up
    assert "TESTBED_LAB" in page.text


def test_defaults_in_help_texts_are_in_the_default_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    cli_reference = importlib.import_module("cli_reference")
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    options = [each for command in commands for each in command.params if each.param_type_name == "option"]
    found = {each.opts[0]: each for each in options if "(default:" in (each.help or "")}
    assert {"--topology", "--runs", "--data", "--name", "--image"} <= set(found)
    for name, option in found.items():
        meaning, default = re.fullmatch(r"(.*) \(default: (.*)\)\.", option.help).groups()  # type: ignore[union-attr]
        _, shown, explained = cli_reference.row(option).strip("| ").split(" | ")
        assert (shown, explained.partition(" Environment: ")[0]) == (default, meaning + "."), name


def test_the_python_reference_has_docstrings(site: Path) -> None:
    page = _Page((site / "python.html").read_text())
    for name in ("load", "up", "attach", "validate", "wait_for", "FidelityError", "links_lit", "session_lab"):
        assert name in page.text, name


def test_pages_load_nothing_remote(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        remote = [each for each in _Page(page.read_text()).loaded if re.match(r"(?:\w+:)?//", each)]
        assert remote == [], page
    for sheet in (*site.rglob("*.css"), *pages):
        assert not re.search(r"(?:@import\s+|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two pages with the configuration of the real ones."""
    docs = tmp_path / "docs"
    for folder in ("_ext", "_static"):
        shutil.copytree(ROOT / "docs" / folder, docs / folder)
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    (docs / "index.md").write_text("# First\n\n```{toctree}\nother\n```\n")
    (docs / "other.md").write_text("# Other\n\n## A heading, of *two* words\n")
    return docs


def add(docs: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    with (docs / "index.md").open("a") as file:
        file.write("\n" + "\n\n".join(lines) + "\n")
    return build(docs, docs.parent / "out")


def test_a_link_to_a_heading_is_fine(small: Path) -> None:
    done = add(small, "[there](other.md#a-heading-of-two-words)")
    assert done.returncode == 0, done.stderr


def test_broken_links_fail_the_build_and_are_all_named(small: Path) -> None:
    broken = ("other.md#wrong-anchor", "missing.md", "#wrong-own-anchor")
    done = add(small, *(f"[there]({link})" for link in broken), "![there](missing.png)")
    assert done.returncode != 0
    for named in ("wrong-anchor", "missing.md", "wrong-own-anchor", "missing.png"):
        assert named in done.stderr


def test_one_broken_anchor_is_enough(small: Path) -> None:
    assert add(small, "[there](other.md#wrong-anchor)").returncode != 0
