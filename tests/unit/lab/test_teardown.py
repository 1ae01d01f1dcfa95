"""Taking down what a keeper left, from a journal that is made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import host_stalls
import pytest
from builders.lab_folders import journal_of, lab_folder

from testbed.core.plan.properties import Carrier, Throttled
from testbed.core.plan.resources import Containers, Namespace
from testbed.core.plan.step import Property, Step
from testbed.errors import LabError
from testbed.host import lab_owner
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.lab_folder import LabFolder
from testbed.keeper.journal import Journal
from testbed.keeper.throttle import Throttle
from testbed.lab import teardown

Undone = list[tuple[Step, dict[str, Any]]]
TAKEN_DOWN = r"^lab metro was taken down meanwhile$"


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> Undone:
    """What the drivers were asked to unmake, and with what facts; they do nothing."""
    steps: Undone = []

    def unmake(self: object, step: Step, facts: Mapping[str, Any]) -> None:
        steps.append((step, dict(facts)))

    monkeypatch.setattr(Containerlab, "unmake", unmake)
    monkeypatch.setattr(NetnsDriver, "unmake", unmake)
    return steps


@pytest.mark.parametrize("rebooted", [False, True])
def test_down_after_a_reboot_undoes_containers_only(tmp_path: Path, undone: Undone, rebooted: bool) -> None:
    lab = lab_folder(tmp_path)
    journal = journal_of(lab, "an earlier one" if rebooted else "")
    containers, namespace = Containers(("east-0",), "name: metro\n"), Namespace("somewhere")
    made = journal.intend("lab", (containers, namespace))
    made[0].facts, made[1].facts = {"pids": {"east-0": 4711}}, {"net": 99}
    journal.done(made)
    journal.close()
    assert teardown.down(lab)
    assert not lab.path.exists()
    whole = [(namespace, {"net": 99}), (containers, {"pids": {"east-0": 4711}})]
    assert undone == ([(containers, {})] if rebooted else whole), "pids and inodes of then are somebody else's now"


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("what", [None, "f2", "east"])
def test_a_heal_sets_back_what_a_keeper_had_only_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str | None, ended: bool
) -> None:
    """It was killed while it ended f1: nothing stands for f1, and the lab says nothing of a node's cable or CPU."""
    taken_off, lit = list[tuple[str, float | None]](), list[Property]()
    monkeypatch.setattr(Throttle, "set", lambda self, node, cpu: taken_off.append((node, cpu)))

    def assign(self: object, settings: Sequence[Property]) -> None:
        lit.extend(settings)

    monkeypatch.setattr(NetnsDriver, "assign", assign)
    lab = lab_folder(tmp_path)
    journal = journal_of(lab)
    for number, target in (("f1", "east"), ("f2", "west")):
        journal.note("fault", id=number, type="x", target=target, links=[], nodes=[])
    forgotten = journal.intend("f1", (Throttled(0, "east-0", 0.3), Carrier("east-gw", "east-0", False)))
    journal.intend("f2", (Throttled(1, "west-0", 0.5),))
    journal.forget(forgotten)
    if ended:
        journal.note("fault-ended", id="f1", t=1.0)
    journal.close()
    teardown.heal(lab, what)
    assert ("east-0", None) in taken_off
    assert (("west-0", None) in taken_off) == (what != "east")
    assert lit == [Carrier("east-gw", "east-0", True)]
    left = Journal.read(lab.journal)
    assert left.forgotten == {}
    assert [entry.owner for entry in left.entries.values()] == (["f2"] if what == "east" else [])


LOST = {
    "empty": b"",
    "a torn first line": b'{"journal":2,"lab":"me',
    "no first line": b'{"state":"up"}\n',
    "damaged": b"\xff\n",
    "missing": None,
}
"""What a journal may be of which nothing can be told."""


@pytest.fixture(params=LOST.values(), ids=list(LOST))
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> LabFolder:
    """A lab without a keeper, whose journal lists nothing."""
    lab = lab_folder(tmp_path)
    if request.param is not None:
        lab.journal.write_bytes(request.param)
    monkeypatch.setattr(teardown, "NETNS_FOLDER", tmp_path / "netns")
    (tmp_path / "netns").mkdir()
    return lab


def test_down_without_a_journal_goes_by_marks(lost: LabFolder, undone: Undone, tmp_path: Path) -> None:
    for name in ("tb.metro.plant", "tb.metro.east-0", "tb.metro-2.plant"):
        (tmp_path / "netns" / name).touch()
    for node in ("east-0", "west-0"):  # of west-0 somebody removed the name: what else holds it is here alone
        (lost.handles / node).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (lost.handles / "link").symlink_to(tmp_path / "elsewhere")
    assert teardown.down(lost)
    assert undone == [
        (Namespace("east-0", isolated=True), {}),
        (Namespace("plant"), {}),
        (Namespace("west-0", isolated=True), {}),
    ]
    assert not lost.path.exists()


def test_down_without_a_journal_removes_containers_too(lost: LabFolder, undone: Undone, tmp_path: Path) -> None:
    lost.docker.write_text(f"unix://{tmp_path}/docker.sock\n")
    assert teardown.down(lost)
    assert undone == [(Containers((), ""), {})]
    assert not lost.path.exists()


def test_heal_without_a_journal_is_refused(lost: LabFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "REMOVAL_BOUND_S", 0.05)
    with pytest.raises(LabError, match=r"^cannot heal lab metro: .*; it was brought up by an unknown user"):
        teardown.heal(lost, None)
    lab_owner.record(lost)
    with pytest.raises(LabError, match=r"^cannot heal lab metro: .*; .*testbed down metro"):
        teardown.heal(lost, None)
    assert not filelock.FileLock(lost.lock).is_locked


def test_a_lab_that_is_gone_before_it_is_healed(tmp_path: Path) -> None:
    lab = LabFolder(tmp_path / "metro")
    for ask in (lambda: teardown.heal(lab, None), lambda: teardown.faults_ever(lab)):
        with pytest.raises(LabError, match=TAKEN_DOWN):
            ask()
    assert not lab.exists()


def test_a_lab_that_goes_while_it_is_to_be_healed(tmp_path: Path) -> None:
    """Its journal is gone already, its folder not yet."""
    lab = lab_folder(tmp_path)
    going = threading.Timer(0.2, teardown.remove_folder, [lab])
    going.start()
    with pytest.raises(LabError, match=TAKEN_DOWN):
        teardown.heal(lab, None)
    going.join()


def test_heals_and_downs_at_once_end_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undone: Undone
) -> None:
    monkeypatch.setattr(NetnsDriver, "assign", lambda self, settings: None)
    said: list[str] = []

    def heal(lab: LabFolder) -> None:
        try:
            teardown.heal(lab, None)
        except LabError as error:
            said.append(str(error))
        except BaseException as error:
            said.append(repr(error))

    for number in range(20):
        lab = lab_folder(tmp_path, f"lab{number}")
        for many in range(30):
            (lab.path / f"file{many}").touch()
        journal = journal_of(lab)
        journal.intend("lab", (Namespace("somewhere"),))
        journal.note("fault", id="f1", type="x", target="east", links=[], nodes=[])
        journal.close()
        healers = [threading.Timer(0.001 * part, heal, [lab]) for part in range(8)]
        for healer in healers:
            healer.start()
        teardown.down(lab)
        for healer in healers:
            healer.join()
        assert set(said) <= {f"lab {lab.name} was taken down meanwhile"}
        assert not lab.path.exists()
        said.clear()


def test_heal_beside_another_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_folder(tmp_path)
    journal_of(lab).close()
    monkeypatch.setattr(teardown, "HEAL_BOUND_S", 0.1)
    began = time.monotonic()
    with (
        filelock.FileLock(lab.lock),
        pytest.raises(LabError, match=r"^another process is healing lab metro or taking it down; try again$"),
    ):
        teardown.heal(lab, None)
    assert host_stalls.elapsed_s(began) < 5.0


@pytest.mark.parametrize("kept", [b"", b"\xff", b"tcp://10.0.0.9:2375\n"])
def test_a_damaged_word_of_which_docker_is_to_be_mended_where_it_is(tmp_path: Path, kept: bytes) -> None:
    """DOCKER_HOST is not asked while the file is there."""
    lab = lab_folder(tmp_path)
    lab.docker.write_bytes(kept)
    with pytest.raises(LabError) as caught:
        teardown.down(lab)
    assert str(caught.value).endswith(
        "write its address into the file, as in unix:///var/run/docker.sock, or"
        f" remove {lab.docker} and set DOCKER_HOST"
    )
    assert "DOCKER_HOST=" not in str(caught.value)
