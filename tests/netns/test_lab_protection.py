"""Protected links of a lab on fiberd: the contract; netem's is in ``tests/netem_vm/inner``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.protection_contract import ProtectionContract, protected_lab

import testbed

pytestmark = [pytest.mark.netns]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[testbed.Lab]:
    with protected_lab(tmp_path_factory.mktemp("t"), "fiberd") as made:
        yield made


class TestProtectionOnFiberd(ProtectionContract):
    pass
