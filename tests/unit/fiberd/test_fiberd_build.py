"""The build hook with and without a C compiler. hatchling is only there while a wheel is built: a stand-in does."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def hook_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Interface:
        def __class_getitem__(cls, item: object) -> type:
            return cls

        def __init__(self, root: Path) -> None:
            self.root = str(root)
            self.warnings: list[str] = []
            self.app = types.SimpleNamespace(display_warning=self.warnings.append)

    interface = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = Interface  # type: ignore[attr-defined]
    parts = interface.__name__.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of its own: the hook writes into it."""
    (tmp_path / "testbed").mkdir()
    sources = shutil.ignore_patterns("build", "fiberd")
    shutil.copytree(ROOT / "testbed" / "fiberd", tmp_path / "testbed" / "fiberd", ignore=sources)
    return tmp_path


def build(hook_module: Any, tree: Path) -> tuple[dict[str, Any], list[str]]:
    hook = hook_module.FiberdBuildHook(tree)
    data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    hook.initialize("standard", data)
    return data, hook.warnings


def test_with_a_compiler_the_wheel_is_of_this_platform(hook_module: Any, tree: Path) -> None:
    if not hook_module.find_compiler():
        pytest.skip("no C compiler")
    data, warnings = build(hook_module, tree)
    assert warnings == []
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-linux_") and "-" not in data["tag"].removeprefix("py3-none-")
    assert data["artifacts"] == ["testbed/fiberd/fiberd"]
    binary = tree / "testbed" / "fiberd" / "fiberd"
    assert "usage: fiberd" in subprocess.run([binary, "--help"], capture_output=True, text=True).stderr


def test_without_one_the_wheel_is_pure_and_says_so(
    hook_module: Any, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tree / "testbed" / "fiberd" / "fiberd"
    stale.write_bytes(b"of another machine")
    monkeypatch.setenv("PATH", str(tree))
    monkeypatch.delenv("CC", raising=False)
    data, warnings = build(hook_module, tree)
    assert data == {"artifacts": [], "pure_python": True}
    assert not stale.exists()
    assert "no C compiler" in warnings[0] and "apt-get install gcc libc6-dev" in warnings[0]


def test_a_compiler_that_fails_is_quoted(hook_module: Any, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tree / "cc"
    broken.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    data, warnings = build(hook_module, tree)
    assert data["pure_python"] is True
    assert "no such header" in warnings[0]


def test_dynamic_libc_where_there_is_no_static_one(
    hook_module: Any, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = hook_module.find_compiler()
    if not compiler:
        pytest.skip("no C compiler")
    no_static = tree / "cc"
    no_static.write_text(
        f'#!/bin/sh\ncase " $* " in *" -static "*) exit 1;; esac\nexec {shutil.which(compiler[0])} "$@"\n'
    )
    no_static.chmod(0o755)
    monkeypatch.setenv("CC", str(no_static))
    data, warnings = build(hook_module, tree)
    assert warnings == [] and data["pure_python"] is False


def test_makefile_and_hook_compile_the_same_files(hook_module: Any) -> None:
    assert set(hook_module.SOURCES) == {path.name for path in (ROOT / "testbed" / "fiberd").glob("*.c")}
    makefile = (ROOT / "testbed" / "fiberd" / "Makefile").read_text()
    (sources,) = [line for line in makefile.splitlines() if line.startswith("SOURCES")]
    assert set(sources.split(" = ")[1].split()) == set(hook_module.SOURCES)
