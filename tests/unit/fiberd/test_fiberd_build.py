"""The build hook with and without a C compiler. hatchling is only there while a wheel is built: a stand-in does.

A ziglang that compiles takes a download and a minute; here a stand-in records how it is called. tests/e2e/
test_bare_machine.py has the real one, on demand.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


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


def test_without_a_compiler_the_build_asks_for_a_pinned_one_and_uses_it(
    hook_module: Any, tree: Path, bare: Path
) -> None:
    hook = hook_module.FiberdBuildHook(tree)
    (requirement,) = hook.dependencies()
    assert re.fullmatch(r"ziglang==\d+\.\d+\.\d+", requirement)
    noted = put_ziglang(bare)
    data, warnings = build(hook_module, tree)
    assert warnings == []
    assert data["pure_python"] is False
    assert data["tag"] == f"py3-none-linux_{hook_module.architecture()}"
    assert data["artifacts"] == ["testbed/fiberd/fiberd"]
    cache, verb, *words = noted.read_text().splitlines()
    assert cache == str(tree / "build" / "zig"), "not in somebody's home"
    assert verb == "cc"
    target = words[words.index("-target") + 1]
    assert re.fullmatch(r"\w+-linux-musl(eabihf)?", target)
    assert "-static" in words, "no machine without a compiler has musl's dynamic loader"
    assert "-O2" in words
    assert words[-1] == "-lm"


def test_with_a_compiler_nothing_is_downloaded(hook_module: Any, tree: Path, bare: Path) -> None:
    hook = hook_module.FiberdBuildHook(tree)
    assert hook.dependencies() != []
    put_compiler(tree, "exit 0")
    assert hook.dependencies() == []


def test_a_compiler_without_the_headers_of_a_c_library_is_none(hook_module: Any, tree: Path, bare: Path) -> None:
    put_compiler(tree, "echo stdio.h: No such file or directory >&2; exit 1")
    assert hook_module.FiberdBuildHook(tree).dependencies() == [hook_module.ZIGLANG]


def put_compiler(folder: Path, script: str) -> None:
    (folder / "gcc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "gcc").chmod(0o755)


def test_without_build_isolation_it_fails_before_anything_else_with_commands_that_work(
    hook_module: Any, tree: Path, bare: Path
) -> None:
    stale = tree / "testbed" / "fiberd" / "fiberd"
    stale.write_bytes(b"of another machine")
    with pytest.raises(SystemExit) as caught:
        build(hook_module, tree)
    words = str(caught.value)
    assert not stale.exists()
    assert "no C compiler" in words and "--no-build-isolation" in words
    for command in (
        "apt-get install gcc libc6-dev",
        f"{sys.executable} -m pip install {hook_module.ZIGLANG}",
        "export TESTBED_WITHOUT_FIBERD=1",
    ):
        assert f"\n  {command}" in words


def test_a_compiler_from_the_index_that_fails_is_quoted(hook_module: Any, tree: Path, bare: Path) -> None:
    put_ziglang(bare, status=1)
    with pytest.raises(SystemExit, match="zig: no such target"):
        build(hook_module, tree)


def test_an_architecture_that_the_index_has_no_compiler_for(
    hook_module: Any, tree: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip would only say that it found no matching distribution."""
    monkeypatch.setattr(hook_module, "architecture", lambda: "mips64")
    put_ziglang(bare)
    assert hook_module.FiberdBuildHook(tree).dependencies() == []
    with pytest.raises(SystemExit) as caught:
        build(hook_module, tree)
    assert "apt-get install gcc" in str(caught.value)
    assert "pip install ziglang" not in str(caught.value)


def test_a_wheel_without_fiberd_is_pure_and_only_on_demand(
    hook_module: Any, tree: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ziglang(bare)
    monkeypatch.setenv("TESTBED_WITHOUT_FIBERD", "1")
    assert hook_module.FiberdBuildHook(tree).dependencies() == []
    data, warnings = build(hook_module, tree)
    assert data == {"artifacts": [], "pure_python": True}
    assert "TESTBED_WITHOUT_FIBERD" in warnings[0] and "netem" in warnings[0]


def test_a_compiler_that_fails_is_quoted(hook_module: Any, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tree / "cc"
    broken.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(SystemExit, match="no such header"):
        build(hook_module, tree)


def test_a_compiler_that_writes_nothing_has_failed(
    hook_module: Any, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "true")
    with pytest.raises(SystemExit, match="true failed: it ended with status 0 and wrote no file"):
        build(hook_module, tree)


def test_set_up_and_hook_name_one_compiler_and_the_same_architectures(hook_module: Any) -> None:
    script = (ROOT / "tools" / "setup.sh").read_text()
    assert f"readonly ziglang={hook_module.ZIGLANG} " in script
    (listed,) = re.findall(r"\$machine != @\(([\w|]+)\)", script)
    assert set(listed.split("|")) == set(hook_module.TARGETS)


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
