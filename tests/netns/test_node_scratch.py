"""Nodes of a launched program write the same paths and read their own back: in scratch, and in a /tmp of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.commands import Command, captured, run_line
from builders.conditions import LABS
from builders.json_files import read_json
from builders.labs import Lab, bring_up
from oracles import oracle

from testbed.errors import StorageError
from testbed.host import runner
from testbed.host.linux import program_user

pytestmark = LABS

NODES = ("east-0", "east-1", "west-0", "west-1")

SAME = """#!/bin/sh
# Each node writes its name; when all have, each rank reads what is there.
for place in "$TESTBED_SCRATCH" "$TMPDIR" /tmp; do echo "$TESTBED_NODE" > "$place/same-$TESTED"; done
echo "$TESTBED_NODE" > "/tmp/beside-$TESTED"
touch "$TESTBED_FOLDER/wrote"
i=0
until [ "$(ls "$TESTBED_FOLDER"/../*/wrote | wc -l)" -eq "$WORLD_SIZE" ]; do
    sleep 0.05; i=$((i+1)); [ $i -lt 400 ] || exit 9
done
for place in "$TESTBED_SCRATCH" "$TMPDIR" /tmp; do cat "$place/same-$TESTED"; done
cat "$TMPDIR/beside-$TESTED" || true
"""
"""As a file: an argument that names /tmp would have it shared."""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    run_line(f"mount -t tmpfs -o size=3m,mode=755 small {folder}")
    try:
        yield folder
    finally:
        run_line(f"umount --lazy {folder}")


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """Provide a folder on disk that is not in /tmp, as pytest's own are, with the program and a disk of 3 MB."""
    folder = Path(tempfile.mkdtemp(prefix="testbed-outside-", dir="/var/tmp"))
    folder.chmod(0o755)
    (folder / "same").write_text(SAME)
    (folder / "same").chmod(0o755)
    # Before the lab: nodes see what was mounted when they were made.
    with small_disk(folder / "small"):
        yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def lab(state_folder: Path, outside: Path) -> Iterator[Lab]:
    """Provide metro-40km whose state and runs are not in /tmp, and without variables that name it."""
    name = oracle.unused_name()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in os.environ.items():
            if "/tmp" in value.replace("/var/tmp", ""):
                patch.delenv(key)
        for key in ("SUDO_UID", "SUDO_GID", program_user.VARIABLE):
            patch.delenv(key, raising=False)
        patch.setenv("TESTBED_STATE", str(outside / "state"))
        patch.setenv("TESTBED_RUNS", str(outside / "runs"))
        with bring_up(name) as up:
            yield up
        assert oracle.left_behind(name, outside / "state") == []


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch, outside: Path) -> Iterator[str]:
    """Provide a part of names that no other test has; at the end remove the host's files of it."""
    name = oracle.unused_name()
    monkeypatch.chdir(outside)
    monkeypatch.setenv("TESTED", name)
    yield name
    for path in Path("/tmp").glob(f"*-{name}"):
        path.unlink()


def said(lab: Lab, *argv: str, ranks: int = 1, **options: Any) -> tuple[dict[str, list[str]], list[str]]:
    """Launch ``argv``; return the lines of each node's ranks, and notes on /tmp."""
    lines: list[str] = []
    notes: list[str] = []
    job = lab.launch(argv, echo=lines.append, note=notes.append, ranks_per_node=ranks, **options)
    assert job.exit_status(60.0) == 0, lines
    of_node: dict[str, list[str]] = {node: [] for node in NODES}
    for line in lines:
        head, _, text = line.partition("] ")
        of_node[NODES[int(head.removeprefix("[rank ")) // ranks]].append(text)
    return of_node, [it for it in notes if it.startswith("note: /tmp")]


def recorded(lab: Lab) -> dict[str, Any]:
    return read_json(lab.run_directory.path / "run.json")["workload"]["scratch"]


def test_each_node_has_its_own_scratch_and_tmp_and_its_ranks_share_them(lab: Lab, tested: str, outside: Path) -> None:
    found, notes = said(lab, str(outside / "same"), ranks=2)
    assert found == {node: [node] * 8 for node in NODES}
    assert notes == []
    assert list(Path("/tmp").glob(f"*-{tested}")) == [], "nothing of it is in the host's /tmp"
    scratch = recorded(lab)
    assert (scratch["own_tmp"], scratch["tmp_shared_because"], scratch["kept"]) == (True, "", False)
    for node, folder in scratch["folders"].items():
        assert Path(folder, f"same-{tested}").read_text() == f"{node}\n"
        state = Path(folder).stat()
        assert (state.st_uid, state.st_mode & 0o777) == (program_user.OWN_UID, 0o700)
    kind = captured(["stat", "-f", "-c", "%T", scratch["folders"]["east-0"]])
    assert kind.stdout.strip() != "tmpfs"
    # What one program leaves in scratch the next one finds, as long as the lab is up.
    assert said(lab, "sh", "-c", 'cat "$TESTBED_SCRATCH/same-$TESTED"')[0] == {node: [node] for node in NODES}


def test_as_root_nodes_have_their_own_too(lab: Lab, tested: str, outside: Path) -> None:
    found, _ = said(lab, str(outside / "same"), as_root=True)
    assert found == {node: [node] * 4 for node in NODES}
    assert {Path(it).stat().st_uid for it in recorded(lab)["folders"].values()} == {0}


def test_kept_scratch_is_in_the_run_directory_and_is_the_callers(
    lab: Lab, tested: str, monkeypatch: pytest.MonkeyPatch, outside: Path
) -> None:
    monkeypatch.setenv("SUDO_UID", "4242")
    monkeypatch.setenv("SUDO_GID", "4343")
    found, _ = said(lab, str(outside / "same"), keep_scratch=True)
    assert found == {node: [node] * 4 for node in NODES}
    for node in NODES:
        kept = lab.run_directory.path / "scratch" / node
        assert (kept / f"same-{tested}").read_text() == f"{node}\n"
        assert (kept.stat().st_uid, kept.stat().st_mode & 0o777) == (4242, 0o700)
    assert recorded(lab)["kept"] is True


@pytest.mark.parametrize("what", ["cwd", "program", "argument", "variable", "runs"])
def test_tmp_is_shared_where_something_of_the_program_lies_in_it(
    lab: Lab, tested: str, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    program, argv, options = outside / "same", list[str](), dict[str, Any]()
    if what == "cwd":
        monkeypatch.chdir(tmp_path)
        why = f"the current folder lies in it ({tmp_path})"
    elif what == "program":
        program = Path(shutil.copy(program, tmp_path))
        why = f"the program, its interpreter or its Python environment lies in it ({program})"
    elif what == "argument":
        argv, why = [f"--data={tmp_path}/x"], f"argument 1 names a path in it ({tmp_path}/x)"
    elif what == "variable":
        options, why = {"environment": {"DATA": str(tmp_path)}}, "the variable DATA names a path in it"
    else:
        options, why = {"directory": tmp_path / "runs"}, f"the folder of runs lies in it ({tmp_path}/runs/"
    found, (note,) = said(lab, str(program), *argv, **options)
    assert note.startswith(f"note: /tmp is shared by all nodes, because {why}")
    assert note.endswith("; $TESTBED_SCRATCH is each node's own")
    assert len({it[2] for it in found.values()}) == 1, "one file, of whoever wrote last"
    assert {node: it[:2] for node, it in found.items()} == {node: [node] * 2 for node in NODES}
    assert Path("/tmp", f"beside-{tested}").exists()
    scratch = recorded(lab)
    assert scratch["own_tmp"] is False and scratch["tmp_shared_because"].startswith(why)


def test_folders_that_a_program_cannot_write_are_named_before_it_begins(lab: Lab, tested: str, outside: Path) -> None:
    def notes(**options: Any) -> list[str]:
        found: list[str] = []
        assert lab.launch(["true"], note=found.append, **options).exit_status(60.0) == 0
        return found

    cannot = f"note: programs run as uid {program_user.OWN_UID} (the testbed's own), who cannot write in"
    assert notes() == [f"{cannot} {outside} (the current folder), but in $TESTBED_SCRATCH"]
    assert notes(environment={"HOME": "/usr"}) == [
        f"{cannot} {outside} (the current folder) or /usr (HOME), but in $TESTBED_SCRATCH"
    ]
    assert notes(read_only=True) == []
    outside.chmod(0o777)
    try:
        assert notes() == []
    finally:
        outside.chmod(0o755)


def test_files_that_several_nodes_write_are_named(lab: Lab, tested: str, outside: Path, command: Command) -> None:
    (folder := outside / "shared").mkdir(mode=0o777)
    folder.chmod(0o777)
    os.chdir(folder)  # `tested` goes back
    (folder / "out").mkdir()
    (folder / "out").chmod(0o777)
    # One is written by the rank's own process and one by a process of it; the others are each node's own.
    script = "echo x > log; python3 -c \"open('out/table', 'a').close()\"; echo x > \"of-$RANK\""
    script += '; echo x > "$TESTBED_SCRATCH/log"; cat log > /dev/null; [ $RANK = 0 ] && echo x > first; true'
    told = command(f"launch -l {lab.name} --allow-uncertified -- sh -c", script)
    assert told.returncode == 0, told.stderr
    nodes = ", ".join(NODES)
    assert f"note: several nodes wrote the same file: log ({nodes})" in " ".join(told.stderr.split())
    job = lab.launch(["sh", "-c", script])
    job.wait(60.0)
    assert job.same_files["log"] == list(NODES)
    assert set(job.same_files) <= {"log", "out/table"}
    found = read_json(lab.run_directory.path / "run.json")["workload"]["same_files"]
    assert found == job.same_files
    job = lab.launch(["sh", "-c", 'echo x > "of-$RANK"; cat log'])
    job.wait(60.0)
    assert job.same_files == {}


def test_a_full_disk_is_said(lab: Lab, tested: str, outside: Path) -> None:
    fills = ["sh", "-c", 'head -c 9000000 /dev/zero > "$TESTBED_SCRATCH/x"']
    job = lab.launch(fills, directory=outside / "small", keep_scratch=True)
    assert job.exit_status(60.0) != 0
    assert job.failure().rpartition("; ")[2] == f"the disk of {recorded(lab)['folders']['east-0']} is full"
    of_west = said(lab, "sh", "-c", 'echo "$TESTBED_SCRATCH"')[0]["west-0"][0]
    with small_disk(Path(of_west)) as full:
        os.chown(full, program_user.OWN_UID, program_user.OWN_UID)
        with pytest.raises(OSError), (full / "x").open("wb") as file:
            file.write(bytes(1 << 22))
        with pytest.raises(StorageError, match=f"scratch.*{full}"):
            lab.launch(["true"])


def test_no_link_takes_the_place_of_a_node_s_own_tmp(tmp_path: Path) -> None:
    """Programs own the folder: theirs may lead into one of root's, between the look at it and its mount."""
    (tmp_path / "secret").mkdir(mode=0o700)
    (tmp_path / "secret" / "open").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "own").touch()
    place = runner.Place(Path("/proc/self/ns/net"), own_tmp=tmp_path / "tmp")
    done = captured(place.enter(["ls", "/tmp"]), cwd="/")
    assert (done.returncode, done.stdout) == (0, "own\n"), done.stderr
    (tmp_path / "tmp").rename(tmp_path / "away")
    (tmp_path / "tmp").symlink_to("secret/open")
    done = captured(place.enter(["ls", "/tmp"]), cwd="/")
    assert (done.returncode, done.stdout) == (126, "")
