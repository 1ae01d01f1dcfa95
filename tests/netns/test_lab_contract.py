"""The lab contract and the rank fault contract on namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.lab_contract import FILE, Inside, LabContract
from contract.rank_faults_contract import RankFaultsContract, Space
from oracles import oracle

import testbed
from testbed.lab.lab import Lab

pytestmark = [pytest.mark.alone, pytest.mark.netns]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("t") / "two.yaml"
    path.write_text(FILE)
    with testbed.up(str(path), name=oracle.unused_name(), driver="netns", allow_uncertified=True) as made:
        yield made


@pytest.fixture
def inside(lab: Lab) -> Inside:
    def run(node: str, *argv: str) -> str:
        words = ["ip", "netns", "exec", f"tb.{lab.name}.{node}", *argv]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    return run


class TestNamespaces(LabContract):
    driver = "netns"


@pytest.fixture(scope="module")
def space(lab: Lab) -> Space:
    return lambda node: oracle.netns(lab.name, node)


class TestRankFaultsInNamespaces(RankFaultsContract):
    pass
