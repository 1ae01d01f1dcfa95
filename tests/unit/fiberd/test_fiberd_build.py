"""The build hook with and without a C compiler. hatchling is only there while a wheel is built: a stand-in does.

A ziglang that compiles takes a download and a minute; here a stand-in records how it is called. tests/e2e/
test_bare_machine.py has the real one, on demand.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from builders.programs import FIBERD, run
from builders.tables import table


def abort(words: str) -> None:
    raise SystemExit(words)


@pytest.fixture
def hook_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("TESTBED_WITHOUT_FIBERD", raising=False)

    class Interface:
        def __class_getitem__(cls, item: object) -> type:
            return cls

        def __init__(self, root: Path) -> None:
            self.root = str(root)
            self.warnings: list[str] = []
            self.app = types.SimpleNamespace(display_warning=self.warnings.append, abort=abort)

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
    shutil.copytree(FIBERD, tmp_path / "testbed" / "fiberd", ignore=sources)
    return tmp_path


class Build:
    """A build of the tree's wheel."""

    def __init__(self, module: Any, tree: Path) -> None:
        self.module, self.tree, self.fiberd = module, tree, tree / "testbed" / "fiberd"
        self.warnings: list[str] = []

    def dependencies(self) -> list[str]:
        return self.module.FiberdBuildHook(self.tree).dependencies()  # type: ignore[no-any-return]

    def run(self) -> dict[str, Any]:
        hook = self.module.FiberdBuildHook(self.tree)
        data: dict[str, Any] = {"artifacts": [], "pure_python": True}
        hook.initialize("standard", data)
        self.warnings = hook.warnings
        return data

    def fail(self) -> str:
        """Return the error of a build that fails."""
        with pytest.raises(SystemExit) as caught:
            self.run()
        return str(caught.value)

    def put(self, name: str, script: str) -> Path:
        """Put a program of this name into the tree."""
        program = self.tree / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program


@pytest.fixture
def build(hook_module: Any, tree: Path) -> Build:
    return Build(hook_module, tree)


def test_with_a_compiler_the_wheel_is_of_this_platform(build: Build) -> None:
    if not build.module.find_compiler():
        pytest.skip("no C compiler")
    data = build.run()
    assert build.warnings == []
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-linux_") and "-" not in data["tag"].removeprefix("py3-none-")
    assert data["artifacts"] == ["testbed/fiberd/fiberd"]
    assert "usage: fiberd" in run(build.fiberd / "fiberd", "--help").stderr


@pytest.fixture
def bare(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a compiler, and a build's environment without ziglang; a folder on its import path."""
    modules = tree / "modules"
    modules.mkdir()
    monkeypatch.setenv("PATH", str(tree))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.syspath_prepend(str(modules))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec",
        lambda name, *rest: find_spec(name, *rest) if name != "ziglang" or (modules / name).exists() else None,
    )  # fmt: skip
    return modules


def put_ziglang(modules: Path, status: int = 0) -> Path:
    """A ziglang that notes its arguments and environment, and makes an empty program or fails."""
    (modules / "ziglang").mkdir()
    (modules / "ziglang" / "__init__.py").touch()
    noted = modules / "noted"
    (modules / "ziglang" / "__main__.py").write_text(
        "import os, pathlib, sys\n"
        f"pathlib.Path({str(noted)!r}).write_text(chr(10).join([os.environ['ZIG_GLOBAL_CACHE_DIR'], *sys.argv[1:]]))\n"
        f"if {status}: sys.exit('zig: no such target')\n"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).touch()\n"
    )
    return noted


def test_without_a_compiler_the_build_asks_for_a_pinned_one_and_uses_it(build: Build, bare: Path) -> None:
    (requirement,) = build.dependencies()
    assert re.fullmatch(r"ziglang==\d+\.\d+\.\d+", requirement)
    noted = put_ziglang(bare)
    data = build.run()
    assert build.warnings == []
    assert data["pure_python"] is False
    assert data["tag"] == f"py3-none-linux_{build.module.architecture()}"
    assert data["artifacts"] == ["testbed/fiberd/fiberd"]
    cache, verb, *words = noted.read_text().splitlines()
    assert cache == str(build.tree / "build" / "zig"), "not in somebody's home"
    assert verb == "cc"
    assert re.fullmatch(r"\w+-linux-musl(eabihf)?", words[words.index("-target") + 1])
    assert "-static" in words, "no machine without a compiler has musl's dynamic loader"
    assert "-O2" in words
    assert words[-1] == "-lm"


def test_with_a_compiler_nothing_is_downloaded(build: Build, bare: Path) -> None:
    assert build.dependencies() != []
    build.put("gcc", "exit 0")
    assert build.dependencies() == []


def test_a_compiler_without_the_headers_of_a_c_library_is_none(build: Build, bare: Path) -> None:
    build.put("gcc", "echo stdio.h: No such file or directory >&2; exit 1")
    assert build.dependencies() == [build.module.ZIGLANG]


def test_without_build_isolation_it_fails_first_with_commands_that_work(build: Build, bare: Path) -> None:
    stale = build.fiberd / "fiberd"
    stale.write_bytes(b"of another machine")
    error = build.fail()
    assert not stale.exists()
    assert "no C compiler" in error and "--no-build-isolation" in error
    for command in (
        "apt-get install gcc libc6-dev",
        f"{sys.executable} -m pip install {build.module.ZIGLANG}",
        "export TESTBED_WITHOUT_FIBERD=1",
    ):
        assert f"\n  {command}" in error


def test_a_compiler_from_the_index_that_fails_is_quoted(build: Build, bare: Path) -> None:
    put_ziglang(bare, status=1)
    assert "zig: no such target" in build.fail()


def test_an_architecture_that_the_index_has_no_compiler_for(
    build: Build, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip would only report that it found no matching distribution."""
    monkeypatch.setattr(build.module, "architecture", lambda: "mips64")
    put_ziglang(bare)
    assert build.dependencies() == []
    error = build.fail()
    assert "apt-get install gcc" in error
    assert "pip install ziglang" not in error


def test_a_wheel_without_fiberd_is_pure_and_only_on_demand(
    build: Build, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ziglang(bare)
    monkeypatch.setenv("TESTBED_WITHOUT_FIBERD", "1")
    assert build.dependencies() == []
    assert build.run() == {"artifacts": [], "pure_python": True}
    assert "TESTBED_WITHOUT_FIBERD" in build.warnings[0] and "netem" in build.warnings[0]


@table(
    "script, error",
    {
        "a compiler that fails is quoted": ("echo no such header >&2; exit 1", "no such header"),
        "a compiler that writes nothing has failed": (
            "exit 0",
            "/cc failed: it ended with status 0 and wrote no file",
        ),
    },
)
def test_a_build_whose_compiler_fails(build: Build, monkeypatch: pytest.MonkeyPatch, script: str, error: str) -> None:
    monkeypatch.setenv("CC", str(build.put("cc", script)))
    assert error in build.fail()


def test_set_up_and_hook_name_one_compiler_and_the_same_architectures(hook_module: Any) -> None:
    script = (ROOT / "tools" / "setup.sh").read_text()
    assert f"readonly ziglang={hook_module.ZIGLANG} " in script
    (listed,) = re.findall(r"\$machine != @\(([\w|]+)\)", script)
    assert set(listed.split("|")) == set(hook_module.TARGETS)


def test_dynamic_libc_where_there_is_no_static_one(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small sources: which libc is linked does not depend on them."""
    compiler = build.module.find_compiler()
    if not compiler:
        pytest.skip("no C compiler")
    for name in build.module.SOURCES:
        (build.fiberd / name).write_text("int main(void) { return 0; }\n" if name == "main.c" else "")
    script = f'case " $* " in *" -static "*) exit 1;; esac\nexec {shutil.which(compiler[0])} "$@"'
    monkeypatch.setenv("CC", str(build.put("cc", script)))
    data = build.run()
    assert build.warnings == [] and data["pure_python"] is False


def test_makefile_and_hook_compile_the_same_files(hook_module: Any) -> None:
    assert set(hook_module.SOURCES) == {path.name for path in FIBERD.glob("*.c")}
    (sources,) = re.findall(r"^SOURCES = (.*)$", (FIBERD / "Makefile").read_text(), re.MULTILINE)
    assert set(sources.split()) == set(hook_module.SOURCES)
