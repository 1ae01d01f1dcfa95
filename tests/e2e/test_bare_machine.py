"""`make demo` on a bare Debian without a compiler, from the checkout to the report (tests/builders/bare_machine.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import bare_machine

pytestmark = [pytest.mark.e2e, pytest.mark.netns, *bare_machine.marks, pytest.mark.alone]

BOUND_S = 1500
COMPILERS = "cc gcc clang c99 tcc"


def on_bare(script: str, folder: Path, **variables: str) -> tuple[int, str]:
    try:
        status, said = bare_machine.run(
            ["bash", "-c", script], folder / "said", timeout_s=BOUND_S, environment=variables
        )
    except bare_machine.Unavailable as why:
        pytest.skip(str(why))
    print(said)
    return status, said


def test_make_demo_works_to_the_report_without_a_compiler(tmp_path: Path) -> None:
    """What a newcomer types; what fails for load alone, a fiber out of tolerance, is no matter of this test."""
    status, said = on_bare(
        f"""
        if command -v {COMPILERS}; then exit 99; fi
        export TESTBED_RUNS=/srv/runs
        make demo; echo "demo: $?"
        .venv/bin/testbed doctor; echo "doctor: $?"
        .venv/bin/testbed run metro-40km --steps 20 --allow-uncertified; echo "run: $?"
        head -c 4 testbed/fiberd/fiberd | od -An -c
        ls -d /root/.cache/zig 2>&1; du -sm build/zig
        grep -rhoE "scheduling[^,]*SCHED_FIFO [0-9]+" /srv/runs | sort | uniq -c
        ls /srv/runs/*/index.html
        """,
        tmp_path,
    )
    assert status == 0
    assert re.search(r"^make demo: no C compiler here: .*ziglang==\S+ .*94 MB", said, re.MULTILINE)
    assert "doctor: 0" in said
    assert re.search(r"^.*fiberd +ok", said, re.MULTILINE) or re.search(r"ok +fiberd", said)
    assert "run: 0" in said or "run: 1" in said, "1: measured, and bad, as on a busy machine"
    assert re.search(r"scheduling.*SCHED_FIFO \d+", said), "musl's own sched_setscheduler does nothing"
    assert "177   E   L   F" in said
    assert "No such file or directory" in said.partition("/root/.cache/zig")[2], "the cache is in build/"
    assert len(re.findall(r"^/srv/runs/metro-40km-.*/index.html$", said, re.MULTILINE)) == 2, (
        "of the demo, and of the run"
    )


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PIP_NO_BUILD_ISOLATION": "0"}, "env -u PIP_NO_BUILD_ISOLATION make demo"),
        ({"PIP_NO_INDEX": "1"}, "apt-get install gcc libc6-dev"),
    ],
)
def test_without_a_compiler_for_the_build_it_says_so_at_once(
    variables: dict[str, str], words: str, tmp_path: Path
) -> None:
    status, said = on_bare("SECONDS=0; make demo; echo after $SECONDS s; ls -d .venv", tmp_path, **variables)
    assert status != 0
    assert words in said
    assert "creating .venv" not in said, "it has begun all the same"


def test_pip_without_build_isolation_fails_at_once_with_commands_that_work(tmp_path: Path) -> None:
    """By hand, as the guide has it without make."""
    status, said = on_bare(
        r"""
        python3 -m venv v && v/bin/pip -q install 'hatchling>=1.25' editables || exit 98
        v/bin/pip install --no-deps --no-build-isolation . && exit 97
        v/bin/pip install --no-deps --no-build-isolation . >words 2>&1
        line=$(grep -o '[^ ]*python[^ ]* -m pip install ziglang[^ ]*' words)
        echo "by the hint: $line"
        $line && v/bin/pip install --no-deps --no-build-isolation . && v/bin/python - <<'END'
import subprocess
from testbed.host.emulators.fiberd import find_binary
print(subprocess.run([find_binary(), "--help"], capture_output=True, text=True).stderr)
END
        """,
        tmp_path,
    )
    assert status == 0
    assert "no C compiler" in said and "apt-get install gcc libc6-dev" in said
    assert "usage: fiberd" in said
    assert "Traceback" not in said
