"""Who may start what in a lab's nodes: the kernel's word on the asking process is replaced, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.host import remote_starts, runner, scratch
from testbed.host.files import catalog
from testbed.host.lab_folder import LabFolder
from testbed.host.launcher_proxy import Entered, Peer
from testbed.host.launcher_shim import Wanted
from testbed.host.linux.program_user import ProgramUser
from testbed.host.remote_starts import SameUser

UID, OTHER = 60_700, 4321
INSIDE, HOST, ELSEWHERE = 11, 12, 13


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return, for each start, the node and the uid."""
    found: list[tuple[str, int]] = []

    def place(lab: LabFolder, node: str, *, job: bool, user: ProgramUser | None) -> runner.Place:
        found.append((node, user.uid if user else 0))
        return runner.Place(Path("/run/netns/x"), None, user)

    monkeypatch.setattr(remote_starts.lab_nodes, "place", place)
    return found


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SameUser:
    lab = LabFolder(tmp_path / "lab")
    monkeypatch.setattr(scratch, "of_lab", lambda lab: tmp_path)

    def is_inside(netns: Path, pid: int) -> bool:
        return pid == HOST if netns == Path("/proc/self/ns/net") else pid == INSIDE and netns.name.endswith("east-0")

    monkeypatch.setattr(remote_starts, "is_inside", is_inside)
    return SameUser(lab, catalog.load_topology("metro-40km", None))


def test_only_the_labs_own_programs_may_ask(rules: SameUser) -> None:
    assert rules.refusal(Peer(INSIDE, UID, UID)) == ""
    assert rules.refusal(Peer(HOST, UID, UID)) == rules.refusal(Peer(ELSEWHERE, 0, 0)) == "it is not in lab lab"


def test_on_the_host_who_has_keys_may_ask_and_root(rules: SameUser, tmp_path: Path) -> None:
    (tmp_path / f"ssh-{UID}").mkdir()
    assert rules.refusal(Peer(HOST, UID, UID)) == rules.refusal(Peer(HOST, 0, 0)) == ""
    assert rules.refusal(Peer(HOST, OTHER, OTHER)) != ""
    assert rules.refusal(Peer(ELSEWHERE, UID, UID)) != ""


@pytest.mark.parametrize("host", ["west-1", "west-1.mgmt", "west-1.fabric", "10.2.1.2", "172.31.0.5"])
def test_a_program_starts_as_who_asks_by_any_name_of_a_node(
    rules: SameUser, started: list[tuple[str, int]], host: str
) -> None:
    assert isinstance(rules.enter(Peer(INSIDE, OTHER, OTHER), Wanted(host, "true")), Entered)
    assert isinstance(rules.enter(Peer(INSIDE, OTHER, OTHER), Wanted(host, "true", str(OTHER))), Entered)
    assert started == [("west-1", OTHER)] * 2


@pytest.mark.parametrize("host", ["east-gw", "plant", "mgmt", "north-0", "localhost", "172.31.0.1", ""])
def test_nothing_starts_outside_of_nodes(rules: SameUser, started: list[tuple[str, int]], host: str) -> None:
    assert "unknown host" in str(rules.enter(Peer(INSIDE, UID, UID), Wanted(host, "true")))
    assert started == []


@pytest.mark.parametrize("peer", [Peer(INSIDE, UID, UID), Peer(INSIDE, 0, 0)])
@pytest.mark.parametrize("login", ["4321", "nobody"])
def test_nobody_inside_becomes_another(
    rules: SameUser, started: list[tuple[str, int]], tmp_path: Path, peer: Peer, login: str
) -> None:
    (tmp_path / f"ssh-{OTHER}").mkdir()
    assert "programs start as the user who asks" in str(rules.enter(peer, Wanted("west-1", "true", login)))
    assert started == []


def test_root_of_the_host_logs_in_where_the_user_may(
    rules: SameUser, started: list[tuple[str, int]], tmp_path: Path
) -> None:
    asked = Wanted("west-1", "true", str(OTHER))
    assert isinstance(rules.enter(Peer(HOST, 0, 0), asked), str)
    (tmp_path / f"ssh-{OTHER}").mkdir()
    assert isinstance(rules.enter(Peer(HOST, 0, 0), asked), Entered)
    assert started == [("west-1", OTHER)]


def test_a_login_shell_is_refused(rules: SameUser) -> None:
    assert "expected a command" in str(rules.enter(Peer(INSIDE, UID, UID), Wanted("west-1", "")))
