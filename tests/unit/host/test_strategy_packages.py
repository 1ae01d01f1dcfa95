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
from builders.tables import table
from testbed_agents import strategies
from testbed_agents.strategies import Context
from typer.testing import CliRunner

from testbed.cli.app import app
from testbed.cli.options import strategy_words
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
    before, modules = set(strategies_built.BUILT), set(sys.modules)

    def install(name: str, source: str) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        about = tmp_path / f"{module}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[testbed.strategies]\n{name} = {module}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        strategy_packages.loaded.cache_clear()

    yield install
    for name in set(strategies_built.BUILT) - before:
        del strategies_built.BUILT[name]  # type: ignore[attr-defined]
    for name in {"plain_average", "broken_one"} & set(sys.modules) - modules:
        del sys.modules[name]
    strategies_built.UNUSABLE.clear()
    strategy_packages.loaded.cache_clear()


def list_strategies(*options: str) -> str:
    """Return the output of `testbed ls strategies`."""
    done = CliRunner().invoke(app, ["ls", "strategies", *options])
    assert done.exit_code == 0
    return done.output


@pytest.fixture
def example(install: Install) -> None:
    install("plain-average", (EXAMPLE / "plain_average.py").read_text())


def test_the_example_is_as_short_as_the_documentation_says() -> None:
    lines = (EXAMPLE / "plain_average.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 42
    assert 'plain-average = "plain_average"' in (EXAMPLE / "pyproject.toml").read_text()


def test_ls_strategies_has_the_example_and_our_own(example: None) -> None:
    listed = {strategy["name"]: strategy for strategy in json.loads(list_strategies("--json"))}
    assert listed["plain-average"]["package"] == "plain-average"
    assert listed["plain-average"]["options"][0]["name"] == "every"
    assert listed["ddp"]["package"] == "" and listed["ddp"]["source"] and listed["ddp"]["summary"]
    assert set(strategies_built.BUILT) == set(listed)
    text = list_strategies()
    assert "plain-average" in text and "accumulate=1" in text


def test_files_may_name_it(example: None, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nworkload: {strategy: plain-average, every: 5}\n")
    assert catalog.examine_experiment(str(file)) == ()
    file.write_text("topology: metro-40km\nworkload:\n  strategy: plain-average\n  every: 0\n  alpha: 2\n")
    assert [mistake.line for mistake in catalog.examine_experiment(str(file))] == [4, 5]


def test_completion_knows_names_and_options(example: None) -> None:
    for text, completions in (
        ("plain", ["plain-average"]),
        ("plain-average:", ["plain-average:every="]),
        ("diloco:every=5,outer.r", ["diloco:every=5,outer.rate="]),
        ("nothing:", []),
    ):
        assert strategy_words(None, text) == completions  # type: ignore[arg-type]


def train_rank(rank: int) -> list[int]:
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
        seen.append(zlib.crc32(b"".join(tensor.detach().numpy().tobytes() for tensor in model.parameters())))
    return seen


def test_the_exampletrain_ranks_as_its_twin_says(example: None) -> None:
    strategy_packages.register()
    one, two = run(2, train_rank)
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


@table(
    "source, why",
    {
        "it raises": ("1 / 0", "ZeroDivisionError"),
        "without a twin": ("Agent = 3", "has no class Twin"),
        "without an agent": (f"{TWIN}class Twin(Base):\n    name = 'broken-one'\n", "has no class Agent"),
        "of another name": (
            f"{TWIN}class Twin(Base):\n    name = 'other'\nAgent = 3\n",
            "its Twin has the name 'other'",
        ),
        "with an option that is taken": (
            f"{TWIN}class Twin(Base):\n    name, options = 'broken-one', (Option('steps', 1, int, ''),)\nAgent = 3\n",
            "option steps is a key of workload: already",
        ),
    },
)
def test_a_package_that_does_not_fit_is_named_and_left_out(install: Install, source: str, why: str) -> None:
    install("broken-one", source)
    strategy_packages.register()
    assert "broken-one" not in strategies_built.BUILT
    assert why in strategy_packages.broken()["broken-one"]
    assert strategy_packages.broken()["broken-one"].startswith("strategy broken-one, registered by broken-one as")
    assert "registered by broken-one" in list_strategies().replace("\n", " ")
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
