"""Scratch: whose it is, who can read it, that it is gone with the lab, and that no link in it is followed."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders.processes import call_by_sudo, needs_root
from builders.tables import table

from testbed.errors import StorageError
from testbed.host import scratch
from testbed.host.files.store import RunDirectory
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import OWN_UID, ProgramUser

OWN = ProgramUser(OWN_UID, OWN_UID, (), "testbed", None, "the testbed's own")


def owner_and_mode(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_mode & 0o777


def make_deep(folder: Path) -> None:
    """Make folders deeper than Python's stack, and than a process may have files open."""
    before = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(2000):
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
    finally:
        os.chdir(before)


def make_lab(path: Path) -> LabFolder:
    path.mkdir()
    return LabFolder(path)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabFolder]:
    lab = make_lab(tmp_path / "metro")
    yield lab
    scratch.remove(lab)


@pytest.fixture
def mine(lab: LabFolder) -> Path:
    return scratch.of_node(lab, "east-0", OWN)


@needs_root
def test_scratch_folders_are_the_users_and_go_with_the_lab(lab: LabFolder, mine: Path, tmp_path: Path) -> None:
    other = scratch.of_node(lab, "west-0", OWN)
    assert mine.parent == other.parent and mine != other
    assert scratch.of_node(lab, "east-0", OWN) == mine
    for folder in (mine, mine / "tmp"):
        assert owner_and_mode(folder) == (OWN_UID, 0o700), "nobody else reads it"
    assert owner_and_mode(mine.parent) == (0, 0o711)
    (mine / "link").symlink_to(tmp_path)
    (tmp_path / "kept").touch()
    scratch.remove(lab)
    assert not mine.parent.exists() and (tmp_path / "kept").exists()
    lab.scratch.write_text(str(tmp_path))  # not ours: only what carries the lab's name is removed
    scratch.remove(lab)
    assert tmp_path.exists()


@needs_root
def test_sockets_fit_below_the_scratch_folder_of_the_longest_names(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "the-first-lab-of-forty-characters-in-all")
    site = "frankfurt-am-main-east-campus-building-2"
    nodes = [f"{site}-0", f"{site}-255", f"{site[:-1]}3-0"]
    user = replace(OWN, uid=2**32 - 2)
    folders = [scratch.of_node(lab, node, OWN) for node in nodes]
    assert len(set(folders)) == len(nodes)
    for folder in (*folders, scratch.of_node(lab, nodes[1], user)):
        # The path of multiprocessing's listener, the longest that Python itself makes (unix(7): 107 bytes).
        path = folder / "tmp" / "pymp-12345678" / "listener-12345678"
        path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    scratch.remove(lab)
    assert not folders[0].parent.exists()


@needs_root
def test_the_scratch_folder_of_an_older_version_is_removed(tmp_path: Path) -> None:
    lab = make_lab(tmp_path / "the-first-lab-of-forty-characters-in-all")
    made = Path(tempfile.mkdtemp(prefix=f"testbed-{lab.name}-", dir="/tmp"))
    lab.scratch.write_text(str(made))
    scratch.remove(lab)
    assert not made.exists()


@needs_root
def test_root_itself_has_scratch_that_no_program_of_another_user_reads(lab: LabFolder, mine: Path) -> None:
    own = scratch.of_node(lab, "east-0", None)
    assert own != mine
    assert owner_and_mode(own) == (0, 0o700)


@needs_root
@table("put", {"a link": Path.symlink_to, "a file": lambda path, hosts: path.touch()})
def test_what_a_program_has_put_in_the_place_of_its_tmpdir_is_not_followed(
    lab: LabFolder, mine: Path, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    (hosts := tmp_path / "hosts").mkdir(mode=0o755)
    (mine / "tmp").rmdir()
    put(mine / "tmp", hosts)
    with pytest.raises(StorageError, match=f"cannot make scratch below.*: remove {mine / 'tmp'}"):
        scratch.of_node(lab, "east-0", OWN)
    assert owner_and_mode(hosts) == (0, 0o755)


@needs_root
def test_scratch_of_any_depth_is_removed(lab: LabFolder, mine: Path) -> None:
    make_deep(mine)
    scratch.remove(lab)
    assert not mine.parent.exists()


@needs_root
def test_scratch_that_a_cleaner_of_old_files_has_removed_is_made_again(lab: LabFolder, mine: Path) -> None:
    scratch.remove(lab)
    assert scratch.of_node(lab, "east-0", OWN) == mine and (mine / "tmp").is_dir()


@needs_root
def test_scratch_that_somebody_else_has_put_there_is_refused_and_stays(lab: LabFolder, mine: Path) -> None:
    top = mine.parent
    scratch.remove(lab)
    top.mkdir()
    os.chown(top, OWN_UID, OWN_UID)
    try:
        with pytest.raises(StorageError, match="is not the scratch folder of lab metro any more"):
            scratch.of_node(lab, "east-0", OWN)
        scratch.remove(lab)
        assert top.exists(), "only what carries the mark and is root's is removed"
    finally:
        top.rmdir()


@table(
    "blocks, inodes, text",
    {
        "no block": (0, 5, "is full"),
        "less than a MiB": (255, 5, "is full"),
        "a MiB": (256, 5, ""),
        "no inode": (256, 0, "no free inodes"),
    },
)
def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch, blocks: int, inodes: int, text: str) -> None:
    state = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=10, f_favail=inodes)
    monkeypatch.setattr(os, "statvfs", lambda path: state)
    shortage = scratch.shortage(Path("/srv/x"))
    assert text in shortage and bool(shortage) == bool(text)


@needs_root
def test_scratch_that_is_kept_is_the_users_alone_until_the_run_has_ended(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs", "x")
    folders = run.keep_scratch(["east-0", "west-0"], (OWN_UID, OWN_UID))
    assert folders == {node: run.path / "scratch" / node for node in ("east-0", "west-0")}
    for folder in folders.values():
        assert owner_and_mode(folder) == (OWN_UID, 0o700)
    assert (run.path / "scratch").stat().st_uid == 0, "programs cannot rename those of others"


@needs_root
def test_a_run_with_folders_of_any_depth_is_given_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_by_sudo(monkeypatch)
    run = RunDirectory.create(tmp_path / "runs", "x")
    (kept,) = run.keep_scratch(["east-0"], (OWN_UID, OWN_UID)).values()
    make_deep(kept)
    (kept / "beside").touch()
    run.give_to_caller()
    assert {path.stat().st_uid for path in (run.path, kept, kept / "d" / "d", kept / "beside")} == {4242}
    # pytest removes its folders by Python's own rmtree, which cannot.
    scratch.remove_tree(kept)
