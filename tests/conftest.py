"""Fixtures of every test: separate folders for state and runs, and a check for leftovers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests"
DURATIONS = HERE / "durations.json"
"""Of test files, in seconds (tools/run_tests.py --store-durations)."""

for folder in (ROOT, ROOT / "agents", ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import host_stalls  # noqa: E402
from oracles import oracle  # noqa: E402

from testbed.host import installation  # noqa: E402
from testbed.host.linux import invocation  # noqa: E402

# What started the tests may ignore signals (nohup(1); a script's `&`), and programs would inherit that. They do not
# inherit a handler: they get the default action, and a closed terminal does not end this process, as nohup(1) has it.
for number, handler in ((signal.SIGHUP, lambda *_: None), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Hints of this process are those for a root who finds `testbed` on PATH, on a machine whose apt has package lists: not
# those for the command that started pytest. Before any module that has help texts is imported.
invocation.current = invocation.Invocation
installation._has_lists = lambda: True

# A loaded machine takes longer than hypothesis' 200 ms for an example. Ordinary tests try the same examples each time,
# so that a change is judged by what it changed; thorough ones look for new examples.
hypothesis.settings.register_profile("testbed", deadline=None, derandomize=not os.environ.get("TESTBED_THOROUGH"))
hypothesis.settings.load_profile("testbed")

MACHINES = ("netem_vm", "containerlab")
"""Folders whose first test boots a machine, or builds the docker image."""

LONG_S = 3600.0
"""Time limit of their tests, and of thorough ones; that of all others is `timeout` in pyproject.toml."""

THOROUGH = "thorough: make test-thorough runs it; ordinary tests cover the same in less time"


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip thorough tests, set time limits, mark tests of time as alone. Workers run the longest files first."""
    for item in items:
        thorough = item.get_closest_marker("thorough") is not None
        if thorough and not os.environ.get("TESTBED_THOROUGH"):
            item.add_marker(pytest.mark.skip(reason=THOROUGH))
        if (thorough or _file(item).startswith(MACHINES)) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))
        if item.get_closest_marker("timing"):
            item.add_marker("alone")
    if "PYTEST_XDIST_WORKER" in os.environ:
        durations_s = json.loads(DURATIONS.read_text())
        items.sort(key=lambda item: durations_s.get(_file(item), 0.0), reverse=True)


def _file(item: pytest.Item) -> str:
    return str(item.path.relative_to(HERE)) if item.path.is_relative_to(HERE) else ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no unit test without a mark that ``-m alone`` selects: importing all of them takes 20 s."""
    if config.option.markexpr != "alone" or collection_path.suffix != ".py":
        return None
    if not collection_path.is_relative_to(HERE / "unit"):
        return None
    text = collection_path.read_text()
    return None if "mark.alone" in text or "mark.timing" in text else True


@pytest.fixture(scope="session", autouse=True)
def stalls_of_the_host(request: pytest.FixtureRequest) -> None:
    """Watch for stalls while tests in namespaces run; a machine with netem watches its own."""
    in_namespaces = any(test.get_closest_marker("netns") for test in request.session.items)
    if in_namespaces and os.geteuid() == 0 and "TESTBED_NETEM_VM" not in os.environ:
        host_stalls.watch()


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
