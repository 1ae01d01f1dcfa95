"""Build hook: compile testbed/fiberd/fiberd if the machine has a C compiler.

With a compiler, the wheel is platform-specific (``py3-none-linux_x86_64``), and an editable install finds the binary in
the tree. Without one, the wheel is pure and the install succeeds: the emulator netem still works, and `testbed doctor`
reports what is missing. pip shows this hook's output only with -v.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("main.c", "control.c", "plant.c", "fiber.c", "port.c", "packet.c", "frame.c", "chance.c", "strays.c")
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g1", "-Wall", "-Wextra")
COMPILE_TIMEOUT_S = 120


class FiberdBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        binary = Path(self.root) / "testbed" / "fiberd" / "fiberd"
        binary.unlink(missing_ok=True)  # a binary compiled elsewhere must not get into this wheel
        why_not = compile_fiberd(binary)
        if why_not:
            self.app.display_warning(
                f"fiberd was not compiled: {why_not}. Without it, fibers need a kernel with netem. "
                "To get fiberd: apt-get install gcc libc6-dev, then install again."
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append("testbed/fiberd/fiberd")  # despite .gitignore


def compile_fiberd(binary: Path) -> str:
    """Compile the helper to ``binary``. Returns why it could not, or an empty string."""
    compiler = find_compiler()
    if not compiler:
        return "no C compiler found (tried $CC, cc, gcc, clang)"
    base = [*compiler, *FLAGS, "-o", str(binary), *SOURCES]
    words = ""
    # Static if possible, so that one binary runs in every container of this architecture; some systems lack a static
    # libc.
    for linking in (["-static"], []):
        try:
            done = subprocess.run(
                [*base, *linking, "-lm"], cwd=binary.parent, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{compiler[0]}: {error}"
        if done.returncode == 0:
            return ""
        words = done.stderr.strip()
    binary.unlink(missing_ok=True)
    return f"{compiler[0]} failed: {words}"


def find_compiler() -> list[str]:
    """Return $CC, which may have arguments ("ccache gcc"), else the first known compiler; empty if there is none."""
    wanted = os.environ.get("CC", "").split()
    if wanted and shutil.which(wanted[0]):
        return wanted
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])
