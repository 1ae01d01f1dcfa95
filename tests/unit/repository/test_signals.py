"""No process is signalled by a number that may be another's: by pidfd, or as a child that nobody has reaped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from builders import ROOT

OWN_CHILDREN = {
    "testbed/host/doctor/trial.py": {"kill"},  # forks it and reaps it afterwards
    "testbed/host/drivers/containerlab.py": {"killpg"},
    "testbed/host/launcher_proxy.py": {"killpg"},
    "testbed/host/linux/foreground.py": {"killpg"},
    "testbed/host/remote/leash.py": {"killpg"},
    "testbed/lab/jobs/rank_signals.py": {"killpg"},
    "testbed/lab/validation/rank_programs.py": {"killpg"},
    "agents/testbed_agents/watchdog.py": {"killpg"},
}
"""Files that signal by number, each only children of its own that it has not reaped yet."""


def calls(path: Path) -> set[str]:
    """Return which of os.kill and os.killpg a file uses."""
    source = path.read_text()
    if not re.search(r"\bos\s*\.\s*kill", source):
        return set()
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return {node.attr for node in nodes if ast.unparse(node) in ("os.kill", "os.killpg")}


def test_signals_by_number_go_to_own_children_only() -> None:
    paths = [*(ROOT / "testbed").rglob("*.py"), *(ROOT / "agents").rglob("*.py")]
    assert {str(path.relative_to(ROOT)): names for path in paths if (names := calls(path))} == OWN_CHILDREN
