"""Which lab a command takes by itself, and what it says of labs of other users and other login sessions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.processes import needs_root
from builders.tables import table

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


Be = Callable[[Login], None]
BringUp = Callable[..., lab_folder.LabFolder]


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Be:
    """Become another user, or the same one of another login."""
    return lambda user: monkeypatch.setattr(login, "current", lambda: user)


@pytest.fixture
def bring_up(be: Be) -> BringUp:
    """Make the folder of a lab of ``owner``; None: of a version that recorded no owner."""

    def bring_up(name: str, owner: Login | None = ANNA) -> lab_folder.LabFolder:
        folder = lab_folder.folder(name)
        folder.path.mkdir(parents=True)
        if owner is not None:
            be(owner)
            lab_owner.record(folder)
        return folder

    return bring_up


def test_the_only_lab_is_taken_if_the_same_user_brought_it_up(be: Be, bring_up: BringUp) -> None:
    metro = bring_up("metro")
    assert lab_owner.chosen(changes=True) == metro
    be(Login(ANNA.uid, 99, "/dev/pts/9"))
    assert lab_owner.chosen(changes=True) == metro, "another login session of the same user may, and is told"


@table("owner, by", {"another user's": (ANNA, "uid 4711 at "), "of an unknown user": (None, "an unknown user")})
def test_a_lab_of_another_user_is_only_changed_by_name_and_looked_at_freely(
    monkeypatch: pytest.MonkeyPatch, be: Be, bring_up: BringUp, owner: Login | None, by: str
) -> None:
    metro = bring_up("metro", owner)
    be(Login(4712))
    with pytest.raises(UserError) as refused:
        lab_owner.chosen(changes=True, command="testbed cut -l {} north".format)
    assert refused.value.exit_code == 2
    for text in ("uid 4712", "testbed cut -l metro north", f"brought up by {by}"):
        assert text in str(refused.value)
    assert "testbed down" not in str(refused.value)
    assert lab_owner.chosen() == metro
    assert lab_owner.chosen("metro", changes=True) == metro
    monkeypatch.setenv("TESTBED_LAB", "metro")
    assert lab_owner.chosen(changes=True) == metro


@pytest.mark.parametrize("changes", [True, False])
def test_of_several_labs_one_must_be_named_and_each_is_listed_with_the_command(
    bring_up: BringUp, changes: bool
) -> None:
    bring_up("one")
    bring_up("two")
    with pytest.raises(UserError, match="several labs are up") as refused:
        lab_owner.chosen(changes=changes, command="testbed heal -l {}".format)
    _, *lines = str(refused.value).splitlines()
    assert [line.split("  # ")[0].strip() for line in lines] == ["testbed heal -l one", "testbed heal -l two"]
    with pytest.raises(UnknownName):
        lab_owner.chosen("three", changes=changes)


def test_without_a_lab_the_way_to_one_is_said() -> None:
    with pytest.raises(UserError, match="no lab is up"):
        lab_owner.chosen(changes=True)


@table(
    "then, now, elsewhere",
    {
        "the same login": ((7, "/dev/pts/3"), (7, "/dev/pts/3"), False),
        "another window of the same login": ((7, "/dev/pts/3"), (7, "/dev/pts/4"), False),
        "the terminal's number was used again": ((7, "/dev/pts/3"), (8, "/dev/pts/3"), True),
        "a service": ((7, "/dev/pts/3"), (None, ""), True),
        "the same terminal": ((None, "/dev/pts/3"), (None, "/dev/pts/3"), False),
        "another terminal": ((None, "/dev/pts/3"), (None, "/dev/pts/4"), True),
        "nothing to tell by now": ((None, "/dev/pts/3"), (None, ""), False),
        "nothing to tell by": ((None, ""), (None, ""), False),
    },
)
def test_another_login_session_is_told_by_its_audit_number_else_by_its_terminal(
    be: Be, bring_up: BringUp, then: tuple[int | None, str], now: tuple[int | None, str], elsewhere: bool
) -> None:
    metro = bring_up("metro", Login(ANNA.uid, *then))
    be(Login(ANNA.uid, *now))
    strangers = lab_owner.strangers(metro)
    assert bool(strangers) is elsewhere
    if elsewhere:
        assert "lab metro was brought up by uid 4711 at 20" in strangers
        assert (then[1] or "no terminal") in strangers


def test_a_hint_to_take_a_lab_down_is_for_its_owner_alone(be: Be, bring_up: BringUp) -> None:
    metro, old = bring_up("metro"), bring_up("old", None)
    assert lab_owner.or_down(metro) == "take it down with: testbed down metro"
    be(Login(ANNA.uid, 8, "/dev/pts/9"))
    assert "from /dev/pts/3" in lab_owner.or_down(metro)
    be(Login(4712))
    for folder in (metro, old):
        assert "testbed down" not in lab_owner.or_down(folder)
        assert "brought up by" in lab_owner.or_down(folder)
        assert lab_owner.strangers(folder)
    assert lab_owner.strangers(lab_folder.folder("gone")) == ""


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{}", '{"uid": "root"}', '{"uid": -1}', '{"uid": 1e999}', '{"uid": true}', "\xff"]
)
def test_a_damaged_record_is_no_owner(bring_up: BringUp, content: str) -> None:
    metro = bring_up("metro", None)
    metro.owner.write_text(content, encoding="latin-1")
    assert lab_owner.owner(metro) is None
    with pytest.raises(UserError, match="unknown user"):
        lab_owner.chosen(changes=True)


@needs_root
def test_behind_sudo_the_user_is_the_one_who_called_it() -> None:
    caller = login.current({"SUDO_UID": "1234", "SUDO_TTY": "/dev/pts/8"})
    assert caller == Login(1234, login.current({}).session, "/dev/pts/8")
    assert login.current({}).uid == login.current({"SUDO_UID": "-1"}).uid == os.getuid()


def test_the_record_has_what_is_documented(bring_up: BringUp) -> None:
    metro = bring_up("metro")
    assert json.loads(metro.owner.read_text()).keys() == {"uid", "session", "terminal", "since_unix_s"}


@pytest.mark.parametrize("variable", ["", "one", "two"])
@pytest.mark.parametrize("owners", [{"one": 4711}, {"one": 4711, "two": 4711}, {"one": 9}, {"one": 9, "two": 4711}])
def test_a_command_names_its_lab_exactly_where_it_would_not_be_taken(
    monkeypatch: pytest.MonkeyPatch, be: Be, bring_up: BringUp, owners: dict[str, int], variable: str
) -> None:
    for name, uid in owners.items():
        bring_up(name, Login(uid))
    be(Login(4711))
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
