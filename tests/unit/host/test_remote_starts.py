"""Who may start what in a lab's nodes: the kernel's word on the asking process is replaced, nothing else."""

from __future__ import annotations

from collections.abc import Callable
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


Started = list[tuple[str, int]]

IN, ON_HOST, ROOT = Peer(INSIDE, UID, UID), Peer(HOST, UID, UID), Peer(HOST, 0, 0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return, for each start, the node and the uid."""
    started: Started = []

    def place(lab: LabFolder, node: str, *, job: bool, user: ProgramUser | None) -> runner.Place:
        started.append((node, user.uid if user else 0))
        return runner.Place(Path("/run/netns/x"), None, user)

    monkeypatch.setattr(remote_starts.lab_nodes, "place", place)
    return started


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SameUser:
    lab = LabFolder(tmp_path / "lab")
    monkeypatch.setattr(scratch, "of_lab", lambda lab: tmp_path)

    def is_inside(netns: Path, pid: int) -> bool:
        return pid == HOST if netns == Path("/proc/self/ns/net") else pid == INSIDE and netns.name.endswith("east-0")

    monkeypatch.setattr(remote_starts, "is_inside", is_inside)
    return SameUser(lab, catalog.load_topology("metro-40km", None))


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[int], None]:
    """Give a user keys."""
    return lambda uid: (tmp_path / f"ssh-{uid}").mkdir()


def test_only_the_labs_own_programs_may_ask(rules: SameUser) -> None:
    assert rules.refusal(IN) == ""
    assert rules.refusal(ON_HOST) == rules.refusal(Peer(ELSEWHERE, 0, 0)) == "it is not in lab lab"


def test_on_the_host_who_has_keys_may_ask_and_root(rules: SameUser, keys: Callable[[int], None]) -> None:
    keys(UID)
    assert rules.refusal(ON_HOST) == rules.refusal(ROOT) == ""
    assert rules.refusal(Peer(HOST, OTHER, OTHER)) != ""
    assert rules.refusal(Peer(ELSEWHERE, UID, UID)) != ""


@pytest.mark.parametrize("host", ["west-1", "west-1.mgmt", "west-1.fabric", "10.2.1.2", "172.31.0.5"])
def test_a_program_starts_as_who_asks_by_any_name_of_a_node(rules: SameUser, started: Started, host: str) -> None:
    for login in ("", str(OTHER)):
        assert isinstance(rules.enter(Peer(INSIDE, OTHER, OTHER), Wanted(host, "true", login)), Entered)
    assert started == [("west-1", OTHER)] * 2


@pytest.mark.parametrize("host", ["east-gw", "plant", "mgmt", "north-0", "localhost", "172.31.0.1", ""])
def test_nothing_starts_outside_of_nodes(rules: SameUser, started: Started, host: str) -> None:
    assert "unknown host" in str(rules.enter(IN, Wanted(host, "true")))
    assert started == []


@pytest.mark.parametrize("peer", [IN, Peer(INSIDE, 0, 0)])
@pytest.mark.parametrize("login", ["4321", "nobody"])
def test_nobody_inside_becomes_another(
    rules: SameUser, started: Started, keys: Callable[[int], None], peer: Peer, login: str
) -> None:
    keys(OTHER)
    assert "programs start as the user who asks" in str(rules.enter(peer, Wanted("west-1", "true", login)))
    assert started == []


def test_root_of_the_host_logs_in_where_the_user_may(
    rules: SameUser, started: Started, keys: Callable[[int], None]
) -> None:
    asked = Wanted("west-1", "true", str(OTHER))
    assert isinstance(rules.enter(ROOT, asked), str)
    keys(OTHER)
    assert isinstance(rules.enter(ROOT, asked), Entered)
    assert started == [("west-1", OTHER)]


def test_a_login_shell_is_refused(rules: SameUser) -> None:
    assert "expected a command" in str(rules.enter(IN, Wanted("west-1", "")))
