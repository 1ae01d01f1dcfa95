"""Which labs there are, and when that cannot be told: never taken for none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders.processes import needs_root
from builders.tables import table

from testbed.errors import LabError, StorageError, UserError
from testbed.host import lab_folder
from testbed.keeper import client
from testbed.lab import api, containers, deploy, status

NOBODY = 65534


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all labs; ``mine`` is one of them."""
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))
    (tmp_path / "state" / "labs" / "mine").mkdir(parents=True)
    return tmp_path / "state" / "labs"


def as_nobody(monkeypatch: pytest.MonkeyPatch, *refused: Path) -> None:
    """As another user would see it, without becoming one: ``refused`` may not be looked into."""
    real = os.access

    def access(path: str | Path, mode: int) -> bool:
        return Path(path) not in refused and real(path, mode)

    monkeypatch.setattr("testbed.host.lab_folder.os.access", access)


def test_by_name_and_without_files(labs: Path) -> None:
    (labs / "a-file").touch()
    (labs / "another").mkdir()
    assert [folder.name for folder in lab_folder.folders()] == ["another", "mine"]


def test_no_folder_is_no_lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "nowhere"))
    assert lab_folder.folders() == []
    assert not lab_folder.folder("mine").exists()
    assert api.down("mine") is False


def test_a_file_in_the_place_of_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "file"))
    for ask in (lab_folder.folders, api.labs, api.attach, lambda: api.down("mine"), api.down_all):
        with pytest.raises(StorageError, match="TESTBED_STATE must be a folder"):
            ask()


def test_labs_that_may_not_be_listed(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError(13, "Permission denied", str(labs))))
    with pytest.raises(StorageError, match="its labs are unknown: run as root"):
        api.labs()


def test_a_lab_of_another_user(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_nobody(monkeypatch, labs / "mine")
    assert [(lab.name, lab.state) for lab in api.labs()] == [("mine", status.FOREIGN)]
    for ask in (
        lambda: api.attach("mine"),
        api.attach,
        lambda: api.down("mine"),
        lambda: client.keeper(lab_folder.folder("mine")).hello(),
    ):
        with pytest.raises(LabError, match=r"^lab mine belongs to another user: run as root$") as caught:
            ask()
        assert caught.value.exit_code == 3
    assert (labs / "mine").is_dir()


@needs_root
def test_a_lab_of_root_seen_by_another_user(labs: Path) -> None:
    """The same with the kernel's own answer, in a child: there is no way back."""
    for folder in (labs, *list(labs.parents)[:-1]):
        if folder.stat().st_uid == 0 and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    (labs / "mine").chmod(0o700)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            if lab_folder.folder("mine").foreign and [lab.name for lab in lab_folder.folders()] == ["mine"]:
                os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_one_that_will_not_go_keeps_no_other_up(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (labs / "a-foreign-one").mkdir()
    as_nobody(monkeypatch, labs / "a-foreign-one")
    with pytest.raises(LabError, match="a-foreign-one"):
        api.down_all()
    assert not (labs / "mine").exists()


def test_a_lab_that_was_taken_down_meanwhile(labs: Path) -> None:
    folder = lab_folder.folder("mine")
    with pytest.raises(LabError, match="does not answer"):
        client.keeper(folder).hello()
    (labs / "mine").rmdir()
    topology = api.load("metro-40km")
    for ask in (lambda: client.keeper(folder).hello(), lambda: status.status(folder, topology, None)):
        with pytest.raises(LabError, match=r"^lab mine was taken down meanwhile$"):
            ask()


@pytest.mark.parametrize("name", ["A", "a b", "-a", "a" * 41, "../a", "a\nb"])
@table(
    "use",
    {
        "down": api.down,
        "up": lambda name: api.choose(api.load("metro-40km"), name),
        "render": lambda name: containers.render(api.load("metro-40km"), name=name),
    },
)
def test_what_cannot_be_a_labs_name(labs: Path, use: Callable[[str], object], name: str) -> None:
    with pytest.raises(
        UserError, match=r"invalid lab name .*: expected 1 to 40 of a-z, 0-9 and -, without a leading -$"
    ):
        use(name)


def test_what_is_no_folder_in_the_place_of_a_lab_is_named(labs: Path) -> None:
    """`down` removes what it made, and this it did not make: it must not be offered."""
    (labs / "one").symlink_to("/nonexistent")
    (labs / "two").write_text("")
    for name in ("one", "two"):
        with pytest.raises(StorageError, match=f"labs/{name} exists and is not a lab.s folder; remove it"):
            deploy.make_folder(name)
    assert (labs / "one").is_symlink()
