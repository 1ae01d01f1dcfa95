"""The lab contract and the rank fault contract on namespaces."""

from __future__ import annotations

import functools

import pytest
from builders.conditions import ALONE
from builders.labs import ns, run_in, shared_lab
from contract.lab_contract import FILE, Inside, LabContract
from contract.rank_faults_contract import RankFaultsContract, Space

from testbed.lab.lab import Lab

pytestmark = ALONE


lab = shared_lab(FILE, driver="netns", agents=True)


@pytest.fixture
def inside(lab: Lab) -> Inside:
    return functools.partial(run_in, lab)


class TestNamespaces(LabContract):
    driver = "netns"


@pytest.fixture(scope="module")
def space(lab: Lab) -> Space:
    return lambda node: ns(lab, node)


class TestRankFaultsInNamespaces(RankFaultsContract):
    pass
