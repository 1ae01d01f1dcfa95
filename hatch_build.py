"""Build hook: compile testbed/fiberd/fiberd, with the machine's C compiler or with one from the package index.

Where no C compiler works, :meth:`FiberdBuildHook.dependencies` adds a pinned ziglang (clang and musl in one wheel) to
the requirements of the build, which pip installs into the build's own environment and removes afterwards. It cannot
with ``--no-build-isolation``; the build then fails at once and says what to do. docs/fiberd.md has sizes and times.

The wheel is of one platform, ``py3-none-linux_ARCH``: its only machine code is static, so it runs beside any C
library of that architecture. With TESTBED_WITHOUT_FIBERD=1, and elsewhere than on Linux, the wheel is pure: fibers
then need a kernel with sch_netem. pip shows this hook's output only with -v, or if the build fails.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = (
    "main.c",
    "control.c",
    "plant.c",
    "fiber.c",
    "port.c",
    "packet.c",
    "frame.c",
    "chance.c",
    "strays.c",
    "stalls.c",
    "record.c",
)
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-Wall", "-Wextra")

ZIGLANG = "ziglang==0.15.2"
"""MIT licence; the wheel has 94 MB (x86_64). tools/setup.sh and docs/fiberd.md name version and size too."""

TARGETS = {
    "aarch64": "aarch64-linux-musl",
    "armv7l": "arm-linux-musleabihf",
    "i686": "x86-linux-musl",
    "ppc64le": "powerpc64le-linux-musl",
    "riscv64": "riscv64-linux-musl",
    "s390x": "s390x-linux-musl",
    "x86_64": "x86_64-linux-musl",
}
"""Architectures that ziglang has wheels for, as in the tags of wheels, and their names in Zig."""

COMPILE_TIMEOUT_S = 120
FETCHED_TIMEOUT_S = 1800
"""ziglang compiles the C library too: a minute of one core here, more on a small board."""

WITHOUT = "TESTBED_WITHOUT_FIBERD"


class FiberdBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling. A frontend asks before it makes the build's environment.

        The hook belongs to the target ``wheel``, so this is asked for wheels and editable installs, not for an sdist.
        """
        if unwanted() or architecture() not in TARGETS or find_compiler():
            return []
        return [ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        binary = root / "testbed" / "fiberd" / "fiberd"
        binary.unlink(missing_ok=True)  # a binary compiled elsewhere must not get into this wheel
        why_not = unwanted()
        if not why_not:
            compiler = find_compiler() or fetched_compiler()
            why_not = compile_fiberd(binary, compiler, binary.parent, cache=root / "build" / "zig")
            if why_not:
                self.app.abort(f"fiberd was not compiled: {why_not}.\n{advice()}")
        if why_not:
            self.app.display_warning(
                f"fiberd was not compiled: {why_not}. Without it, fibers need a kernel with netem."
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{architecture()}"
        build_data["artifacts"].append("testbed/fiberd/fiberd")  # despite .gitignore


def unwanted() -> str:
    """Return why this wheel is to be without fiberd; empty if it is to have it."""
    if platform.system() != "Linux":
        return f"it needs Linux, and this is {platform.system()}"
    if os.environ.get(WITHOUT, "") not in ("", "0"):
        return f"{WITHOUT} is set"
    return ""


def architecture() -> str:
    """Return the architecture of this Python as in the tag of a wheel: i686 for 32 bits on an x86_64 kernel."""
    from packaging.tags import platform_tags  # a dependency of hatchling

    return list(platform_tags())[-1].partition("_")[2]


def compile_fiberd(binary: Path, compiler: list[str], sources: Path, cache: Path | None = None) -> str:
    """Compile the helper to ``binary``. Returns why it could not, or an empty string.

    ``cache``: where ziglang keeps the C library that it compiled, so that the next build takes seconds.
    """
    if not compiler:
        return "no C compiler that works was found (tried $CC, cc, gcc, clang), nor ziglang in the build's environment"
    base = [*compiler, *FLAGS, "-o", str(binary), *SOURCES]
    # Static if possible, so that one binary runs in every container of this architecture; some systems lack a static
    # libc. ziglang always has one, and a dynamic binary of it would need a musl that the machine lacks.
    fetched = compiler == fetched_compiler()
    timeout_s = FETCHED_TIMEOUT_S if fetched else COMPILE_TIMEOUT_S
    environment = dict(os.environ)
    if fetched and cache is not None:
        environment |= {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    words = ""
    for linking in (["-static"],) if fetched else (["-static"], []):
        try:
            done = subprocess.run(
                [*base, *linking, "-lm"],
                cwd=sources, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{compiler[0]}: {error}"
        if done.returncode == 0 and binary.is_file():
            return ""
        words = done.stderr.strip() or f"it ended with status {done.returncode} and wrote no file"
    binary.unlink(missing_ok=True)
    return f"{' '.join(compiler)} failed: {words}"


def find_compiler() -> list[str]:
    """Return $CC, which may have arguments ("ccache gcc"), else the first known compiler that works, else nothing.

    A gcc without the headers of a C library compiles nothing. $CC is taken as it is: if it fails, its words are shown.
    """
    wanted = os.environ.get("CC", "").split()
    if wanted and shutil.which(wanted[0]):
        return wanted
    return next(([name] for name in ("cc", "gcc", "clang") if works(name)), [])


def works(compiler: str) -> bool:
    if shutil.which(compiler) is None:
        return False
    argv = [compiler, "-x", "c", "-o", os.devnull, "-"]
    program = "#include <stdio.h>\n#include <linux/if_packet.h>\nint main(void) { return 0; }\n"
    try:
        return subprocess.run(argv, input=program, capture_output=True, text=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def fetched_compiler() -> list[str]:
    """Return the command of ziglang's C compiler with musl, for this architecture; empty if it is not installed."""
    target = TARGETS.get(architecture())
    if target is None or importlib.util.find_spec("ziglang") is None:
        return []
    return [sys.executable, "-m", "ziglang", "cc", "-target", target]


def advice() -> str:
    """Return the ways to a fiberd, or without one, each a command."""
    ways = ["apt-get install gcc libc6-dev"]
    if architecture() in TARGETS:
        ways.append(
            f"{sys.executable} -m pip install {ZIGLANG}   # or install without --no-build-isolation: pip gets it"
        )
    ways.append(f"export {WITHOUT}=1   # only netem can emulate fibers then, in a kernel that has it")
    return "Do one of these, then install again:\n" + "\n".join(f"  {way}" for way in ways)
