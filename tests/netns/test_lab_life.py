"""Lifecycle of labs: names, resources of other programs, failing bring-ups, full disks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import Command, check_refused, run_line
from builders.conditions import LABS
from builders.labs import Lab, OwnLab, Topology, address_of, bring_up, is_dark, ns
from oracles import oracle

import testbed
from testbed.core.workload.workload import ProgramWorkload
from testbed.errors import (
    FidelityError,
    LabError,
    NameTaken,
    NoisyHost,
    StorageError,
    TestbedError,
    UnknownName,
    UserError,
)

pytestmark = LABS


@pytest.fixture
def foreign() -> Iterator[list[str]]:
    """Put names of network namespaces here once they are made: they are removed."""
    made: list[str] = []
    yield made
    for name in made:
        run_line(f"ip netns del {name}")


def identity_of(name: str) -> int:
    return Path("/run/netns", name).stat().st_ino


def broken(topology: Topology, **fields: object) -> Topology:
    """``topology`` with other values in its first link, past all validation."""
    first, *others = topology.links
    return dataclasses.replace(topology, links=(dataclasses.replace(first, **fields), *others))  # type: ignore[arg-type]


def test_two_labs_are_up_at_once_and_go_one_by_one(lab: Lab, own: OwnLab) -> None:
    with bring_up(own, "intra-metro-5km"):
        assert {it.name for it in testbed.labs()} == {lab.name, own}
        with pytest.raises(UserError, match="several labs are up"):
            testbed.attach()
        mine = oracle.addresses(oracle.netns(own, "west-0"), "fabric0")["inet"]
        assert len(oracle.ping(oracle.netns(own, "east-0"), mine, count=3)) == 3, "the same addresses, apart"
        with lab.cut("north"):
            assert not oracle.no_carrier(oracle.netns(own, "east-gw"), "north")
            assert is_dark(lab, "east-gw", "north")
    assert own.left() == []
    assert len(oracle.namespaces(lab.name)) == 8
    assert testbed.attach().name == lab.name


def test_a_name_that_is_up_is_taken_and_stays_up(lab: Lab) -> None:
    with pytest.raises(NameTaken, match=rf"lab {lab.name} is already up; .*testbed down {lab.name}"):
        testbed.up("metro-40km", name=lab.name, agents=False)
    assert lab.status().state == "up"
    address = address_of(lab, "west-0")
    assert oracle.ping(ns(lab, "east-0"), address)


@pytest.mark.parametrize("node", ["plant", "mgmt", "west-gw", "east-1"])
def test_a_namespace_of_somebody_else_is_named_and_left_alone(own: OwnLab, foreign: list[str], node: str) -> None:
    name = oracle.netns(own, node)
    run_line(f"ip netns add {name}")
    foreign.append(name)
    identity = identity_of(name)
    with pytest.raises(NameTaken, match=f"{name} exists.*live lab.*choose another --name"):
        testbed.up("metro-40km", name=own, agents=False)
    assert identity_of(name) == identity
    assert oracle.namespaces(own) == {node}
    assert not own.folder.exists()
    assert testbed.down(own) is False
    assert identity_of(name) == identity


def test_one_that_appears_while_the_lab_is_built_is_left_alone_too(lab_name: str, foreign: list[str]) -> None:
    """Behind the check that is made first: the reference path of a certification is not part of the plan."""
    name = oracle.netns(lab_name, "ref-a")
    run_line(f"ip netns add {name}")
    foreign.append(name)
    identity = identity_of(name)
    with pytest.raises(NameTaken, match=name):
        testbed.up("metro-40km", name=lab_name, agents=False)
    assert identity_of(name) == identity
    assert oracle.namespaces(lab_name) == {"ref-a"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "no/slash"}, "no/slash"),  # the kernel: dev_valid_name, net/core/dev.c
        ({"mtu": 20}, "could not"),  # the kernel: 68 bytes at least
        ({"delay_s": 1e6}, "north:west: delay"),  # the emulator, when all namespaces stand
    ],
)
def test_a_bring_up_that_fails_undoes_itself(own: OwnLab, fields: dict[str, object], words: str) -> None:
    with pytest.raises(TestbedError, match=words):
        testbed.up(broken(testbed.load("metro-40km"), **fields), name=own, agents=False)
    oracle.until(lambda: not own.left(), 5.0, "nothing is left")


@pytest.mark.alone
def test_a_rate_that_the_host_cannot_carry_is_refused_and_undone_unless_the_user_insists(own: OwnLab) -> None:
    """Ten terabits per second are more than any computer forwards: packets are late, or too slow."""
    topology = broken(testbed.load("intra-metro-5km"), rate_bps=1e13, queue_bytes=100_000_000)
    with pytest.raises((FidelityError, NoisyHost)) as refused:
        testbed.up(topology, name=own, agents=False)
    verdicts = ("outside tolerance", "not measurable on this host now")
    assert str(refused.value).startswith(tuple(f"the lab is {verdict}: north:" for verdict in verdicts))
    assert own.left() == []
    with bring_up(own, topology) as lab:
        assert lab.certificate is not None
        assert not lab.certificate.certified
        assert lab.status().links[0].verdict == ("bad" if lab.certificate.links[0].why else "not measured")


@pytest.mark.alone
def test_a_failed_lab_is_kept_on_wish(lab_name: str) -> None:
    topology = broken(testbed.load("metro-40km"), rate_bps=1e13, queue_bytes=100_000_000)
    with pytest.raises((FidelityError, NoisyHost)):
        testbed.up(topology, name=lab_name, agents=False, keep=True)
    assert testbed.attach(lab_name).status().state == "kept"
    assert len(oracle.namespaces(lab_name)) == 8
    assert testbed.down(lab_name) is True


def test_down_of_nothing_is_silent_and_successful(command: Command) -> None:
    assert testbed.down(oracle.unused_name()) is False
    for words in (("down", oracle.unused_name()), ("down", oracle.unused_name())):
        said = command(*words)
        assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    with pytest.raises(UserError):
        testbed.down("../somewhere")


def test_unknown_labs_offer_the_nearest(lab: Lab) -> None:
    with pytest.raises(UnknownName, match=lab.name):
        testbed.attach(lab.name + "x")


def test_a_lab_can_be_found_again_by_another_process(lab: Lab, command: Command) -> None:
    said = command(f"exec -l {lab.name} west-1 -- hostname")
    assert (said.returncode, said.stdout) == (0, "west-1\n")


def test_no_space_for_the_state(lab_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is built; and a disk that fills up later keeps nobody from taking the lab down."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("TESTBED_STATE", str(disk / "state"))
    run_line("mount -t tmpfs -o size=30m tmpfs", str(disk))
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(15_000_000))
        with pytest.raises(TestbedError, match="less than 20 MB free"):
            testbed.up("metro-40km", name=lab_name, agents=False)
        ballast.unlink()
        bring_up(lab_name)
        with ballast.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
            while True:
                stream.write(bytes(4096))
        lab = testbed.attach(lab_name)
        with pytest.raises(TestbedError, match="No space left on device"):
            for _ in range(50):  # the last page of the journal has room for a few
                lab.cut("north")
        assert testbed.down(lab_name) is True
        assert oracle.left_behind(lab_name, disk / "state") == []
        oracle.until(lambda: not oracle.started_under(disk / "state"), 5.0, "no process is left")
    finally:
        testbed.down(lab_name)
        run_line("umount --lazy", str(disk))


def test_down_ends_what_users_left_running_inside(own: OwnLab) -> None:
    lab = bring_up(own)
    name = oracle.netns(own, "east-0")
    lab.exec("east-0", ["sh", "-c", "trap '' TERM HUP; setsid sleep 1000 >/dev/null 2>&1 & exit 0"])
    oracle.until(lambda: oracle.inside_pids(name), 5.0, "it runs")
    lab.down()
    assert own.left() == []


def test_a_lab_that_is_down_says_so(lab_name: str) -> None:
    lab = bring_up(lab_name)
    lab.down()
    lab.down()
    with pytest.raises(LabError):
        lab.cut("north")


def test_a_lab_whose_journal_is_lost_goes_by_its_mark(own: OwnLab, command: Command) -> None:
    """Also where somebody removed the names of its namespaces before: their other handles are mounts in its folder."""
    bring_up(own)
    journal = own.folder / "journal.jsonl"
    try:
        oracle.kill(own.keepers())
        oracle.until(lambda: not oracle.emulator_pids(own), 10.0, "the emulator went with its keeper")
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[1:]))
        said = " ".join(command(f"status -l {own}").stdout.split())
        assert "not the first line of a journal" in said and "restarted" not in said
        os.truncate(journal, 0)
        check_refused(command(f"heal -l {own}"), 3, f"cannot heal lab {own}: ")
        for node in ("east-0", "plant"):
            run_line("ip netns del", oracle.netns(own, node))
    finally:
        done = command(f"down {own}")
    assert done.returncode == 0, done.stderr
    assert own.left() == []


def test_a_run_that_cannot_be_written_keeps_no_lab(lab_name: str) -> None:
    """Run records cannot be written any more: that is said, and the lab goes all the same."""
    with (
        pytest.raises(StorageError),
        bring_up(lab_name) as lab,
    ):
        lab.start(ProgramWorkload(("true",)), own_run=False).wait()  # the run's end is not recorded yet
        (lab.run_directory.path / "run.json").unlink()
    assert testbed.down(lab_name) is False
