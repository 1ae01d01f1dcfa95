"""The rooms of docs/design.md: who may import whom, as import-linter's contracts in pyproject.toml say it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    argv = [sys.executable, "-c", code, str(config)]
    return subprocess.run(argv, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def test_every_contract_is_kept() -> None:
    done = lint_imports(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_a_contract_that_is_broken_is_found(tmp_path: Path) -> None:
    """The check above can fail: turned around, the layers are reported as broken."""
    config = tmp_path / "upside-down.toml"
    config.write_text(
        '[tool.importlinter]\nroot_packages = ["testbed"]\n'
        '[[tool.importlinter.contracts]]\nname = "upside down"\ntype = "layers"\n'
        'layers = ["testbed.errors", "testbed.core", "testbed.host", "testbed.lab", "testbed.cli"]\n'
    )
    done = lint_imports(config)
    assert done.returncode == 1
    assert "upside down BROKEN" in done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "app",
        "verb",
        "console",
        "on_host",
        "streams",
        "tables",
        "browser",
        "cell",
        "ci",
        "lab_verbs",
        "inspect_verbs",
        "run_verbs",
        "run_options",
    ],
)
def test_the_command_line_imports_at_its_top_nothing_that_is_slow(module: str) -> None:
    """`testbed --help` stays quick only as long as what verbs need is imported inside of them."""
    cli = {
        f"testbed.cli{it}" for it in ("", ".browser", ".cell", ".ci", ".on_host", ".run_options", ".streams", ".verb")
    }
    quick = {"typer", "rich", "testbed", "testbed.core.units", "testbed.errors", "testbed.version", *cli}
    quick |= {"testbed.host.linux.invocation"}  # which needs nothing but Python's own library, see below
    tree = ast.parse((ROOT / "testbed" / "cli" / f"{module}.py").read_text())
    found = {
        name
        for node in tree.body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    foreign = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names | {"rich"}}
    assert foreign <= quick


def test_help_imports_neither_torch_nor_the_library() -> None:
    code = (
        "import sys; from testbed.cli.app import app; app(['--help'], standalone_mode=False); "
        "print(*(name for name in ('torch', 'pydantic', 'plotly', 'jinja2', 'networkx', 'testbed.lab.api') "
        "if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""


def test_neither_a_keeper_nor_a_lab_imports_what_only_reports_need() -> None:
    code = (
        "import sys, testbed.keeper.main; begun = set(sys.modules); "
        "import testbed.keeper.keeper, testbed.keeper.verbs, testbed.lab.lab; "
        "print(*({'testbed.keeper.keeper', 'testbed.keeper.protocol'} & begun), "
        "*({'torch', 'jinja2', 'testbed.core.report.document'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_every_room_is_in_the_design_and_every_file_says_what_it_is_for() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    listed = design[design.index("## Rooms") : design.index("## Tests")]
    argv = [sys.executable, str(ROOT / "tools" / "rooms.py")]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    words = [line.split(maxsplit=1) for line in printed.splitlines() if line]
    silent = [it for it in words if len(it) < 2 or not it[1].endswith((".", "?"))]
    assert silent == []
    rooms = [Path(it[0]) for it in words if it[0].endswith("/")]
    assert len(rooms) > 20
    assert [it for it in rooms if f"{it.name}/" not in listed] == []


def modules() -> dict[str, Path]:
    """Every Python file of the testbed and its agents, by module name."""
    found = {}
    for top, folder in (("testbed", ROOT), ("testbed_agents", ROOT / "agents")):
        for file in (folder / top).rglob("*.py"):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the house that a file imports when it runs, inside functions too; not those for annotations alone."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(file.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(it if it in known else str(node.module) for it in inside)
        pending.extend(ast.iter_child_nodes(node))
    return found & set(known)


def test_no_files_import_each_other_in_a_circle() -> None:
    """``import testbed`` offers the library lazily: the package itself is left out."""
    known = modules()
    graph = networkx.DiGraph()
    for name, file in known.items():
        graph.add_edges_from((name, it) for it in imports(file, known) if "testbed" not in (name, it))
    assert [sorted(it) for it in networkx.strongly_connected_components(graph) if len(it) > 1] == []


SHARED_NAMES: dict[str, str] = {}
"""Module names that may occur twice within ``testbed/``, each with its reason; at most ten."""


def test_a_module_name_occurs_once() -> None:
    files = Counter(file.stem for file in (ROOT / "testbed").rglob("*.py") if file.name != "__init__.py")
    assert {name for name, times in files.items() if times > 1} == set(SHARED_NAMES)
    assert len(SHARED_NAMES) <= 10
