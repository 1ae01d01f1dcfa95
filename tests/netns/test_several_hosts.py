"""Hosts that are reached through another one, and several clients of a host at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_hosts
from builders.commands import check
from builders.conditions import HOSTS
from client_of_hosts import begun, bring_up, on
from oracles import oracle
from ssh_hosts import Hosts

pytestmark = HOSTS


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with ssh_hosts.hosts("h1", "h2") as made:
        made.config.write_text(made.config.read_text().replace("Host h2\n", "Host h2\n ProxyJump h1\n"))
        yield made


def test_a_host_is_reached_through_another_one(hosts: Hosts) -> None:
    # Through h1 alone, since the client's own way to h2 is cut by a route to nowhere.
    address = hosts.hosts[1].address
    oracle.run(*hosts.client("ip", "route", "add", "blackhole", f"{address}/32"))
    try:
        done = on(hosts, "ls labs --on h2")
    finally:
        oracle.run(*hosts.client("ip", "route", "del", f"{address}/32"))
    assert done.returncode == 0, done.stderr


def test_a_jump_host_of_another_key_is_refused_by_name(hosts: Hosts, tmp_path: Path) -> None:
    first, second = hosts.hosts
    known = tmp_path / "known_hosts"
    known.write_text(f"{first.address} {second.key}\n{second.address} {second.key}\n")
    config = tmp_path / "config"
    config.write_text(hosts.config.read_text().replace(str(hosts.known_hosts), str(known)))
    done = on(hosts, "ls labs --on h2", config=config)
    assert done.returncode == 2
    assert "h1: refused: it offers another key" in done.stderr.replace("\n", " ")
    assert f"{known}:1" in done.stderr.replace("\n", "")


@pytest.mark.thorough
def test_two_clients_at_once_make_two_labs_or_one_of_a_name(hosts: Hosts) -> None:
    words = ("--no-agents", "--allow-uncertified", "--on", "h1")
    two = [begun(hosts, f"up metro-single --name {name}", *words) for name in ("a1", "b1")]
    for client in two:
        _, told = client.communicate(timeout=120)
        assert client.returncode == 0, told
    same = [begun(hosts, "up metro-single --name c1", *words) for _ in range(2)]
    told = [client.communicate(timeout=120)[1] for client in same]
    assert sorted(client.returncode for client in same) in ([0, 2], [0, 3]), told
    assert not any("Traceback" in each for each in told)
    for name in ("a1", "b1", "c1"):
        check(on(hosts, f"down {name} --on h1"))


@pytest.mark.thorough
def test_a_dark_cable_behind_a_jump_host_is_noticed(hosts: Hosts) -> None:
    """The jump host goes on to acknowledge what the client sends."""
    host = hosts.hosts[1]
    bring_up(hosts, "h2")
    client = begun(hosts, "exec --on h2 -l far east-0 -- sleep 7142")
    oracle.until(lambda: "sleep 7142" in host.pids().values(), 90.0, "it runs there")
    hosts.cable(host, False)
    try:
        _, told = client.communicate(timeout=45)
        assert (client.returncode, "the connection was lost" in told) == (125, True)
        oracle.until(lambda: "sleep 7142" not in host.pids().values(), 45.0, "it ends there")
    finally:
        hosts.cable(host, True)
    check(on(hosts, "down far --on h2"))
