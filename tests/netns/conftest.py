"""A lab of the default topology for tests that do not break it, another host, and the command line as a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_hosts
from builders.commands import TESTBED, Command, captured, words_of
from builders.labs import GATEWAYS, Lab, OwnLab, bring_up, is_dark, shared_lab
from client_of_hosts import Far, lab_up, nothing_left
from oracles import oracle
from ssh_hosts import Hosts

lab = shared_lab()
"""metro-40km without agents; modules that need another lab have a fixture of this name."""


@pytest.fixture
def healthy(lab: Lab) -> Iterator[Lab]:
    """Provide ``lab``; heal all faults after the test."""
    yield lab
    lab.heal()
    for link in ("north", "south"):
        oracle.until(lambda link=link: carrier_up(lab, link), 5.0, f"{link} has its carrier")  # type: ignore[misc]


@pytest.fixture
def own(lab_name: str, state_folder: Path) -> OwnLab:
    """Provide an unused name; at the end of the test nothing of the lab may be left."""
    return OwnLab(lab_name, state_folder)


@pytest.fixture
def doomed(lab_name: str) -> Iterator[Lab]:
    """Provide a lab that the test may break."""
    with bring_up(lab_name) as up:
        yield up


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the working directory, which programs can enter and write."""
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def carrier_up(lab: Lab, link: str) -> bool:
    return not any(is_dark(lab, gateway, link) for gateway in GATEWAYS)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Provide one host, h1, with the lab ``far``; modules that need others have a fixture of this name."""
    with ssh_hosts.hosts("h1") as made, lab_up(made, "h1"):
        yield made


@pytest.fixture
def far(hosts: Hosts) -> Iterator[Far]:
    """Provide the only host of ``hosts``; nothing of a command may be left there afterwards."""
    with nothing_left(hosts) as host:
        yield host


@pytest.fixture
def command() -> Command:
    """``command("cut north -l", name)`` runs ``testbed cut north -l name``; the status is not checked."""
    return lambda line, *arguments, timeout_s=60.0: captured([*TESTBED, *words_of(line, *arguments)], timeout=timeout_s)
