"""Which lab a command takes by itself, and what it says of labs of other users and other login sessions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testbed.errors import UnknownName, UserError
from testbed.host import lab_folder, lab_owner
from testbed.host.linux import login
from testbed.host.linux.login import Login

ANNA = Login(4711, 7, "/dev/pts/3")
"""No user of this machine: she has no name."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    monkeypatch.delenv("TESTBED_LAB", raising=False)
    return tmp_path


def be(monkeypatch: pytest.MonkeyPatch, who: Login) -> None:
    monkeypatch.setattr(login, "current", lambda: who)


def bring_up(monkeypatch: pytest.MonkeyPatch, name: str, who: Login | None) -> lab_folder.LabFolder:
    """Make the folder of a lab of ``who``; None: of a version that recorded no owner."""
    folder = lab_folder.folder(name)
    folder.path.mkdir(parents=True)
    if who is not None:
        be(monkeypatch, who)
        lab_owner.record(folder)
    return folder


def test_the_only_lab_is_taken_if_the_same_user_brought_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    metro = bring_up(monkeypatch, "metro", ANNA)
    assert lab_owner.chosen(changes=True) == metro
    be(monkeypatch, Login(ANNA.uid, 99, "/dev/pts/9"))
    assert lab_owner.chosen(changes=True) == metro, "another login session of the same user may, and is told"


@pytest.mark.parametrize("owner", [ANNA, None], ids=["another user's", "of an unknown user"])
def test_a_lab_of_another_user_is_only_changed_by_name_and_looked_at_freely(
    monkeypatch: pytest.MonkeyPatch, owner: Login | None
) -> None:
    metro = bring_up(monkeypatch, "metro", owner)
    be(monkeypatch, Login(4712))
    with pytest.raises(UserError) as refused:
        lab_owner.chosen(changes=True, command="testbed cut -l {} north".format)
    assert refused.value.exit_code == 2
    said = str(refused.value)
    assert "uid 4712" in said
    assert "testbed cut -l metro north" in said
    assert ("brought up by uid 4711 at " if owner else "brought up by an unknown user") in said
    assert "testbed down" not in said
    assert lab_owner.chosen() == metro
    assert lab_owner.chosen("metro", changes=True) == metro
    monkeypatch.setenv("TESTBED_LAB", "metro")
    assert lab_owner.chosen(changes=True) == metro


@pytest.mark.parametrize("changes", [True, False])
def test_of_several_labs_one_must_be_named_and_each_is_listed_with_the_command(
    monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    bring_up(monkeypatch, "one", ANNA)
    bring_up(monkeypatch, "two", ANNA)
    with pytest.raises(UserError, match="several labs are up") as refused:
        lab_owner.chosen(changes=changes, command="testbed heal -l {}".format)
    assert [line.split("  # ")[0].strip() for line in str(refused.value).splitlines()[1:]] == [
        "testbed heal -l one",
        "testbed heal -l two",
    ]
    with pytest.raises(UnknownName):
        lab_owner.chosen("three", changes=changes)


def test_without_a_lab_the_way_to_one_is_said() -> None:
    with pytest.raises(UserError, match="no lab is up"):
        lab_owner.chosen(changes=True)


@pytest.mark.parametrize(
    ("then", "now", "elsewhere"),
    [
        ((7, "/dev/pts/3"), (7, "/dev/pts/3"), False),
        ((7, "/dev/pts/3"), (7, "/dev/pts/4"), False),  # another window of the same login
        ((7, "/dev/pts/3"), (8, "/dev/pts/3"), True),  # the terminal's number was used again
        ((7, "/dev/pts/3"), (None, ""), True),  # a service
        ((None, "/dev/pts/3"), (None, "/dev/pts/3"), False),
        ((None, "/dev/pts/3"), (None, "/dev/pts/4"), True),
        ((None, "/dev/pts/3"), (None, ""), False),  # no telling
        ((None, ""), (None, ""), False),
    ],
)
def test_another_login_session_is_told_by_its_audit_number_else_by_its_terminal(
    monkeypatch: pytest.MonkeyPatch,
    then: tuple[int | None, str],
    now: tuple[int | None, str],
    elsewhere: bool,
) -> None:
    metro = bring_up(monkeypatch, "metro", Login(ANNA.uid, *then))
    be(monkeypatch, Login(ANNA.uid, *now))
    said = lab_owner.strangers(metro)
    assert bool(said) is elsewhere
    if elsewhere:
        assert "lab metro was brought up by uid 4711 at 20" in said
        assert (then[1] or "no terminal") in said


def test_a_hint_to_take_a_lab_down_is_for_its_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    metro, old = bring_up(monkeypatch, "metro", ANNA), bring_up(monkeypatch, "old", None)
    assert lab_owner.or_down(metro) == "take it down with: testbed down metro"
    be(monkeypatch, Login(ANNA.uid, 8, "/dev/pts/9"))
    assert "from /dev/pts/3" in lab_owner.or_down(metro)
    be(monkeypatch, Login(4712))
    for folder in (metro, old):
        assert "testbed down" not in lab_owner.or_down(folder)
        assert "brought up by" in lab_owner.or_down(folder)
        assert lab_owner.strangers(folder)
    assert lab_owner.strangers(lab_folder.folder("gone")) == ""


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{}", '{"uid": "root"}', '{"uid": -1}', '{"uid": 1e999}', '{"uid": true}', "\xff"]
)
def test_a_damaged_record_is_no_owner(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    metro = bring_up(monkeypatch, "metro", None)
    metro.owner.write_text(content, encoding="latin-1")
    assert lab_owner.owner(metro) is None
    with pytest.raises(UserError, match="unknown user"):
        lab_owner.chosen(changes=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for another user")
def test_behind_sudo_the_user_is_the_one_who_called_it() -> None:
    assert login.current({"SUDO_UID": "1234", "SUDO_TTY": "/dev/pts/8"}) == Login(
        1234, login.current({}).session, "/dev/pts/8"
    )
    assert login.current({}).uid == login.current({"SUDO_UID": "-1"}).uid == os.getuid()


def test_the_record_has_what_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    metro = bring_up(monkeypatch, "metro", ANNA)
    assert json.loads(metro.owner.read_text()).keys() == {"uid", "session", "terminal", "since_unix_s"}


@pytest.mark.parametrize("variable", ["", "one", "two"])
@pytest.mark.parametrize("owners", [{"one": 4711}, {"one": 4711, "two": 4711}, {"one": 9}, {"one": 9, "two": 4711}])
def test_a_command_names_its_lab_exactly_where_it_would_not_be_taken(
    monkeypatch: pytest.MonkeyPatch, owners: dict[str, int], variable: str
) -> None:
    for name, uid in owners.items():
        bring_up(monkeypatch, name, Login(uid))
    be(monkeypatch, Login(4711))
    monkeypatch.setenv("TESTBED_LAB", variable)
    words = lab_owner.flag("one")
    assert words in ((), ("-l", "one"))
    try:
        taken = lab_owner.chosen(words[1] if words else None, changes=True).name
    except UserError:
        taken = ""
    assert taken == "one", "with these words it is the lab that was meant"
    if len(owners) == 1 and owners["one"] == 4711 and variable in ("", "one"):
        assert words == (), "and none where it is taken anyway"
