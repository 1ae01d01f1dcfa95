"""pytest-testbed: certified labs, ranks in them and faults on their fibers, as pytest fixtures. See docs/pytest.md.

::

    import pytest

    @pytest.mark.testbed("metro-40km", set={"links.north.km": 80})
    def test_it_survives_a_cut(lab, ranks):
        job = ranks.start(train, steps=20)
        with lab.cut("north"):
            job.wait_for("step 10")
        assert job.results() == (20,) * 4

pytest loads this module in every run of every project with the testbed installed, so it imports only pytest; everything
else is imported when a test requests a lab.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from testbed.pytest_plugin.failures import RankFailure, RanksFailed

if TYPE_CHECKING:
    from testbed.lab.lab import Lab
    from testbed.pytest_plugin.labs import Labs, Use, Wish
    from testbed.pytest_plugin.ranks import Ranks

__all__ = ["RankFailure", "RanksFailed"]

SCOPES: Final = ("function", "module", "session")

_MARKER: Final = (
    "testbed(*topologies, set=None, scope=None, agents=False, driver='auto', emulator='auto', strict=False): the lab"
    " of the fixtures lab and module_lab; a test that uses lab runs once per topology. scope: lifetime of the lab:"
    " function, module or session. strict: refuse a noisy host."
)
_USED: pytest.StashKey[Use] = pytest.StashKey()
"""The lab of a test, for the report of its failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("testbed", "certified labs (pytest-testbed)")
    group.addoption(
        "--testbed-require",
        action="store_true",
        default=False,
        help="fail instead of skip tests if their lab is unavailable here (no root, a lab that is not certified)",
    )
    group.addoption(
        "--testbed-topology", metavar="NAME|FILE", help="topology of labs whose test names none [default: metro-40km]"
    )
    parser.addini("testbed_require", "same as --testbed-require", type="bool", default=False)
    parser.addini("testbed_topology", "same as --testbed-topology", default="metro-40km")
    parser.addini("testbed_lab_scope", "lifetime of a lab: function, module or session", default="module")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    scope = config.getini("testbed_lab_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"expected testbed_lab_scope to be one of {', '.join(SCOPES)}, got {scope!r}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``lab`` with the topologies of a marker that names several."""
    marker = metafunc.definition.get_closest_marker("testbed")
    if marker is None or len(marker.args) < 2 or "lab" not in metafunc.fixturenames:
        return
    if not any("lab" in _argnames(parametrize) for parametrize in metafunc.definition.iter_markers("parametrize")):
        metafunc.parametrize("lab", marker.args, indirect=True, ids=[str(argument) for argument in marker.args])


def _argnames(parametrize: pytest.Mark) -> list[str]:
    names = parametrize.args[0] if parametrize.args else parametrize.kwargs.get("argnames", ())
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the lab, its faults and its run directory to the report of a failed test."""
    report = yield
    if report.failed and _USED in item.stash:
        use = item.stash[_USED]
        report.sections.append((f"testbed: lab {use.lab.name}", str(use)))
    return report


# ---- labs


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A certified lab (testbed.Lab) of the topology in the marker ``testbed``.

    Tests of a module that request the same lab share it (see scope); it is healed after each test. The test is skipped
    if no lab can be certified; --testbed-require makes that a failure.
    """
    wanted, scope = _wish(request)
    labs: Labs = request.getfixturevalue(f"_labs_of_{scope}")
    with labs.used(labs.get(wanted)) as use:
        request.node.stash[_USED] = use
        yield use.lab


@pytest.fixture(scope="module")
def module_lab(request: pytest.FixtureRequest, _labs_of_module: Labs) -> Lab:
    """Like lab, for fixtures of a module: the topology is that of the module's marker (pytestmark). It is not healed
    automatically."""
    return _labs_of_module.get(_wish(request)[0])


@pytest.fixture(scope="session")
def session_lab(request: pytest.FixtureRequest, _labs_of_session: Labs) -> Lab:
    """Like lab, for fixtures of a session: the topology is that of --testbed-topology. It is not healed
    automatically."""
    return _labs_of_session.get(_wish(request)[0])


@pytest.fixture
def ranks(lab: Lab, tmp_path: Path) -> Iterator[Ranks]:
    """Run a function once per rank in lab: ``ranks(function, *arguments)`` returns each rank's result, in order."""
    from testbed.pytest_plugin.ranks import Ranks

    with Ranks(lab, tmp_path) as started:
        yield started


@pytest.fixture
def _labs_of_function(request: pytest.FixtureRequest) -> Iterator[Labs]:
    yield from _labs(request)


@pytest.fixture(scope="module")
def _labs_of_module(request: pytest.FixtureRequest) -> Iterator[Labs]:
    yield from _labs(request)


@pytest.fixture(scope="session")
def _labs_of_session(request: pytest.FixtureRequest) -> Iterator[Labs]:
    yield from _labs(request)


def _labs(request: pytest.FixtureRequest) -> Iterator[Labs]:
    from testbed.pytest_plugin.labs import Labs

    config = request.config
    with Labs(required=config.getoption("testbed_require") or config.getini("testbed_require")) as session_labs:
        yield session_labs


def _wish(request: pytest.FixtureRequest) -> tuple[Wish, str]:
    """Return the lab that the closest marker, or an indirect parametrization, requests, and its scope."""
    from testbed.pytest_plugin.labs import Wish

    marker = request.node.get_closest_marker("testbed")
    options = dict(marker.kwargs) if marker is not None else {}
    scope = options.pop("scope", None) or request.config.getini("testbed_lab_scope")
    topologies = marker.args if marker is not None else ()
    chosen = request.config.getoption("testbed_topology") or request.config.getini("testbed_topology")
    topology = getattr(request, "param", None) or (topologies[0] if topologies else chosen)
    unknown = set(options) - {"set", "agents", "driver", "emulator", "strict"}
    if unknown or scope not in SCOPES:
        wrong = (
            f"unknown keyword {sorted(unknown)[0]!r}"
            if unknown
            else f"expected scope to be one of {', '.join(SCOPES)}, got {scope!r}"
        )
        pytest.fail(f"marker testbed: {wrong}; usage: {_MARKER}", pytrace=False)
    return Wish.of(topology, **options), scope
