"""Fixtures of every test: separate folders for state and runs, and a check for leftovers."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "agents", ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import ahead  # noqa: E402
import oracle  # noqa: E402

from testbed.host import installation  # noqa: E402
from testbed.host.linux import invocation  # noqa: E402

# Hints of this process are those for a root who finds `testbed` on PATH, on a machine whose apt has package lists: not
# those for the command that started pytest. Before any module that has help texts is imported.
invocation.current = invocation.Invocation
installation._has_lists = lambda: True

# A loaded machine takes longer than hypothesis' 200 ms for an example. Ordinary tests try the same examples each time,
# so that a change is judged by what it changed; thorough ones look for new examples.
hypothesis.settings.register_profile("testbed", deadline=None, derandomize=not os.environ.get("TESTBED_THOROUGH"))
hypothesis.settings.load_profile("testbed")

THOROUGH = "thorough: make test-thorough runs it; ordinary tests cover the same in less time"


REASONS = pytest.StashKey[dict[str, str]]()
"""By node id, why a timing test may be repeated."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put temporary folders where programs without privileges can reach them: pytest's own are root's alone."""
    if os.geteuid() == 0 and config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="testbed-tests-")
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


@pytest.fixture(scope="session", autouse=True)
def reachable_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let every user enter the temporary folders of tests."""
    base = tmp_path_factory.getbasetemp()
    for folder in (base, base.parent):  # a worker of xdist has its folder in that of the whole run
        if folder.name.startswith(("testbed-tests-", "popen-gw")):
            folder.chmod(0o711)
    make = tmp_path_factory.mktemp

    def mktemp(basename: str, numbered: bool = True) -> Path:
        made = make(basename, numbered)
        made.chmod(0o711)
        return made

    tmp_path_factory.mktemp = mktemp  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip thorough tests, allow timing tests to be repeated, order folders.

    Any other test that fails is not repeated: a race that loses three times in ten would pass 97 times of 100. A test
    whose figure depends on the load of two shared cores is repeated up to twice, and names its reason:
    ``@pytest.mark.timing("…")``.
    """
    if not os.environ.get("TESTBED_THOROUGH"):
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(pytest.mark.skip(reason=THOROUGH))
    reasons = config.stash[REASONS] = {}
    for item in items:
        if timing := item.get_closest_marker("timing"):
            if not (len(timing.args) == 1 and isinstance(timing.args[0], str) and timing.args[0].strip()):
                raise pytest.UsageError(f"{item.nodeid}: expected one reason in @pytest.mark.timing, got {timing.args}")
            reasons[item.nodeid] = timing.args[0]
            if "TESTBED_NETEM_VM" not in os.environ:  # tests in the machine with netem are not repeated
                item.add_marker(pytest.mark.flaky(reruns=2))
        elif any(marker.kwargs != {"reruns": 0} for marker in item.iter_markers("flaky")):
            raise pytest.UsageError(f"{item.nodeid}: only a test with @pytest.mark.timing may be repeated")
    ahead.order(items)


def _repeated(config: pytest.Config) -> set[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return set() if reporter is None else {report.nodeid for report in reporter.stats.get("rerun", ())}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a test was repeated that may not be, as with ``--reruns`` on the command line."""
    if _repeated(session.config) - session.config.stash.get(REASONS, {}).keys():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which tests were repeated, and why they may be."""
    if repeated := _repeated(config):
        terminalreporter.section("repeated")
    for name in sorted(repeated):
        reason = config.stash[REASONS].get(name, "FAILED: no timing test, may not be repeated")
        terminalreporter.write_line(f"{name}: {reason}")


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        outputs = Path(tempfile.mkdtemp(prefix="testbed-ahead-"))
        session.config.add_cleanup(lambda: shutil.rmtree(outputs, ignore_errors=True))
        session.config.add_cleanup(ahead.AHEAD_OF_TESTS.end)  # cleanups run in reverse order
        ahead.AHEAD_OF_TESTS.begin(session.items, outputs)


@pytest.fixture(scope="module", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set $TESTBED_STATE and $TESTBED_RUNS of a module; at its end check that no process started under them is left.

    Scoped to the module, because it contains labs that are up for all tests of a module.
    """
    folder = tmp_path_factory.mktemp("s")  # short: the path of a socket has at most 107 bytes (unix(7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTBED_STATE", str(folder / "state"))
        patch.setenv("TESTBED_RUNS", str(folder / "runs"))
        patch.delenv("TESTBED_LAB", raising=False)
        # Otherwise a machine with docker would use containers in every test; tests/containerlab requests them.
        patch.setenv("TESTBED_DRIVER", "netns")
        # Keepers and commands are separate processes: they must import the code under test, not an installed package.
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'agents'}")
        yield folder / "state"
        oracle.until_none(lambda: oracle.started_under(folder / "state"), 30.0, "processes that have not ended")
        assert oracle.left_of_labs(folder / "state") == []


@pytest.fixture
def lab_name(state_folder: Path) -> Iterator[str]:
    """Provide an unused name for a lab; at the end of the test check that nothing of the lab is left."""
    name = oracle.unused_name()
    yield name
    oracle.until(lambda: not oracle.left_behind(name, state_folder), 10.0, f"nothing is left of {name}")
