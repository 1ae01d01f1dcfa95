"""No process is signalled by a number that may be another's: by pidfd, or as a child that nobody has reaped."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

OWN_CHILDREN = {
    "testbed/host/doctor/trial.py": {"kill"},  # forks it and reaps it afterwards
    "testbed/host/drivers/containerlab.py": {"killpg"},
    "testbed/host/launcher_proxy.py": {"killpg"},
    "testbed/host/linux/attended.py": {"killpg"},
    "testbed/host/remote/escalation.py": {"killpg"},
    "testbed/host/remote/leash.py": {"killpg"},
    "testbed/lab/jobs/rank_signals.py": {"killpg"},
    "testbed/lab/validation/rank_programs.py": {"killpg"},
    "agents/testbed_agents/watchdog.py": {"killpg"},
}
"""Files that signal by number, each only children of its own that it has not reaped yet."""


def calls(path: Path) -> set[str]:
    """Which of os.kill and os.killpg a file uses."""
    found = (it for it in ast.walk(ast.parse(path.read_text())) if isinstance(it, ast.Attribute))
    return {
        it.attr
        for it in found
        if it.attr in ("kill", "killpg") and isinstance(it.value, ast.Name) and it.value.id == "os"
    }


def test_signals_by_number_go_to_own_children_only() -> None:
    paths = [*(ROOT / "testbed").rglob("*.py"), *(ROOT / "agents").rglob("*.py")]
    assert {str(it.relative_to(ROOT)): found for it in paths if (found := calls(it))} == OWN_CHILDREN
