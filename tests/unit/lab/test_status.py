"""What is said of a lab without a keeper, from what its folder holds."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import dead_exporters
from builders.followed_keeper import Keeper
from builders.lab_folders import journal_of, lab_folder

from testbed.core.topology import resolve
from testbed.errors import LabError
from testbed.host import lab_owner
from testbed.host.files import catalog
from testbed.host.lab_folder import LabFolder
from testbed.keeper import client
from testbed.lab import api, status, teardown

METRO = catalog.load_topology("metro-40km", None)
EAST = resolve.load_text(b"sites: {east: {nodes: 1}}", "x")


@pytest.fixture
def lab(tmp_path: Path) -> LabFolder:
    """No keeper has it; its journal is that of this boot."""
    made = lab_folder(tmp_path)
    lab_owner.record(made)
    journal_of(made).close()
    return made


def why(lab: LabFolder) -> tuple[str, ...]:
    return status.status(lab, METRO, None).why


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the journal is empty: what is left of the lab is unknown"),
        (b'{"state":"up"}\n', "journal.jsonl:1: not the first line of a journal"),
    ],
)
def test_lost_journal_is_no_restart_of_the_machine(lab: LabFolder, content: bytes, message: str) -> None:
    lab.journal.write_bytes(content)
    reasons = why(lab)
    assert reasons[0] == "the keeper is gone; take it down with: testbed down metro"
    assert reasons[1].endswith(message)
    assert not any("restarted" in reason for reason in reasons)


def test_a_lab_that_goes_while_it_is_looked_at(lab: LabFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_answers(lab: LabFolder) -> None:
        shutil.rmtree(lab.path)
        raise LabError("nobody answers")

    monkeypatch.setattr(client, "Connection", nobody_answers)
    monkeypatch.setattr(teardown, "keeper_alive", lambda lab: False)
    with pytest.raises(LabError, match=r"^lab metro was taken down meanwhile$"):
        why(lab)


def test_of_another_boot_nothing_is_left(lab: LabFolder) -> None:
    lab.journal.unlink()
    journal_of(lab, "an earlier one").close()
    assert why(lab)[1] == "the machine was restarted: only the lab's folder is left"


def test_without_a_keeper_its_time_is_that_of_its_line_among_labs(lab: LabFolder) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(lab.path, (an_hour_ago, an_hour_ago))
    found = status.status(lab, METRO, None)
    assert found.uptime_s == pytest.approx(3600, abs=60)
    assert status.summary(lab).since_unix_s == pytest.approx(an_hour_ago)


@pytest.fixture
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lab of namespaces and two of containers, whose keepers all answer; the address of the docker of those two."""
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path))
    address = tmp_path / "d.sock"
    keepers = []
    for name in ("bare", "one", "two"):
        (tmp_path / "labs" / name).mkdir(parents=True)
        keepers.append(Keeper(tmp_path / "labs" / name))
        lab_owner.record(keepers[-1].lab)
        if name != "bare":
            keepers[-1].lab.docker.write_text(f"unix://{address}\n")
    yield address
    for keeper in keepers:
        keeper.end()


@pytest.mark.parametrize(
    ("frozen", "reason"), [(False, "docker is not running; start it: "), (True, "docker did not answer within 2 s ")]
)
def test_a_list_of_labs_says_degraded_soon_when_docker_is_gone(labs: Path, frozen: bool, reason: str) -> None:
    with socket.socket(socket.AF_UNIX) as docker:
        docker.bind(str(labs))
        if frozen:
            docker.listen(16)  # and never accepts
        found = api.labs()
    assert [(lab.name, lab.state) for lab in found] == [("bare", "up"), ("one", "degraded"), ("two", "degraded")]
    assert found[0].why == ()
    for lab in found[1:]:
        assert len(lab.why) == 1 and lab.why[0].startswith(reason), lab.why


def test_a_lab_whose_docker_does_not_answer_delays_no_other(labs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This docker hangs up once it was asked about both labs; asked one by one, it would not answer in time."""
    monkeypatch.setattr(status, "GLANCE_S", 20.0)
    with socket.socket(socket.AF_UNIX) as docker, ThreadPoolExecutor(1) as beside:
        docker.bind(str(labs))
        docker.listen(16)
        docker.settimeout(60.0)

        def hang_up_on_both() -> None:
            for connection in [docker.accept()[0] for _ in range(2)]:
                connection.close()

        served = beside.submit(hang_up_on_both)
        found = api.labs()
        served.result()
    assert [lab.why[0].partition(";")[0] for lab in found if lab.why] == ["docker is not running"] * 2


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    made.end()


def test_summary_agrees_with_status(tmp_path: Path, keeper: Keeper) -> None:
    keeper.lab.docker.write_text(f"unix://{tmp_path}/none.sock\n")
    keeper.ranks = {}
    line, whole = status.summary(keeper.lab), status.status(keeper.lab, EAST, None)
    assert (line.state, line.state) == ("degraded", whole.state)
    assert set(line.why) <= set(whole.why) and line.why


def test_status_of_64_ranks_that_do_not_answer_takes_less_than_2_seconds(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = b"sites: {east: {nodes: 32}, west: {nodes: 32}}\nlinks: {north: {between: [east, west], km: 4}}"
    topology = resolve.load_text(wide, "x")
    monkeypatch.setattr(status.namespace, "inside", lambda path, work: work())
    training = {"state": "training", "reason": ""}
    with dead_exporters.addresses(64) as addresses:
        for rank, (node, address) in enumerate(zip(topology.node_names, addresses, strict=True)):
            site = node.partition("-")[0]
            keeper.ranks[rank] = {"rank": rank, "node": node, "site": site, "metrics": address, **training}
        durations_s = []
        for _ in range(3):
            began = time.monotonic()
            found = status.status(keeper.lab, topology, None)
            durations_s.append(time.monotonic() - began)
    assert [(rank.state, rank.step) for rank in found.ranks] == [("training", None)] * 64
    assert sorted(durations_s)[1] < 2.0


@pytest.mark.parametrize(("uptime_s", "share"), [(3.0, 0.1), (3600.0, 0.005)])
def test_the_noise_of_a_young_lab_is_that_since_it_came_up(uptime_s: float, share: float) -> None:
    """A stall log begins with the lab: 0.3 s of stalls are a tenth of the first 3 s."""
    connection: Any = SimpleNamespace(
        keeper=SimpleNamespace(
            stalls=lambda since: {"watching": True, "next": 1, "stalls": [(0, time.monotonic() - 1.0, 0.3)]}
        )
    )
    noise = status.recent_noise(connection, uptime_s)
    assert noise is not None
    assert noise.stalled_share == pytest.approx(share)
