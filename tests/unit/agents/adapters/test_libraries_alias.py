"""The former name of testbed_agents.adapters, which adapters of users import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AGENTS = Path(__file__).resolve().parents[4] / "agents"


def test_an_adapter_that_imports_the_former_name_works_and_is_warned() -> None:
    code = (
        "from testbed_agents.libraries.helper import Adapter, main\n"
        "from testbed_agents.libraries.elements import split\n"
        "from testbed_agents.adapters import elements, helper\n"
        "print(Adapter is helper.Adapter, split is elements.split)"
    )
    argv = [sys.executable, "-W", "always", "-c", code]
    done = subprocess.run(argv, cwd=AGENTS, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True\n", done.stderr
    assert "testbed_agents.libraries is now testbed_agents.adapters" in done.stderr
