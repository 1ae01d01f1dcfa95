"""Arguments of launched programs are any text: only those that are paths are looked at."""

from __future__ import annotations

from pathlib import Path

from testbed.host.linux import program_user
from testbed.lab import program_rights


def test_text_too_long_for_a_path_is_no_path() -> None:
    user = program_user.choose(Path("/"))
    code = "x = 1; " * 100
    program_rights.refuse_program(user, ["sh", "-c", code, "\0", ""], Path("/"))
    program_rights.refuse_program(user, [f"/{code}"], Path("/"))  # starting it says what is wrong
