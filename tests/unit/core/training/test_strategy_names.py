"""A strategy is two files and two lines of registries: nothing else knows its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import testbed_agents
from testbed_agents.strategies import names

import testbed
from testbed.core.training.strategies_built import BUILT

PRODUCT = [Path(package.__path__[0]) for package in (testbed, testbed_agents)]
DEFAULT = "ddp"


def literals(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_literal_is_a_strategy_s_name_outside_twins_agents_and_registries() -> None:
    registered = {twin.name for twin in BUILT.values() if twin.__module__.startswith("testbed.")}
    assert registered <= {*names()} and DEFAULT in registered
    spelled = {
        (str(path), text)
        for package in PRODUCT
        for path in package.rglob("*.py")
        if path.parent.name != "strategies"
        for text in literals(path)
        if text in registered - {DEFAULT}
    }
    assert spelled == set()


def test_every_strategy_has_one_file_on_each_side() -> None:
    twins, agents = (
        package / folder / "strategies" for package, folder in zip(PRODUCT, ("core/training", "."), strict=True)
    )
    for twin in BUILT.values():
        if twin.__module__.startswith("testbed."):
            file = twin.__module__.rpartition(".")[2] + ".py"
            assert file == twin.name.replace("-", "_") + ".py" and (twins / file).exists() and (agents / file).exists()
