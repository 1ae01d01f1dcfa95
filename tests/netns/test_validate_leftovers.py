"""A validation leaves nothing in /tmp, however it ends: every library that is installed here."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.commands import TESTBED, Child, piped
from builders.conditions import ALONE, PYTHON
from oracles import oracle

from testbed.core.workload.mpi_launch import OF_DAEMONS
from testbed.host import collective_libraries
from testbed.host.linux import program_user

pytestmark = ALONE

PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
USER = (60_123, 60_123)
"""Nobody else's, so that what this user owns was made by this test's programs."""

BOUND_S = 240.0

QUICK = ("ring", "mpich", "openmpi")
"""Those with an mpiexec and its daemons, and one without; the others are tried by `make test-thorough`."""

INSTALLED = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
    for name, it in collective_libraries.registry().items()
    if not collective_libraries.why_not(it)
]

Begin = Callable[..., Child]


def left_in_tmp(lab: str) -> list[str]:
    """Return what the user of the programs owns, or carries the lab's name. Links are not followed."""
    found = []
    for place in PLACES:
        for it in place.iterdir():
            try:
                if it.lstat().st_uid == USER[0] or it.name.startswith(f"testbed-{lab}-"):
                    found.append(str(it))
            except FileNotFoundError:  # another test's
                continue
    return found


@pytest.fixture
def begin(lab_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(program_user.VARIABLE, str(USER[0]))
    monkeypatch.chdir(tmp_path)  # of root, so that programs run as the user named above

    def start(*words: str) -> Child:
        argv = [*TESTBED, "validate", *words, "--name", lab_name]
        return piped([*argv, "--allow-uncertified"], cwd=tmp_path)

    return start


def until_it_says(validating: Child, words: str) -> None:
    said = []
    for line in validating.stderr:
        said.append(line)
        if words in line:
            return
    pytest.fail("".join(said))


def leaves_nothing(validating: Child, lab: str, *statuses: int) -> None:
    """Wait for the end of a validation; it must have one of ``statuses`` and leave nothing in /tmp."""
    out, err = validating.communicate(timeout=BOUND_S)
    assert validating.returncode in statuses, out + err
    assert left_in_tmp(lab) == []


@PYTHON
@pytest.mark.thorough
@pytest.mark.parametrize("library", INSTALLED)
def test_a_validation_that_comes_to_its_end(begin: Begin, lab_name: str, library: str) -> None:
    leaves_nothing(begin(library, "--only", "correctness"), lab_name, 0)


@PYTHON
@pytest.mark.thorough
@pytest.mark.parametrize("library", INSTALLED)
def test_a_validation_that_is_interrupted_in_the_middle_of_a_fault(
    begin: Begin, lab_name: str, state_folder: Path, library: str
) -> None:
    """While programs hang, and must be killed: with them goes whatever would have removed their files."""
    validating = begin(library, "--only", "faults")
    until_it_says(validating, "starting its programs")
    until_it_says(validating, "faults ")
    validating.send_signal(signal.SIGINT)
    leaves_nothing(validating, lab_name, 130)
    oracle.until(lambda: not oracle.left_behind(lab_name, state_folder), 10.0, "nothing is left of the lab")


@PYTHON
@pytest.mark.thorough
@pytest.mark.parametrize("library", INSTALLED)
def test_a_validation_whose_programs_were_killed(begin: Begin, lab_name: str, library: str) -> None:
    """Every fault of the quick suite: programs hang in one, are killed in another, and are started anew."""
    leaves_nothing(begin(library, "--only", "faults"), lab_name, 0, 1)


@PYTHON
def test_a_validation_that_fails_to_start_its_programs(begin: Begin, lab_name: str, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("import os, pathlib\npathlib.Path(os.environ['TMPDIR'], 'x').write_text('x')\nos._exit(3)\n")
    own.chmod(0o644)
    leaves_nothing(begin(str(own), "--only", "correctness"), lab_name, 1, 3)


def test_mpichs_daemons_are_told_of_a_description_of_the_processors() -> None:
    """Without one they write it to /tmp themselves, whatever TMPDIR is, and leave it there when they are killed."""
    name, path = next(iter(OF_DAEMONS["mpich"].items()))
    assert name == "HWLOC_XMLFILE" and os.path.exists(path)  # noqa: PTH110
