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
from builders import ROOT
from builders.programs import python

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'agents'}"}


def run_code(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return python("-c", f"import sys; {code}", *arguments, env=ENVIRONMENT, timeout=120)


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    return run_code(code, config)


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


MODULES = "app verb console on_host options streams tables reports lab_verbs inspect_verbs run_verbs"
QUICK = {
    *("typer", "typer.core", "rich", "testbed", "testbed.core.units", "testbed.errors", "testbed.version"),
    "testbed.cli",
    *(f"testbed.cli.{name}" for name in ("console", "on_host", "options", "streams", "tables", "verb")),
    "testbed.host.linux.invocation",  # which needs nothing but Python's own library, see below
    "testbed.host.linux.signals",
}


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize("module", MODULES.split())
def test_the_command_line_imports_at_its_top_nothing_that_is_slow(module: str) -> None:
    """`testbed --help` stays quick only as long as what verbs need is imported inside of them."""
    tree = ast.parse((ROOT / "testbed" / "cli" / f"{module}.py").read_text())
    names = {name for node in tree.body for name in imported(node)}
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names | {"rich"}} <= QUICK


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "from testbed.cli.app import app; app(['--help'], standalone_mode=False); "
            "print(*{'torch', 'pydantic', 'plotly', 'jinja2', 'networkx', 'testbed.lab.api'} & set(sys.modules), "
            "file=sys.stderr)",
            id="help imports neither torch nor the library",
        ),
        pytest.param(
            "import testbed.keeper.main; begun = set(sys.modules); "
            "import testbed.keeper.keeper, testbed.keeper.keeper_api, testbed.lab.lab; "
            "print(*({'testbed.keeper.keeper', 'testbed.keeper.protocol'} & begun), "
            "*({'torch', 'jinja2', 'testbed.core.report.document'} & set(sys.modules)), file=sys.stderr)",
            id="neither a keeper nor a lab imports what only reports need",
        ),
    ],
)
def test_slow_modules_are_not_imported(code: str) -> None:
    done = run_code(code)
    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_every_room_is_in_the_design_and_every_file_states_its_purpose() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    listed = design[design.index("## Rooms") : design.index("## Tests")]
    printed = python(ROOT / "tools" / "rooms.py", check=True).stdout
    words = [line.split(maxsplit=1) for line in printed.splitlines() if line]
    assert [line for line in words if len(line) < 2 or not line[1].endswith((".", "?"))] == []
    rooms = [Path(name) for name, _ in words if name.endswith("/")]
    assert len(rooms) > 20
    assert [room for room in rooms if f"{room.name}/" not in listed] == []


def modules() -> dict[str, Path]:
    """Return each Python file of the testbed and its agents, by module name."""
    files = {}
    for top, folder in (("testbed", ROOT), ("testbed_agents", ROOT / "agents")):
        for file in (folder / top).rglob("*.py"):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = file
    return files


def imports(file: Path, ours: dict[str, Path]) -> set[str]:
    """Return our modules that a file imports when it runs, inside functions too; not those for annotations alone."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(file.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.ImportFrom):
            inside = (f"{node.module}.{alias.name}" for alias in node.names)
            names.update(name if name in ours else str(node.module) for name in inside)
        names.update(imported(node) if isinstance(node, ast.Import) else ())
        # Imports are statements, which no expression contains.
        pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
    return names & set(ours)


def test_no_files_import_each_other_in_a_circle() -> None:
    """``import testbed`` offers the library lazily: the package itself is left out."""
    ours = modules()
    graph = networkx.DiGraph()
    for name, file in ours.items():
        graph.add_edges_from((name, other) for other in imports(file, ours) if "testbed" not in (name, other))
    circles = [sorted(names) for names in networkx.strongly_connected_components(graph) if len(names) > 1]
    assert circles == []


SHARED_NAMES: dict[str, str] = {}
"""Module names that may occur twice within ``testbed/``, each with its reason; at most ten."""


def test_a_module_name_occurs_once() -> None:
    files = Counter(file.stem for file in (ROOT / "testbed").rglob("*.py") if file.name != "__init__.py")
    assert {name for name, times in files.items() if times > 1} == set(SHARED_NAMES)
    assert len(SHARED_NAMES) <= 10
