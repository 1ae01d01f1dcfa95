"""The lab contract and the rank fault contract on namespaces."""

from __future__ import annotations

import pytest
from builders.commands import captured
from builders.conditions import ALONE
from builders.labs import ns, shared_lab
from contract.lab_contract import FILE, Inside, LabContract
from contract.rank_faults_contract import RankFaultsContract, Space

from testbed.lab.lab import Lab

pytestmark = ALONE


lab = shared_lab(FILE, driver="netns", agents=True)


@pytest.fixture
def inside(lab: Lab) -> Inside:
    def run(node: str, *argv: str) -> str:
        words = ["ip", "netns", "exec", f"tb.{lab.name}.{node}", *argv]
        return captured(words, check=True, timeout=60).stdout

    return run


class TestNamespaces(LabContract):
    driver = "netns"


@pytest.fixture(scope="module")
def space(lab: Lab) -> Space:
    return lambda node: ns(lab, node)


class TestRankFaultsInNamespaces(RankFaultsContract):
    pass
