"""Strategies of packages: the example of the documentation as it is installed, and packages that do not fit."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from builders.loopback_ranks import run
from testbed_agents import strategies
from testbed_agents.strategies import Context
from typer.testing import CliRunner

from testbed.cli.app import app
from testbed.cli.verb import strategy_words
from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, Tensor
from testbed.core.workload.workload import AgentWorkload
from testbed.core.workload.workload_words import changed
from testbed.errors import FileMistakes, UserError
from testbed.host import strategy_packages
from testbed.host.files import catalog

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_strategy"

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a module as a package with one entry point: ``install(name, source)``."""
    monkeypatch.setattr(strategies_built, "_ALL", strategies_built._ALL)
    before, modules = dict(strategies_built._ALL), set(sys.modules)

    def install(name: str, source: str) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        about = tmp_path / f"{module}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[testbed.strategies]\n{name} = {module}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        strategy_packages._loaded.cache_clear()

    yield install
    for name in set(strategies_built._ALL) - set(before):
        del strategies_built._ALL[name]
    for name in set(sys.modules) - modules:
        if name in ("plain_average", "broken_one"):
            del sys.modules[name]
    strategies_built.UNUSABLE.clear()
    strategy_packages._loaded.cache_clear()


@pytest.fixture
def example(install: Install) -> None:
    install("plain-average", (EXAMPLE / "plain_average.py").read_text())


def test_the_example_is_as_short_as_the_documentation_says() -> None:
    lines = (EXAMPLE / "plain_average.py").read_text().splitlines()
    assert sum(bool(it.strip()) for it in lines) <= 42
    assert 'plain-average = "plain_average"' in (EXAMPLE / "pyproject.toml").read_text()


def test_ls_strategies_has_the_example_and_our_own(example: None) -> None:
    found = CliRunner().invoke(app, ["ls", "strategies", "--json"])
    assert found.exit_code == 0
    listed = {it["name"]: it for it in json.loads(found.stdout)}
    assert listed["plain-average"]["package"] == "plain-average"
    assert listed["plain-average"]["options"][0]["name"] == "every"
    assert listed["ddp"]["package"] == "" and listed["ddp"]["source"] and listed["ddp"]["summary"]
    assert set(strategies_built.BUILT) == set(listed)
    text = CliRunner().invoke(app, ["ls", "strategies"]).stdout
    assert "plain-average" in text and "accumulate=1" in text


def test_files_may_name_it(example: None, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nworkload: {strategy: plain-average, every: 5}\n")
    assert catalog.examine_experiment(str(file)) == ()
    file.write_text("topology: metro-40km\nworkload:\n  strategy: plain-average\n  every: 0\n  alpha: 2\n")
    assert [it.line for it in catalog.examine_experiment(str(file))] == [4, 5]


def test_completion_knows_names_and_options(example: None) -> None:
    ctx = None  # not looked at
    assert strategy_words(ctx, "plain") == ["plain-average"]  # type: ignore[arg-type]
    assert strategy_words(ctx, "plain-average:") == ["plain-average:every="]  # type: ignore[arg-type]
    assert strategy_words(ctx, "diloco:every=5,outer.r") == ["diloco:every=5,outer.rate="]  # type: ignore[arg-type]
    assert strategy_words(ctx, "nothing:") == []  # type: ignore[arg-type]


def _train(rank: int) -> list[int]:
    """Checksums of the parameters after each of five steps, with an exchange every second one and at the end."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    context = Context.of_default_group("ab"[rank])
    context.loss, context.steps = lambda output, targets: (output - rank).square().mean(), 5
    strategy = strategies.make("plain-average", {"every": 2})
    optimizer = torch.optim.SGD(strategy.prepare(model, context), lr=0.1)
    seen = []
    for step in range(1, 6):
        context.step = step
        optimizer.zero_grad()
        strategy.run(torch.ones(1, 3), torch.ones(1))
        assert context.ready_t > 0
        optimizer.step()
        strategy.after_step(step)
        if step == 5:
            strategy.finish(step)
        seen.append(zlib.crc32(b"".join(it.detach().numpy().tobytes() for it in model.parameters())))
    return seen


def test_the_example_trains_as_its_twin_says(example: None) -> None:
    strategy_packages.register()
    one, two = run(2, _train)
    twin = strategies_built.make("plain-average", {"every": 2}, Layout(("a", "b"), (Tensor("w", 8),), steps=5))
    for step, (left, right) in enumerate(zip(one, two, strict=True), 1):
        assert (left == right) == bool(twin.equal(step)) == bool(twin.operations(step)), step
    assert [twin.committed(step) for step in range(1, 6)] == [0, 2, 2, 4, 5]


def test_a_rank_says_why_it_cannot_import_one(install: Install) -> None:
    with pytest.raises(ValueError, match=r"unknown strategy 'broken-one' .*no package that this rank finds registers"):
        strategies.make("broken-one", {})
    install("broken-one", "1 / 0")
    with pytest.raises(ValueError, match=r"registered by broken-one as broken_one: .* cannot import it: ZeroDivision"):
        strategies.make("broken-one", {})


def test_files_that_ranks_read(example: None, tmp_path: Path) -> None:
    assert strategy_packages.files_of("plain-average") == (tmp_path, tmp_path / "plain_average.py")
    assert strategy_packages.files_of("ddp") == ()


TWIN = "from testbed.core.training.twin import Option, Twin as Base\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("Agent = 3", "has no class Twin"),
        (f"{TWIN}class Twin(Base):\n    name = 'broken-one'\n", "has no class Agent"),
        (f"{TWIN}class Twin(Base):\n    name = 'other'\nAgent = 3\n", "its Twin has the name 'other'"),
        (
            f"{TWIN}class Twin(Base):\n    name, options = 'broken-one', (Option('steps', 1, int, ''),)\nAgent = 3\n",
            "option steps is a key of workload: already",
        ),
    ],
)
def test_a_package_that_does_not_fit_is_named_and_left_out(install: Install, source: str, says: str) -> None:
    install("broken-one", source)
    strategy_packages.register()
    assert "broken-one" not in strategies_built.BUILT
    assert says in strategy_packages.broken()["broken-one"]
    assert strategy_packages.broken()["broken-one"].startswith("strategy broken-one, registered by broken-one as")
    listed = CliRunner().invoke(app, ["ls", "strategies"])
    assert listed.exit_code == 0 and "registered by broken-one" in listed.output.replace("\n", " ")
    with pytest.raises(FileMistakes, match="strategy broken-one, registered by broken-one as"):
        changed(AgentWorkload(), "broken-one")


def test_a_twin_that_raises_is_no_bug_of_the_testbed(install: Install) -> None:
    """Methods and properties; other strategies are left as they are."""
    source = (EXAMPLE / "plain_average.py").read_text()
    raising = source.replace("def operations(self, step):", "def operations(self, step):\n        return 1 / 0\n")
    install("plain-average", raising.replace('return self.values["every"]', "return 1 / 0"))
    strategy_packages.register()
    layout = Layout(("a", "b"), (Tensor("model", 10),))
    twin = strategies_built.make("plain-average", {}, layout)
    why = r"strategy plain-average: {} of its Twin \(plain_average\) failed: ZeroDivisionError: division by zero"
    with pytest.raises(UserError, match=why.format("operations")):
        twin.operations(1)
    with pytest.raises(UserError, match=why.format("longest_gap")):
        assert twin.longest_gap
    assert strategies_built.make("ddp", {}, layout).operations(1)
