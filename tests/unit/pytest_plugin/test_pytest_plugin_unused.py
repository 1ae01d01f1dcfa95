"""The pytest plugin where no test asks for a lab, and where none can be had. Nothing here makes a namespace."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from builders import ROOT
from builders.programs import python

PLUGIN = ("-p", "testbed.pytest_plugin")

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins of this machine have no say, nor has a testbed that is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'agents'}")


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*PLUGIN, "-rs", *words)


def test_it_imports_nothing_but_pytest() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import testbed.pytest_plugin; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new - set(sys.stdlib_module_names))); "
        "print(*sorted(name for name in sys.modules if name.startswith('testbed')))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    foreign, ours = done.stdout.splitlines()
    assert foreign == "testbed"
    assert ours.split() == ["testbed", "testbed.pytest_plugin", "testbed.pytest_plugin.failures", "testbed.version"]


def test_a_suite_that_asks_for_no_lab_does_not_load_the_testbed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_it():
            assert not {"testbed.lab", "numpy", "pydantic", "rich"} & set(sys.modules)
    """)
    pytester.runpytest_subprocess(*PLUGIN, timeout=60).assert_outcomes(passed=1)


def test_a_fixture_of_that_name_of_your_own_is_yours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def lab():
            return 3

        def test_it(lab):
            assert lab == 3
    """)
    run(pytester).assert_outcomes(passed=1)


def test_the_marker_and_the_options_are_documented(pytester: pytest.Pytester) -> None:
    run(pytester, "--strict-markers", "--markers").stdout.fnmatch_lines(["@pytest.mark.testbed(*topologies, set=None*"])
    run(pytester, "--help").stdout.fnmatch_lines(["*--testbed-require*"])
    run(pytester, "--fixtures").stdout.fnmatch_lines(["ranks*", "*Run a function once per rank in lab*"])


def test_a_wrong_setting_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntestbed_lab_scope = class\n")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = "expected testbed_lab_scope to be one of function, module, session, got 'class'"
    result.stderr.fnmatch_lines([f"*{error}*"])


WRONG = {
    "'metro-41km'": "unknown topology 'metro-41km'; did you mean metro-40km*",
    "nodes=3": "marker testbed: unknown keyword 'nodes'; usage: testbed(*",
    "scope='class'": "marker testbed: expected scope to be one of function, module, session, got 'class'*",
    "set={'links.north.kn': 3}": "*kn*",
}


def test_a_wrong_marker_is_an_error_in_one_line(pytester: pytest.Pytester) -> None:
    """In one run: each imports the testbed anew."""
    tests = (f"@pytest.mark.testbed({mark})\ndef test_{number}(lab):\n    pass" for number, mark in enumerate(WRONG))
    pytester.makepyfile("\n\n".join(["import pytest", *tests]))
    result = run(pytester)
    result.assert_outcomes(errors=len(WRONG))
    for number, error in enumerate(WRONG.values()):
        result.stdout.fnmatch_lines([f"*ERROR at setup of test_{number}*", error], consecutive=False)
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*labs.py*")


def powerless(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """pytest without the capabilities that namespaces need, whoever runs these tests."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return run(pytester, *words)
    if setpriv is None:
        pytest.skip("setpriv is missing; install it with: apt-get install util-linux")
    argv = [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--", sys.executable, "-m", "pytest"]
    return pytester.run(*argv, *PLUGIN, "-rs", *words, timeout=60)


SUITE = """
    import pytest

    @pytest.mark.parametrize("n", range(3))
    def test_it(lab, n):
        raise AssertionError("there is no lab")

    def test_ranks(ranks):
        raise AssertionError("there is no lab")

    def test_of_the_module(module_lab):
        raise AssertionError("there is no lab")

    def test_of_the_session(session_lab):
        raise AssertionError("there is no lab")
"""


def test_without_the_rights_tests_are_skipped_and_say_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = powerless(pytester)
    result.assert_outcomes(skipped=6)
    result.stdout.fnmatch_lines(["SKIPPED*labs are unavailable here: creating namespaces needs root*"])


@pytest.mark.parametrize("how", ["option", "ini"])
def test_what_is_required_is_never_skipped(pytester: pytest.Pytester, how: str) -> None:
    pytester.makepyfile(SUITE)
    if how == "ini":
        pytester.makeini("[pytest]\ntestbed_require = true\n")
    result = powerless(pytester, *(["--testbed-require"] if how == "option" else []))
    result.assert_outcomes(errors=6)
    result.stdout.fnmatch_lines(["labs are unavailable here: *(not skipped because of --testbed-require)"])
